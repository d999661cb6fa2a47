package conntrack

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

const client = "10.0.0.1:4000"

// dns is a change of a DNS service: one endpoint was replaced.
func dns() Change {
	left, vip6 := aps("10.244.0.6:5353", "10.244.0.7:5353"), aps("[fd00:244::6]:5353")
	return Change{
		NodeAddrs: []netip.Addr{addr("192.0.2.10"), addr("192.0.2.11"), addr("2001:db8::10")},
		Frontends: []Frontend{
			{Key: FrontendKey{addr("10.96.0.10"), 53, UDP}, Endpoints: left, Untranslated: true},
			{Key: FrontendKey{addr("203.0.113.5"), 53, UDP}, Endpoints: left, Untranslated: true},
			{Key: FrontendKey{addr("0.0.0.0"), 30053, UDP}, Endpoints: left, Untranslated: true},
			{Key: FrontendKey{addr("::"), 30053, UDP}, Endpoints: vip6, Untranslated: true},
			{Key: FrontendKey{addr("fd00:96::10"), 53, UDP}, Endpoints: vip6, Untranslated: true},
			// Gone: the service's second port was removed.
			{Key: FrontendKey{addr("10.96.0.10"), 54, UDP}},
			// TCP connections to one endpoint are cut; another endpoint is being drained.
			{Key: FrontendKey{addr("10.96.0.10"), 80, TCP}, Endpoints: aps("10.244.0.6:8080"),
				Removed: aps("10.244.0.5:8080")},
			// Another service has a node port's number on an address of the node. It did not
			// change.
			{Key: FrontendKey{addr("192.0.2.11"), 30053, UDP}, Removed: []netip.AddrPort{}},
		},
	}
}

func TestClassify(t *testing.T) {
	t.Parallel()
	zoned := flow(UDP, client, "10.96.0.10:53", "10.244.0.5:5353", "")
	zoned.Original.Zone, zoned.Reply.Zone = 9, 9
	for _, tc := range []struct {
		name string
		flow Flow
		want Class
	}{
		{"an endpoint that is gone, by cluster IP", flow(UDP, client, "10.96.0.10:53",
			"10.244.0.5:5353", ""), Misdirected},
		{"the same, masqueraded", flow(UDP, client, "10.96.0.10:53", "10.244.0.5:5353",
			"192.0.2.10:1024"), Misdirected},
		{"the same, by external IP", flow(UDP, client, "203.0.113.5:53", "10.244.0.5:5353", ""),
			Misdirected},
		{"the same, by node port", flow(UDP, client, "192.0.2.10:30053", "10.244.0.5:5353",
			"192.0.2.10:1024"), Misdirected},
		{"the same, over IPv6", flow(UDP, "[fd00::1]:4000", "[fd00:96::10]:53",
			"[fd00:244::5]:5353", ""), Misdirected},
		{"the same, by node port over IPv6", flow(UDP, "[fd00::1]:4000", "[2001:db8::10]:30053",
			"[fd00:244::5]:5353", ""), Misdirected},
		{"the right address but another port", flow(UDP, client, "10.96.0.10:53", "10.244.0.6:53",
			""), Misdirected},
		{"an endpoint that stays", flow(UDP, client, "10.96.0.10:53", "10.244.0.6:5353", ""),
			Current},
		{"an endpoint that stays, by node port", flow(UDP, client, "192.0.2.10:30053",
			"10.244.0.7:5353", "192.0.2.10:1024"), Current},

		{"from before there were rules", flow(UDP, client, "10.96.0.10:53", "", ""), Untranslated},
		{"the same, masqueraded on its way out", flow(UDP, client, "10.96.0.10:53", "",
			"192.0.2.10:1024"), Untranslated},
		{"a process of the node had the node port", flow(UDP, client, "192.0.2.10:30053", "", ""),
			Untranslated},

		{"a removed frontend, translated", flow(UDP, client, "10.96.0.10:54", "10.244.0.5:5353",
			""), Misdirected},
		{"a removed frontend, untranslated: not ours", flow(UDP, client, "10.96.0.10:54", "", ""),
			Current},

		{"TCP to the endpoint to be cut", flow(TCP, client, "10.96.0.10:80", "10.244.0.5:8080", ""),
			Misdirected},
		{"TCP to the endpoint that is drained", flow(TCP, client, "10.96.0.10:80",
			"10.244.0.4:8080", ""), Current},
		{"TCP untranslated, not asked for", flow(TCP, client, "10.96.0.10:80", "", ""), Current},

		{"looks alike: the same numbers over TCP", flow(TCP, client, "10.96.0.10:53",
			"10.244.0.5:5353", ""), Unrelated},
		{"looks alike: another service of the endpoint", flow(UDP, client, "10.96.0.99:53",
			"10.244.0.5:5353", ""), Unrelated},
		{"looks alike: straight to the endpoint", flow(UDP, client, "10.244.0.5:5353", "", ""),
			Unrelated},
		{"looks alike: a pod asks a server on the node port's number",
			flow(UDP, "10.244.0.9:4000", "198.51.100.7:30053", "", "192.0.2.10:4000"), Unrelated},
		{"looks alike: a node port of another node, from here",
			flow(UDP, "10.244.0.9:4000", "192.0.2.99:30053", "", "192.0.2.10:4000"), Unrelated},
		{"looks alike: the node asks from the node port's number",
			flow(UDP, "192.0.2.10:30053", "198.51.100.7:53", "", ""), Unrelated},
		{"looks alike: the endpoint asks from its port",
			flow(UDP, "10.244.0.5:5353", "10.0.0.1:4000", "", ""), Unrelated},
		{"looks alike: the frontend's address asks", flow(UDP, "10.96.0.10:53", "10.0.0.1:4000", "",
			""), Unrelated},
		{"looks alike: another port of the frontend", flow(UDP, client, "10.96.0.10:5353",
			"10.244.0.5:5353", ""), Unrelated},
		{"looks alike: in another zone", zoned, Unrelated},
		{"looks alike: another service on a node address with the node port's number",
			flow(UDP, client, "192.0.2.11:30053", "10.244.0.5:5353", ""), Current},
	} {
		m, err := NewMatcher(dns())
		require.NoError(t, err)
		require.Equal(t, tc.want, m.Classify(&tc.flow), "%s: %s", tc.name, tc.flow)
	}
}

