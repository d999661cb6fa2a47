package ipvs

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/internal/nft"
	sm "github.com/kernlb/kernlb/servicemodel"
)

func FuzzRoutingTable(f *testing.F) {
	f.Add(make([]byte, unix.SizeofRtMsg))
	f.Add(make([]byte, unix.SizeofRtMsg-1))
	f.Add(append(make([]byte, unix.SizeofRtMsg), 6, 0, unix.RTA_TABLE, 0, 1, 2)) // too short
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) <= unix.SizeofRtMsg {
			require.Zero(t, routingTable(b))
		}
		routingTable(b)
	})
}

func (r *rig) disableIPv6(value string) {
	r.setSysctl("net/ipv6/conf/all/disable_ipv6", value)
	r.setSysctl("net/ipv6/conf/default/disable_ipv6", value)
}

// perFamily returns a state of one service in each family: "web" and "six".
func perFamily(endpoint string) sm.State {
	s := rigState([]string{endpoint}, func(s *sm.Service) {
		s.ClusterIPs, s.ExternalIPs = s.ClusterIPs[:1], nil
	})
	six := goldenService(func(s *sm.Service) {
		s.Name.Name, s.Ports[0].NodePort = "six", 0
		s.ClusterIPs = []netip.Addr{netip.MustParseAddr("fd00:10:96::66")}
	})
	return s.WithService(six).WithEndpoints(six.Name, goldenEndpoints("fd00:10:244::1"))
}

// If IPv6 is disabled, IPv4 services work, and IPv6 services are refused with the reason. When IPv6
// is enabled, they are added.
func TestIPv6IsDisabled(t *testing.T) {
	t.Parallel()
	for _, running := range []bool{false, true} {
		r := newRig(t)
		e := r.engine()
		if running {
			r.apply(e, perFamily("10.244.1.1"))
			require.Contains(t, strings.Join(r.servers(), "\n"), "[fd00:10:96::66]:80")
		}

		r.disableIPv6("1")
		for _, endpoint := range []string{"10.244.1.2", "10.244.1.3"} {
			res := applied(t, e, perFamily(endpoint))
			require.Len(t, res.Refused, 1)
			require.Equal(t, sm.IPv6, res.Refused[0].Family)
			require.ErrorIs(t, res.Refused[0].Err, backends.ErrUnsupported)
			require.ErrorContains(t, res.Refused[0].Err, "IPv6 is disabled on this node")
			servers := strings.Join(r.servers(), "\n")
			require.Contains(t, servers, endpoint)
			require.NotContains(t, servers, "fd00:10:96::66")
		}

		r.disableIPv6("0")
		r.apply(e, perFamily("10.244.1.3"))
		require.Contains(t, strings.Join(r.servers(), "\n"), "[fd00:10:96::66]:80")
		require.Contains(t, r.run("ip -6 route get 100::1 mark 0xfd200000"), "local 100::1")
		r.disableIPv6("1")
		cleanUp(t, e)
		require.NotContains(t, r.run("ip -6 rule"), "fwmark")
	}
}

// The kernel disables IPv6 between the reading and the commit. That is a conflict, and not a
// missing permission.
func TestIPv6IsDisabledMeanwhile(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	b, c := r.change(perFamily("10.244.1.1"))
	r.disableIPv6("1")
	_, err := b.Commit(t.Context(), c)
	require.ErrorIs(t, err, kernelerr.ErrConflict)
	require.NotErrorIs(t, err, kernelerr.ErrNoPermission)
	require.ErrorContains(t, err, "IPv6 was disabled meanwhile")
}

// IPv6 is disabled on the device, or on all new devices, but not on lo. The kernel then binds no
// IPv6 address to the device. IPv4 is served, and IPv6 as soon as possible.
func TestIPv6IsDisabledOnTheDevice(t *testing.T) {
	t.Parallel()
	for _, of := range []string{"default", rigDevice} {
		disabled := "net/ipv6/conf/" + of + "/disable_ipv6"
		r := newRig(t)
		b := r.backend(Config{Device: rigDevice})
		e := dataplane.New(b, nil)
		if of == rigDevice {
			applied(t, e, perFamily("10.244.1.1"))
			requireIntegrity(t, b, backends.Intact)
		}

		r.setSysctl(disabled, "1")
		if of == rigDevice {
			requireIntegrity(t, b, backends.Broken)
		}
		res := applied(t, e, perFamily("10.244.1.2"))
		require.Len(t, res.Refused, 1)
		require.ErrorContains(t, res.Refused[0].Err, "IPv6 is disabled on the device kernlb0")
		bound, _ := r.boundTo(rigDevice)
		require.NotEmpty(t, bound)
		require.NotContains(t, bound, "fd00:10:96::66/128")

		r.setSysctl("net/ipv6/conf/default/disable_ipv6", "0")
		r.setSysctl("net/ipv6/conf/"+rigDevice+"/disable_ipv6", "0")
		requireIntegrity(t, b, backends.Broken)
		e.Resync()
		applied(t, e, perFamily("10.244.1.2"))
		bound, _ = r.boundTo(rigDevice)
		require.Contains(t, bound, "fd00:10:96::66/128")

		b, c := r.change(perFamily("10.244.1.3"), Config{Device: "kernlb1"})
		r.setSysctl("net/ipv6/conf/default/disable_ipv6", "1")
		_, err := b.Commit(t.Context(), c)
		require.ErrorIs(t, err, kernelerr.ErrConflict)
		require.NotErrorIs(t, err, kernelerr.ErrNoPermission)
	}
}

