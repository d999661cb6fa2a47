package ipvs

import (
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/test/rawnltest"
	"github.com/kernlb/kernlb/servicemodel"
)

// networkStep is the distance from one request that fails to the next. With KERNLB_TEST_FAULTS=all,
// every request fails once.
const networkStep = 5

// Requests to rtnetlink fail, one after the other, while services come, are changed, and go.
// Passing failures are overcome. Otherwise the error names the failure, and a repetition mends
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

// Before each request in turn, the device is deleted or an address is removed. The same apply
// repeats the lost work, or the next one does.
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

// A check of addresses that fails is repeated, even though only one notice of the change came.
func TestAFailedLookAtAddressesIsMadeAgain(t *testing.T) {
	t.Parallel()
	r, b := rigWithBackend(t, Config{Device: rigDevice})
	e := dataplane.New(b, nil)
	applied(t, e, *lives()[0].holds)
	is, err := dataplane.Broken, error(nil)
	for is != dataplane.Intact { // there may be notices of our own changes
		is = ok(b.Integrity(t.Context()))(t)
	}
	r.run("ip address del 10.96.0.10/32 dev " + rigDevice)
	b.kernel.links.Wrap(broken)
	_, err = b.Integrity(t.Context())
	require.ErrorIs(t, err, unix.EIO)
	b.kernel.links.Wrap(func(_ bool, do func() error) error { return do() })
	requireIntegrity(t, b, dataplane.Broken)
}

// try runs a command that may fail.
func (r *rig) try(command string) {
	r.t.Helper()
	_ = r.ns.Do(func() error {
		args := strings.Fields(command)
		return exec.CommandContext(r.t.Context(), args[0], args[1:]...).Run()
	})
}

// lives lets services come, change and go. Each time the n-th request fails, or every request if n
// is 0. It returns how many failed.
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
		require.ErrorIs(r.t, err, dataplane.ErrConflict)
		return
	}
	require.ErrorIs(r.t, err, fault.Errno, "request %d", n)
}

// life is a stage in the life of services on a node.
type life struct {
	name  string
	holds *servicemodel.State // the kernel's state afterwards; nil: nothing
	act   func(testing.TB, *dataplane.Engine) error
}

// lives are: services come, an endpoint is replaced, services go.
func lives() []life {
	apply := func(name string, s servicemodel.State) life {
		return life{name, &s, func(t testing.TB, e *dataplane.Engine) error {
			_, err := e.Apply(t.Context(), s)
			return err
		}}
	}
	return []life{
		apply("services come", rigState([]string{"10.244.1.1", "10.244.2.2"})),
		apply("addresses change", rigState([]string{"10.244.2.2"}, func(s *servicemodel.Service) {
			s.ExternalIPs[0] = netip.MustParseAddr("203.0.113.11")
		})),
		{"services go", nil, func(t testing.TB, e *dataplane.Engine) error {
			_, err := e.Cleanup(t.Context())
			return err
		}},
	}
}
