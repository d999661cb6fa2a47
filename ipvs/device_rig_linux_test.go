package ipvs

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/dataplane/sysctls"
	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/test/rawnltest"
	sm "github.com/kernlb/kernlb/servicemodel"
)

const rigDevice = "kernlb0"

// boundTo returns the addresses of a device, without link-local addresses, and whether the device
// is up.
func (r *rig) boundTo(device string) (l []string, up bool) {
	r.t.Helper()
	for line := range strings.Lines(r.run("ip -o address show dev " + device)) {
		if w := strings.Fields(line); !strings.HasPrefix(w[3], "fe80:") {
			l = append(l, w[3])
		}
	}

	return l, strings.Contains(r.run("ip link show dev "+device), ",UP")
}

// A new device replaces the device of the instance, and a cleanup knows the instance's devices. On
// a device that is not ours, the addresses of other programs stay, including those of other
// instances.
func TestTheDeviceIsReplaced(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	nothing := r.state()
	s := rigState([]string{"10.244.1.1"})
	want := []string{"10.96.0.10/32", "203.0.113.10/32", "fd00:10:96::10/128"}
	applied(t, r.engine(Config{Device: rigDevice}), s)
	r.run("ip link add other0 type bridge")
	r.run("ip address add 10.96.0.99/32 dev other0")
	res := applied(t, r.engine(Config{Device: "kernlb1"}), s)
	require.Contains(t, strings.Join(res.Drift, "\n"), "device kernlb0 is not the one")
	bound, _ := r.boundTo("kernlb1")
	require.ElementsMatch(t, want, bound)
	require.NotContains(t, r.run("ip link"), rigDevice)
	applied(t, r.engine(Config{Device: "other0"}), s)
	cleanUp(t, r.engine(Config{Device: "other0", Table: "other"}))
	bound, up := r.boundTo("other0")
	require.ElementsMatch(t, append(want, "10.96.0.99/32"), bound)
	require.True(t, up)
	require.NotContains(t, strings.Join(r.servers(), "\n"), "10.96.0.99:30080")
	require.NotContains(t, r.run("ip link"), "kernlb1")
	cleanUp(t, r.engine(Config{Device: "other0"}))
	bound, _ = r.boundTo("other0") // which stays: the instance has not created it
	require.Equal(t, []string{"10.96.0.99/32"}, bound)
	r.run("ip link del other0")
	require.Equal(t, nothing, r.state())
}

// A service may have a link-local address, such as that of a DNS cache on each node. Link-local
// addresses accept no node ports.
func TestTheDeviceHoldsLinkLocalAddresses(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	nothing := r.state()
	r.run("ip link add other0 type bridge")
	r.run("ip address add 169.254.20.11/32 dev other0")
	cfg := Config{Device: rigDevice}
	e := r.engine(cfg)
	for _, endpoint := range []string{"10.244.1.1", "10.244.1.2"} {
		s := rigState([]string{endpoint}, func(s *sm.Service) {
			s.HostIPs = []netip.Addr{netip.MustParseAddr("169.254.20.11")}
			for _, a := range []string{"169.254.20.10", "fe80::10"} {
				s.LoadBalancerIPs = append(s.LoadBalancerIPs,
					sm.LoadBalancerIP{Addr: netip.MustParseAddr(a)})
			}
		})
		res := applied(t, e, s)
		require.Empty(t, res.Drift)
		require.Empty(t, applied(t, r.engine(cfg), s).Drift)
	}

	bound, _ := r.boundTo(rigDevice)
	require.Contains(t, bound, "169.254.20.10/32")
	require.NotContains(t, bound, "169.254.20.11/32")
	require.NotContains(t, strings.Join(r.servers(), "\n"), "169.254.20.11:30080")
	cleanUp(t, r.engine(cfg))
	r.run("ip link del other0")
	require.Equal(t, nothing, r.state())
}

