package ipvs

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/servicemodel"
)

const rigDevice = "kernlb0"

// boundTo returns the addresses of a device, without link-local ones, and whether the device is up.
func (r *rig) boundTo(device string) (l []string, up bool) {
	r.t.Helper()
	for line := range strings.Lines(r.run("ip -o address show dev " + device)) {
		if w := strings.Fields(line); !strings.HasPrefix(w[3], "fe80:") {
			l = append(l, w[3])
		}
	}
	return l, strings.Contains(r.run("ip link show dev "+device), ",UP")
}

// The device has the addresses of services. Damage is noticed and mended, and a later process finds
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
		require.Equal(t, dataplane.Intact, i, damage)
		res, err = r.engine(device).Apply(t.Context(), s)
		require.NoError(t, err, damage)
		require.Zero(t, res.Messages, "%s: %v", damage, res.Drift)
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

// Another device replaces the one that was made, and a cleanup knows the instance's devices.
func TestTheDeviceIsReplaced(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	nothing := r.state()
	s := rigState([]string{"10.244.1.1"})
	want := []string{"10.96.0.10/32", "203.0.113.10/32", "fd00:10:96::10/128"}
	applied(t, r.engine(Config{Device: rigDevice}), s)
	r.run("ip link add other0 type bridge")
	res := applied(t, r.engine(Config{Device: "kernlb1"}), s)
	require.Contains(t, strings.Join(res.Drift, "\n"), "device kernlb0 is not the one")
	bound, _ := r.boundTo("kernlb1")
	require.ElementsMatch(t, want, bound)
	require.NotContains(t, r.run("ip link"), rigDevice)
	applied(t, r.engine(Config{Device: "other0"}), s)
	bound, up := r.boundTo("other0")
	require.ElementsMatch(t, want, bound)
	require.True(t, up)
	require.NotContains(t, r.run("ip link"), "kernlb1")
	cleanUp(t, r.engine(Config{Device: "other0"}))
	bound, _ = r.boundTo("other0") // which stays: the instance has not made it
	require.Empty(t, bound)
	r.run("ip link del other0")
	require.Equal(t, nothing, r.state())
}

// If the device cannot be made, or exists with another kind, the error says so. If it vanishes
// while it is needed, that is a conflict.
func TestDevicesThatCannotBe(t *testing.T) {
	t.Parallel()
	r, b := rigWithBackend(t, Config{Device: rigDevice})
	b.kernel.kind = "nonesuch"
	require.ErrorIs(t, b.kernel.makeDevice(), dataplane.ErrMissingModule)
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
	require.ErrorIs(t, b.failed("bind", b.kernel.bind(a)), dataplane.ErrConflict)
	name := ok(b.kernel.linkName(b.kernel.ifindex, map[int]string{}))(t)
	require.Empty(t, name)
	observation(t, b)
	_, err := dataplane.New(b, nil).Apply(t.Context(), servicemodel.State{})
	require.NoError(t, errors.Join(err, b.kernel.makeDevice()))
}