// Packets of other programs keep their routes, whatever marks these programs set: the mark of
// Mullvad, marks of Cilium (an identity, and its magic number), a mark of another instance.
func TestMarksOfOthersAreLeftAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.run("ip link add out type bridge")
	r.run("ip link set out up")
	r.run("ip address add 192.0.2.10/24 dev out")
	r.run("ip route add default via 192.0.2.1")
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

// A new mark replaces the former mark. In the end nothing of either is left.
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

// If a rule of another program precedes the instance's in one family, a check still notices that
// the rule of the other family was removed.
func TestRivalsInOneFamilyHideNothingInTheOther(t *testing.T) {
	t.Parallel()
	r, b := rigWithBackend(t)
	e := dataplane.New(b, nil)
	applied(t, e, perFamily("10.244.1.1"))
	r.run("ip route add blackhole default table 77")
	r.run("ip rule add from all priority 90 table 77")
	requireIntegrity(t, b, backends.Intact)
	r.run("ip -6 rule del priority 107")
	requireIntegrity(t, b, backends.Broken)
	applied(t, e, perFamily("10.244.1.1"))
	require.Contains(t, r.run("ip -6 rule"), "fwmark 0xfd200000")
	requireIntegrity(t, b, backends.Intact)
}

// A node that serves one family has no chain, hook, rule, route or virtual server of the other
// family, even if it served both before. The table ip stays, because it has the version.
func TestTheFamiliesOfAnInstanceChange(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	b := r.backend()
	e := dataplane.New(b, nil)
	node := goldenNode()
	for _, only := range []sm.Family{sm.IPv4, 0, sm.IPv6, 0, sm.IPv4, sm.IPv6, sm.IPv4} {
		node.OnlyFamily = only
		r.apply(e, perFamily("10.244.1.1").WithNode(node))
		requireIntegrity(t, b, backends.Intact, only)

		rules, servers := sm.Rules{OnlyFamily: only}, strings.Join(r.servers(), "\n")
		ruleset, tables := r.run("nft list ruleset"), r.run("nft list tables")
		for _, f := range []struct {
			*nft.Family
			ip, address string
		}{{nft.IPv4, "ip -4", "10.96.0.10:80"}, {nft.IPv6, "ip -6", "[fd00:10:96::66]:80"}} {
			served := f.ServedBy(&rules)
			require.Equal(t, served, strings.Contains(servers, f.address), "%v of %v", f.Name, only)
			require.Equal(t, served, strings.Contains(r.run(f.ip+" rule"), "fwmark"))
			require.Equal(t, served,
				strings.Contains(r.run(f.ip+" route show table all"), "local default"))
			require.Equal(t, served || f.Family == nft.IPv4,
				strings.Contains(tables, "table "+f.Name+" "+defaultTable))
			_, table, _ := strings.Cut(ruleset, "table "+f.Name+" "+defaultTable+" {\n")
			table, _, _ = strings.Cut(table, "\n}\n")
			require.Equal(t, served, strings.Contains(table, "hook"))
		}
	}

	// A route that another program brings back is drift. The next reading finds it.
	r.run(fmt.Sprintf("ip -6 route add local default dev lo table %d",
		instanceNumber(b.pl.instance)))
	observed := ok(b.Observe(t.Context(), nil))(t)
	require.Len(t, observed.Drift, 1)
	require.Contains(t, observed.Drift[0], "leads IPv6 packets to IPVS")
	r.apply(e, perFamily("10.244.1.2").WithNode(node))
	require.NotContains(t, r.run("ip -6 route show table all"), "local default")
	cleanUp(t, e)
	require.NotContains(t, r.run("nft list tables"), "kernlb")
}