// If the device cannot be created, or exists with a different kind, the error says so. If it
// vanishes while it is needed, that is a conflict.
func TestDevicesThatCannotBe(t *testing.T) {
	t.Parallel()
	r, b := rigWithBackend(t, Config{Device: rigDevice})
	b.kernel.kind = "nonesuch"
	require.ErrorIs(t, b.kernel.makeDevice(), kernelerr.ErrMissingModule)
	b.kernel.kind = "bridge"
	require.NoError(t, b.kernel.makeDevice())
	require.NoError(t, b.kernel.makeDevice(), "it is there")
	require.Positive(t, b.kernel.ifindex)
	names := ok(b.kernel.readDevices())(t)
	require.Equal(t, []string{rigDevice}, names)
	b.kernel.kind = "veth"
	names = ok(b.kernel.readDevices())(t)
	require.Empty(t, names)
	require.ErrorContains(t, b.kernel.findDevice(&addresses{}),
		`device kernlb0 is of the type "bridge": want a veth device`)
	require.Zero(t, b.kernel.ifindex)

	a := netip.MustParseAddr("10.96.0.10")
	b.kernel.kind = "bridge"
	require.NoError(t, b.kernel.findDevice(&addresses{}))
	require.NoError(t, b.kernel.bindAll(&devicePlan{bind: []netip.Addr{a}}))
	l := ok(b.kernel.readAddresses())(t)
	require.Equal(t, []boundAddr{{a, b.kernel.ifindex, rigDevice}}, l.bound)
	require.True(t, l.up)
	require.Empty(t, l.node, "node ports are not there")
	r.run("ip link del kernlb0")
	require.ErrorIs(t, b.failed("bind", b.kernel.bind(a)), kernelerr.ErrConflict)
	name := ok(b.kernel.linkName(b.kernel.ifindex, map[int]string{}))(t)
	require.Empty(t, name)
	observation(t, b)
	_, err := dataplane.New(b, nil).Apply(t.Context(), sm.State{})
	require.NoError(t, errors.Join(err, b.kernel.makeDevice()))
}

// addressBytes is the body of the request that binds an address to the link 7.
func addressBytes(a netip.Addr, metric uint32) (b []byte) {
	for _, part := range newAddress(a, 7, metric) {
		b = append(b, part.Serialize()...)
	}
	return b
}

func TestAddressBytes(t *testing.T) {
	t.Parallel()
	const metric = 0x6b001234
	for _, tc := range []struct{ addr, add string }{
		{"10.96.0.10", "022000fe07000000" + "080002000a60000a" + "080001000a60000a" +
			"0800080000020000" + "080009003412006b"},
		{"fd00::1", "0a80000007000000" + "14000200fd000000000000000000000000000001" +
			"14000100fd000000000000000000000000000001" +
			"0800080002020000" + "1400060000000000ffffffff0000000000000000" + "080009003412006b"},
	} {
		a := netip.MustParseAddr(tc.addr)
		add := addressBytes(a, metric)
		if binary.NativeEndian.Uint16([]byte{1, 0}) == 1 {
			require.Equal(t, tc.add, hex.EncodeToString(add))
		}
		h := ok(decodeAddress(add))(t)
		require.Equal(t, listedAddr{a, 7, metric}, h)
	}
}

func FuzzAddress(f *testing.F) {
	f.Add(addressBytes(netip.MustParseAddr("10.96.0.10"), 9))
	f.Add(addressBytes(netip.MustParseAddr("fd00::1"), 9))
	f.Add([]byte{2, 32, 0, 0, 1, 0, 0, 0, 4, 0, 1, 0})
	f.Add([]byte{2, 32, 0, 0, 1, 0, 0, 0})
	f.Add([]byte{2, 32, 0, 0, 1, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := decodeAddress(b)
		if err != nil || !h.addr.IsValid() {
			return
		}
		require.Equal(t, b[0] == 2, h.addr.Is4())
	})
}

// If an address is already on the device, or no longer where it was found, another program has
// moved it. A device that cannot be removed is an error.
func TestAddressesThatWereMoved(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	k := &r.backend().kernel
	k.device, k.ifindex = "lo", 1
	a := netip.MustParseAddr("203.0.113.77")
	d := &devicePlan{bind: []netip.Addr{a}, release: []boundAddr{{a, k.ifindex, k.device}}}
	require.NoError(t, k.bindAll(d))
	require.ErrorIs(t, k.bindAll(d), errMoved)
	require.Contains(t, r.run("ip address show lo"), a.String())
	k.device = "none" // the bound address is then on another device
	l := ok(k.readAddresses())(t)
	require.Equal(t, []boundAddr{{a, 1, "lo"}}, l.bound)
	require.Contains(t, l.others, netip.IPv6Loopback())
	require.NotContains(t, l.others, a)
	require.NotContains(t, l.node, a)
	r.run("ip -6 address add fe80::77/64 dev lo") // clients cannot reach it without a zone
	again := ok(k.readAddresses())(t)
	require.True(t, l.equal(&again))
	k.device, k.ifindex = "lo", 1
	require.NoError(t, k.releaseAll(d))
	require.ErrorIs(t, k.releaseAll(d), errMoved)
	require.NotContains(t, r.run("ip address show lo"), a.String())
	require.ErrorContains(t, k.releaseAll(&devicePlan{remove: []string{"lo"}}), "remove device lo")
	require.NoError(t, k.releaseAll(&devicePlan{remove: []string{"none"}}), "it is gone already")
}

