package ipvs

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
)

// routesAway gives a rig routes to other machines.
func (r *rig) routesAway() {
	r.t.Helper()
	r.run("ip link add out type bridge")
	r.run("ip link set out up")
	r.run("ip address add 192.0.2.10/24 dev out")
	r.run("ip route add default via 192.0.2.1")
}

// Packets of other programs keep their routes, whatever marks these programs set: Mullvad's, one of
// Cilium (an identity, and its magic number), one of another instance.
func TestMarksOfOthersAreLeftAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.routesAway()
	ways := func() (l []string) {
		for _, mark := range []string{"0x6d6f6c65", "0x4a110f00", "0x40000000", "0xc0000000",
			"0xfd300000", "0xffffffff"} {
			l = append(l, r.run("ip route get 8.8.8.8 mark "+mark))
		}
		return l
	}
	before := ways()
	r.apply(r.engine(), rigState([]string{"10.244.1.1"}))
	require.Equal(t, before, ways())
	require.Contains(t, r.run("ip route get 8.8.8.8 mark 0xfd200000"), "local 8.8.8.8")
}

// Another mark replaces the one before. In the end nothing of either is left.
func TestAnInstanceGetsAnotherMark(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	before := r.state()
	s := rigState([]string{"10.244.1.1"})
	r.apply(r.engine(), s)
	e := r.engine(Config{Mark: 0xd0000000})
	applied(t, e, s)
	for _, ip := range []string{"ip", "ip -6"} {
		rules := r.run(ip + " rule")
		require.Contains(t, rules, "fwmark 0xd0000000/0xfff80000")
		require.NotContains(t, rules, "0xfd200000")
	}
	cleanUp(t, e)
	require.Equal(t, before, r.state())
	for _, mark := range []uint32{1 << 30, 0xc0000001, 0x100000} {
		_, err := openBackend(&Config{Mark: mark})
		require.ErrorContains(t, err, "want 0xc0000000 or above")
	}
}

// Policy rules of other programs that match marks of the instance, or precede its own rule, are
// reported.
func TestRivalsAreTold(t *testing.T) {
	t.Parallel()
	for rule, want := range map[string]string{
		"fwmark 0xfd200000/0xff000000 priority 200 table 77": "policy rule 200 leads packets " +
			"with the mark 0xfd200000/0xff000000 to table 77",
		"from all priority 90 table 77": "another policy rule comes before that of the " +
			"instance",
		"fwmark 0x200/0xf00 priority 9 table 77":         "", // of Cilium
		"fwmark 0x80000/0xff0000 priority 5210 table 52": "", // of Tailscale
	} {
		r := newRig(t)
		var log bytes.Buffer
		b := r.backend(Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		e := dataplane.New(b, nil)
		r.apply(e, rigState([]string{"10.244.1.1"}))
		require.Empty(t, log.String())
		r.run("ip route add blackhole default table 77")
		r.run("ip rule add " + rule)
		for range 2 {
			e.Resync()
			applied(t, e, rigState([]string{"10.244.1.1"}))
		}
		require.Equal(t, min(1, len(want)), strings.Count(log.String(), "level=WARN"), rule)
		require.Contains(t, log.String(), want)
	}
}