// A late answer made a flow of its own, in which the client's packets pass for answers.
func TestClassifyFlowsThatAreBackwards(t *testing.T) {
	t.Parallel()
	c := dns()
	for i := range c.Frontends {
		c.Frontends[i].Backwards = c.Frontends[i].Untranslated
	}
	m, err := NewMatcher(c)
	require.NoError(t, err)
	for _, tc := range []struct {
		name string
		flow Flow
		want Class
	}{
		{"from the frontend's own address and port", flow(UDP, "10.96.0.10:53", "10.0.0.1:4000", "",
			""), Backwards},
		{"the same, over IPv6", flow(UDP, "[fd00:96::10]:53", "[fd00::1]:4000", "", ""), Backwards},
		{"from another port", flow(UDP, "10.96.0.10:5353", "10.0.0.1:4000", "", ""), Unrelated},
		{"from a frontend that was removed", flow(UDP, "10.96.0.10:54", "10.0.0.1:4000", "", ""),
			Unrelated},
		{"translated on its way", flow(UDP, "10.96.0.10:53", "10.0.0.1:4000", "10.0.0.2:4000", ""),
			Unrelated},
		{"the node asks from the node port's number",
			flow(UDP, "192.0.2.10:30053", "198.51.100.7:53", "", ""), Unrelated},
		{"the node asks from where another service answers",
			flow(UDP, "192.0.2.11:30053", "198.51.100.7:53", "", ""), Unrelated},
		{"of another protocol", flow(TCP, "10.96.0.10:53", "10.0.0.1:4000", "", ""), Unrelated},
	} {
		require.Equal(t, tc.want, m.Classify(&tc.flow), "%s: %s", tc.name, tc.flow)
	}
	require.Equal(t, m.dumps(ScanProtocol), m.dumps(ScanNarrow),
		"the kernel cannot look at both ends")
}