// networkStep is the distance from one request that fails to the next. With KERNLB_TEST_FAULTS=all,
// every request fails once.
const networkStep = 5

// Requests to rtnetlink fail, one after the other, while services are added, changed and removed.
// Temporary failures are overcome. Otherwise the error names the failure, and a repetition repairs
// everything. Nothing is lost, and nothing is left over.
func TestEachRequestToTheNetworkGoesWrong(t *testing.T) {
	t.Parallel()
	step := networkStep
	if os.Getenv("KERNLB_TEST_FAULTS") == "all" {
		step = 1
	}
	for i, fault := range rawnltest.Calls(netlink.ErrDumpInterrupted) {
		t.Run(fault.Name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			nothing := r.state()
			for n := 1 + i%step; r.lives(fault, n) > 0; n += step {
				require.Equal(t, nothing, r.state())
			}
			require.Positive(t, r.lives(fault, 0))
			require.Equal(t, nothing, r.state())
		})
	}
}

// Before each request in turn, the device is deleted or an address is removed. The same apply or
// the next apply repeats the lost work.
func TestTheDeviceGoesBeforeEachRequest(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"ip link del " + rigDevice,
		"ip address del 10.96.0.10/32 dev " + rigDevice} {
		t.Run(command, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			device := Config{Device: rigDevice}
			fault := rawnltest.Before(command, func() { r.try(command) })
			s := lives()[0].holds
			for n, hits := 1, 1; hits > 0; n++ {
				f := rawnltest.NewFaults()
				b := r.backend(device)
				b.kernel.links.Wrap(f.Call)
				e := dataplane.New(b, nil)
				f.Arm(fault, n)
				_, err := e.Apply(t.Context(), *s)
				hits = f.Disarm()
				require.NoError(t, err, "request %d", n)
				_, err = e.Apply(t.Context(), *s)
				require.NoError(t, err, "request %d", n)
				bound, up := r.boundTo(rigDevice)
				require.True(t, up)
				require.Len(t, bound, 3, "request %d", n)
				r.try("ip link del " + rigDevice)
			}
		})
	}
}

// A check of addresses that fails is repeated, even if only one notice of the change was received.
func TestAFailedLookAtAddressesIsMadeAgain(t *testing.T) {
	t.Parallel()
	r, b := rigWithBackend(t, Config{Device: rigDevice})
	e := dataplane.New(b, nil)
	applied(t, e, *lives()[0].holds)
	is, err := backends.Broken, error(nil)
	for is != backends.Intact { // there may be notices of our own changes
		is = ok(b.Integrity(t.Context()))(t)
	}
	r.run("ip address del 10.96.0.10/32 dev " + rigDevice)
	b.kernel.links.Wrap(broken)
	_, err = b.Integrity(t.Context())
	require.ErrorIs(t, err, unix.EIO)
	b.kernel.links.Wrap(func(_ bool, do func() error) error { return do() })
	requireIntegrity(t, b, backends.Broken)
}

// Each check finds an added address, until there is a reading. Run checks before an apply, and the
// apply checks again.
func TestAnAddressIsFoundUntilItIsRead(t *testing.T) {
	t.Parallel()
	r, b := rigWithBackend(t)
	e := dataplane.New(b, nil)
	applied(t, e, rigState([]string{"10.244.1.1"}))
	r.run("ip address add 192.0.2.77/32 dev lo")
	for range 3 {
		requireIntegrity(t, b, backends.Broken)
	}
	applied(t, e, rigState([]string{"10.244.1.1"}))
	require.Contains(t, strings.Join(r.servers(), "\n"), "192.0.2.77:30080")
}

// try runs a command that may fail.
func (r *rig) try(command string) {
	r.t.Helper()
	_ = r.ns.Do(func() error {
		args := strings.Fields(command)
		return exec.CommandContext(r.t.Context(), args[0], args[1:]...).Run()
	})
}

// lives adds, changes and removes services. Each time the n-th request fails, or every request if n
// is 0. It returns the number of failed requests.
func (r *rig) lives(fault rawnltest.Fault, n int) (hits int) {
	r.t.Helper()
	f := rawnltest.NewFaults()
	device := Config{Device: rigDevice}
	b := r.backend(device)
	b.kernel.links.Wrap(f.Call)
	e := dataplane.New(b, nil)
	for _, live := range lives() {
		f.Arm(fault, n)
		err := live.act(r.t, e)
		hit := f.Disarm()
		hits += hit
		if err != nil {
			r.judge(fault, n, hit, err)
			require.NoError(r.t, live.act(r.t, e), "request %d of %s, once more", n, live.name)
		}

		if live.holds == nil {
			continue
		}
		p := ok(r.engine(device).Plan(r.t.Context(), *live.holds))(r.t)
		require.Empty(r.t, p.Drift, "request %d of %s", n, live.name)
		require.True(r.t, p.Changes.Empty(), "request %d of %s: %v", n, live.name, p.Changes)
	}

	return hits
}

// judge checks the engine's error while the n-th request failed. hits is the number of failures.
func (r *rig) judge(fault rawnltest.Fault, n, hits int, err error) {
	r.t.Helper()
	require.Positive(r.t, hits, err)
	require.ErrorContains(r.t, err, "ipvs: ", "request %d", n)
	if fault.Errno == 0 { // a race, or an interrupted dump
		require.Zero(r.t, n, "request %d: %v", n, err)
		require.ErrorIs(r.t, err, kernelerr.ErrConflict)
		return
	}

	require.ErrorIs(r.t, err, fault.Errno, "request %d", n)
}

// life is a stage in the life of services on a node.
type life struct {
	name  string
	holds *sm.State // the kernel's state afterwards; nil: nothing
	act   func(testing.TB, *dataplane.Engine) error
}

// lives are: services are added, an endpoint is replaced, services are removed.
func lives() []life {
	apply := func(name string, s sm.State) life {
		return life{name, &s, func(t testing.TB, e *dataplane.Engine) error {
			_, err := e.Apply(t.Context(), s)
			return err
		}}
	}

	return []life{
		apply("services come", rigState([]string{"10.244.1.1", "10.244.2.2"})),
		apply("addresses change", rigState([]string{"10.244.2.2"}, func(s *sm.Service) {
			s.ExternalIPs[0] = netip.MustParseAddr("203.0.113.11")
		})),
		{"services go", nil, func(t testing.TB, e *dataplane.Engine) error {
			_, err := e.Cleanup(t.Context())
			return err
		}},
	}
}

// broken lets every request fail.
func broken(bool, func() error) error { return unix.EIO }

// Timeouts are read and set like everything else: failures are reported.
func TestFailuresAboutTimeoutsAreTold(t *testing.T) {
	t.Parallel()
	_, b := rigWithBackend(t, Config{Timeouts: Timeouts(ipvsnl.Timeouts{TCP: time.Hour})})
	rawnltest.FailEach(t, "set", func(ctx context.Context) error {
		return b.kernel.tunables.Set(ctx,
			sysctls.Change{Set: map[string]string{timeoutTCP: "3600"}})
	})

	rawnltest.FailEach(t, "read", func(ctx context.Context) error {
		return b.kernel.tunables.Look(ctx, &sysctls.State{}, b.pl.tunables)
	})
	rawnltest.FailEach(t, "restore", b.restoring(
		sysctls.Change{Restore: map[string]string{timeoutTCP: "60"}}))
	require.Equal(t, "60", ok(b.kernel.values.Read(t.Context(), timeoutTCP))(t))
}

// The device has the addresses of services. Damage is noticed and repaired, and a later process has
// nothing to do.
func TestTheDeviceHoldsTheAddresses(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	device := Config{Device: rigDevice}
	b := r.backend(device)
	e := dataplane.New(b, nil)
	s := rigState([]string{"10.244.1.1"})
	applied(t, e, s)
	want := []string{"10.96.0.10/32", "203.0.113.10/32", "fd00:10:96::10/128"}
	for _, damage := range []string{"", "ip address del 203.0.113.10/32 dev kernlb0",
		"ip -6 address del fd00:10:96::10/128 dev kernlb0", "ip link set kernlb0 down",
		"ip link del kernlb0"} {
		if damage != "" {
			r.run(damage)
		}
		res, err := e.Apply(t.Context(), s)
		require.NoError(t, err, damage)
		require.Equal(t, damage != "", len(res.Drift) > 0, damage)
		bound, up := r.boundTo(rigDevice)
		require.ElementsMatch(t, want, bound, damage)
		require.True(t, up, damage)
		i := ok(b.Integrity(t.Context()))(t)
		require.Equal(t, backends.Intact, i, damage)
		res, err = r.engine(device).Apply(t.Context(), s)
		require.NoError(t, err, damage)
		require.Zero(t, res.Stats.Messages, "%s: %v", damage, res.Drift)
	}

	// An address that another program binds belongs to that program until it is removed.
	r.run("ip address add 203.0.113.10/32 dev lo")
	applied(t, e, s)
	bound, _ := r.boundTo(rigDevice)
	require.ElementsMatch(t, []string{want[0], want[2]}, bound)
	r.run("ip address del 203.0.113.10/32 dev lo")
	applied(t, e, s)
	bound, _ = r.boundTo(rigDevice)
	require.ElementsMatch(t, want, bound)
}