func TestMatcherOfAZone(t *testing.T) {
	t.Parallel()
	c := dns()
	c.Zone = 9
	m, err := NewMatcher(c)
	require.NoError(t, err)
	f := flow(UDP, client, "10.96.0.10:53", "10.244.0.5:5353", "")
	require.Equal(t, Unrelated, m.Classify(&f))
	f.Original.Zone = 9
	require.Equal(t, Misdirected, m.Classify(&f))
}

func TestMatcherThatFindsNothingIsEmpty(t *testing.T) {
	t.Parallel()
	vip := FrontendKey{addr("10.96.0.10"), 53, UDP}
	for _, tc := range []struct {
		name      string
		frontends []Frontend
		want      bool
	}{
		{"no frontends", nil, true},
		{"only a frontend that is protected", []Frontend{{Key: vip, Removed: []netip.AddrPort{}}}, true},
		{"a frontend of which an endpoint is removed",
			[]Frontend{{Key: vip, Removed: aps("10.244.0.5:53")}}, false},
		{"a frontend without endpoints", []Frontend{{Key: vip}}, false},
		{"a frontend that wants no untranslated flows",
			[]Frontend{{Key: vip, Removed: []netip.AddrPort{}, Untranslated: true}}, false},
	} {
		m, err := NewMatcher(Change{Frontends: tc.frontends})
		require.NoError(t, err, tc.name)
		require.Equal(t, tc.want, m.Empty(), tc.name)
		if tc.want {
			require.Empty(t, m.dumps(ScanAll), tc.name)
		}
	}
}

func TestChangesThatMakeNoSense(t *testing.T) {
	t.Parallel()
	vip := FrontendKey{addr("10.96.0.10"), 53, UDP}
	for _, tc := range []struct {
		want   string
		change Change
	}{
		{"NodeAddrs[1]: invalid IP is not the address of a node",
			Change{NodeAddrs: []netip.Addr{addr("192.0.2.1"), {}}}},
		{"NodeAddrs[0]: :: is not the address of a node",
			Change{NodeAddrs: []netip.Addr{addr("::")}}},
		{"Frontends[0]: no Key.Addr", Change{Frontends: []Frontend{{}}}},
		{"Frontends[0]: 10.96.0.10:0/udp: no Key.Port",
			Change{Frontends: []Frontend{{Key: FrontendKey{Addr: vip.Addr, Protocol: UDP}}}}},
		{"10.96.0.10:53/icmp: Key.Protocol is not",
			Change{Frontends: []Frontend{{Key: FrontendKey{vip.Addr, 53, ICMP}}}}},
		{"Frontends[1]: 10.96.0.10:53/udp is there twice", Change{Frontends: []Frontend{
			{Key: vip}, {Key: FrontendKey{addr("::ffff:10.96.0.10"), 53, UDP}},
		}}},
		{"10.96.0.10:53/udp: Endpoints: [fd00::1]:53 is not an endpoint of the frontend's " +
			"family",
			Change{Frontends: []Frontend{{Key: vip, Endpoints: aps("10.0.0.1:53", "[fd00::1]:53")}}}},
		{"10.96.0.10:53/udp: Removed: 10.0.0.1:0 is not an endpoint",
			Change{Frontends: []Frontend{{Key: vip, Removed: aps("10.0.0.1:0")}}}},
	} {
		_, err := NewMatcher(tc.change)
		require.ErrorIs(t, err, ErrBadChange)
		require.ErrorContains(t, err, tc.want)
	}
}

func TestMatcherDumps(t *testing.T) {
	t.Parallel()
	v4 := func(d dumpRequest) dumpRequest { d.family = IPv4; return d }
	v6 := func(d dumpRequest) dumpRequest { d.family = IPv6; return d }
	m, err := NewMatcher(dns())
	require.NoError(t, err)
	require.Equal(t, []dumpRequest{
		v4(dumpRequest{protocol: TCP, dstPort: 80, dst: addr("10.96.0.10")}),
		v4(dumpRequest{protocol: UDP, dstPort: 53}), // two addresses
		v4(dumpRequest{protocol: UDP, dstPort: 54, dst: addr("10.96.0.10")}),
		v4(dumpRequest{protocol: UDP, dstPort: 30053}),
		v6(dumpRequest{protocol: UDP, dstPort: 53}), // the kernel cannot compare IPv6 addresses
		v6(dumpRequest{protocol: UDP, dstPort: 30053}),
	}, m.dumps(ScanNarrow))
	require.Equal(t, []dumpRequest{
		v4(dumpRequest{protocol: TCP}), v4(dumpRequest{protocol: UDP}),
		v6(dumpRequest{protocol: UDP}),
	}, m.dumps(ScanProtocol))
	require.Equal(t, []dumpRequest{{}}, m.dumps(ScanAll))
}

// The requests of a matcher bring every flow that it finds stale, once, and its classes are those
// of one that knows no maps.
func TestMatcherAgreesWithTheDefinition(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 2))
	for range 300 {
		c := randomChange(r)
		m, err := NewMatcher(c)
		require.NoError(t, err)
		for range 100 {
			f := randomFlow(r)
			want := classifySlowly(c, &f)
			require.Equal(t, want, m.Classify(&f), "seed %d: %+v: %s", seed, c, f)
			for _, scan := range []Scan{ScanNarrow, ScanProtocol, ScanAll} {
				answers := 0
				for _, d := range m.dumps(scan) {
					if kernelMatch(d, &f) {
						answers++
					}
				}
				require.LessOrEqual(t, answers, 1, "seed %d: requests overlap", seed)
				if want.Stale() {
					require.Equal(t, 1, answers, "seed %d: %+v: %s is not asked for", seed, c, f)
				}
			}
		}
	}
}

func classifySlowly(c Change, f *Flow) Class {
	if f.Zone() != c.Zone {
		return Unrelated
	}
	exact := slices.IndexFunc(c.Frontends, func(cl Frontend) bool {
		return cl.Key == FrontendKey{f.Original.Dst.Addr(), f.Original.Dst.Port(), f.Protocol}
	})
	if exact < 0 && slices.Contains(c.NodeAddrs, f.Original.Dst.Addr()) {
		exact = slices.IndexFunc(c.Frontends, func(cl Frontend) bool {
			return cl.Key.Addr.IsUnspecified() &&
				cl.Key.Addr.Is4() == f.Original.Dst.Addr().Is4() &&
				cl.Key.Port == f.Original.Dst.Port() && cl.Key.Protocol == f.Protocol
		})
	}
	if exact < 0 {
		return Unrelated
	}
	frontend := c.Frontends[exact]
	switch {
	case slices.Contains(frontend.Endpoints, f.Reply.Src):
		return Current
	case !f.Translated() && frontend.Untranslated:
		return Untranslated
	case f.Translated() && (frontend.Removed == nil || slices.Contains(frontend.Removed, f.Reply.Src)):
		return Misdirected
	}
	return Current
}

func randomChange(r *rand.Rand) Change {
	c := Change{NodeAddrs: []netip.Addr{addr("10.0.0.2"), addr("fd00::2")}, Zone: uint16(r.IntN(2))}
	for _, a := range []string{"10.0.0.1", "10.0.0.2", "0.0.0.0", "fd00::1", "::"} {
		for _, port := range []uint16{53, 54} {
			for _, p := range []Protocol{TCP, UDP, SCTP} {
				if r.IntN(3) > 0 {
					continue
				}
				own := []netip.AddrPort{ap("10.0.0.1:53"), ap("10.0.0.2:54")}
				if addr(a).Is6() {
					own = aps("[fd00::1]:53", "[fd00::2]:54")
				}
				frontend := Frontend{Key: FrontendKey{addr(a), port, p}, Endpoints: own[:r.IntN(3)],
					Untranslated: r.IntN(2) == 0}
				if r.IntN(2) == 0 {
					frontend.Removed = append([]netip.AddrPort{}, own[r.IntN(3):]...)
				}
				c.Frontends = append(c.Frontends, frontend)
			}
		}
	}
	return c
}
