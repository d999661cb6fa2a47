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
		Claims: []Claim{
			{Frontend: Frontend{addr("10.96.0.10"), 53, UDP}, Backends: left, Untranslated: true},
			{Frontend: Frontend{addr("203.0.113.5"), 53, UDP}, Backends: left, Untranslated: true},
			{Frontend: Frontend{addr("0.0.0.0"), 30053, UDP}, Backends: left, Untranslated: true},
			{Frontend: Frontend{addr("::"), 30053, UDP}, Backends: vip6, Untranslated: true},
			{Frontend: Frontend{addr("fd00:96::10"), 53, UDP}, Backends: vip6, Untranslated: true},
			// Gone: the service's second port was removed.
			{Frontend: Frontend{addr("10.96.0.10"), 54, UDP}},
			// TCP connections to one endpoint are cut; another endpoint is being drained.
			{Frontend: Frontend{addr("10.96.0.10"), 80, TCP}, Backends: aps("10.244.0.6:8080"),
				Gone: aps("10.244.0.5:8080")},
			// Another service has a node port's number on an address of the node. It did not
			// change.
			{Frontend: Frontend{addr("192.0.2.11"), 30053, UDP}, Gone: []netip.AddrPort{}},
		},
	}
}

func TestJudge(t *testing.T) {
	t.Parallel()
	zoned := flow(UDP, client, "10.96.0.10:53", "10.244.0.5:5353", "")
	zoned.Original.Zone, zoned.Reply.Zone = 9, 9
	for _, tc := range []struct {
		name string
		flow Flow
		want Verdict
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
			"10.244.0.5:5353", ""), Unclaimed},
		{"looks alike: another service of the endpoint", flow(UDP, client, "10.96.0.99:53",
			"10.244.0.5:5353", ""), Unclaimed},
		{"looks alike: straight to the endpoint", flow(UDP, client, "10.244.0.5:5353", "", ""),
			Unclaimed},
		{"looks alike: a pod asks a server on the node port's number",
			flow(UDP, "10.244.0.9:4000", "198.51.100.7:30053", "", "192.0.2.10:4000"), Unclaimed},
		{"looks alike: a node port of another node, from here",
			flow(UDP, "10.244.0.9:4000", "192.0.2.99:30053", "", "192.0.2.10:4000"), Unclaimed},
		{"looks alike: the node asks from the node port's number",
			flow(UDP, "192.0.2.10:30053", "198.51.100.7:53", "", ""), Unclaimed},
		{"looks alike: the endpoint asks from its port",
			flow(UDP, "10.244.0.5:5353", "10.0.0.1:4000", "", ""), Unclaimed},
		{"looks alike: the frontend's address asks", flow(UDP, "10.96.0.10:53", "10.0.0.1:4000", "",
			""), Unclaimed},
		{"looks alike: another port of the frontend", flow(UDP, client, "10.96.0.10:5353",
			"10.244.0.5:5353", ""), Unclaimed},
		{"looks alike: in another zone", zoned, Unclaimed},
		{"looks alike: another service on a node address with the node port's number",
			flow(UDP, client, "192.0.2.11:30053", "10.244.0.5:5353", ""), Current},
	} {
		m, err := NewMatcher(dns())
		require.NoError(t, err)
		require.Equal(t, tc.want, m.Judge(&tc.flow), "%s: %s", tc.name, tc.flow)
	}
}

// A late answer made a flow of its own, in which the client's packets pass for answers.
func TestJudgeFlowsThatAreBackwards(t *testing.T) {
	t.Parallel()
	c := dns()
	for i := range c.Claims {
		c.Claims[i].Backwards = c.Claims[i].Untranslated
	}
	m, err := NewMatcher(c)
	require.NoError(t, err)
	for _, tc := range []struct {
		name string
		flow Flow
		want Verdict
	}{
		{"from the frontend's own address and port", flow(UDP, "10.96.0.10:53", "10.0.0.1:4000", "",
			""), Backwards},
		{"the same, over IPv6", flow(UDP, "[fd00:96::10]:53", "[fd00::1]:4000", "", ""), Backwards},
		{"from another port", flow(UDP, "10.96.0.10:5353", "10.0.0.1:4000", "", ""), Unclaimed},
		{"from a frontend that was removed", flow(UDP, "10.96.0.10:54", "10.0.0.1:4000", "", ""),
			Unclaimed},
		{"translated on its way", flow(UDP, "10.96.0.10:53", "10.0.0.1:4000", "10.0.0.2:4000", ""),
			Unclaimed},
		{"the node asks from the node port's number",
			flow(UDP, "192.0.2.10:30053", "198.51.100.7:53", "", ""), Unclaimed},
		{"the node asks from where another service answers",
			flow(UDP, "192.0.2.11:30053", "198.51.100.7:53", "", ""), Unclaimed},
		{"of another protocol", flow(TCP, "10.96.0.10:53", "10.0.0.1:4000", "", ""), Unclaimed},
	} {
		require.Equal(t, tc.want, m.Judge(&tc.flow), "%s: %s", tc.name, tc.flow)
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
	require.Equal(t, Unclaimed, m.Judge(&f))
	f.Original.Zone = 9
	require.Equal(t, Misdirected, m.Judge(&f))
}

func TestMatcherThatFindsNothingIsEmpty(t *testing.T) {
	t.Parallel()
	vip := Frontend{addr("10.96.0.10"), 53, UDP}
	for _, tc := range []struct {
		name   string
		claims []Claim
		want   bool
	}{
		{"no claims", nil, true},
		{"only a claim that protects", []Claim{{Frontend: vip, Gone: []netip.AddrPort{}}}, true},
		{"a claim that takes an endpoint away",
			[]Claim{{Frontend: vip, Gone: aps("10.244.0.5:53")}}, false},
		{"a claim without endpoints", []Claim{{Frontend: vip}}, false},
		{"a claim on untranslated flows",
			[]Claim{{Frontend: vip, Gone: []netip.AddrPort{}, Untranslated: true}}, false},
	} {
		m, err := NewMatcher(Change{Claims: tc.claims})
		require.NoError(t, err, tc.name)
		require.Equal(t, tc.want, m.Empty(), tc.name)
		if tc.want {
			require.Empty(t, m.dumps(ScanAll), tc.name)
		}
	}
}

func TestClaimsThatMakeNoSense(t *testing.T) {
	t.Parallel()
	vip := Frontend{addr("10.96.0.10"), 53, UDP}
	for _, tc := range []struct {
		want   string
		change Change
	}{
		{"NodeAddrs[1]: invalid IP is not the address of a node",
			Change{NodeAddrs: []netip.Addr{addr("192.0.2.1"), {}}}},
		{"NodeAddrs[0]: :: is not the address of a node",
			Change{NodeAddrs: []netip.Addr{addr("::")}}},
		{"Claims[0]: no Frontend.Addr", Change{Claims: []Claim{{}}}},
		{"Claims[0]: no Frontend.Port",
			Change{Claims: []Claim{{Frontend: Frontend{Addr: vip.Addr, Protocol: UDP}}}}},
		{"the Frontend.Protocol of 10.96.0.10:53/icmp is not",
			Change{Claims: []Claim{{Frontend: Frontend{vip.Addr, 53, ICMP}}}}},
		{"Claims[1]: the Frontend 10.96.0.10:53/udp is claimed twice", Change{Claims: []Claim{
			{Frontend: vip}, {Frontend: Frontend{addr("::ffff:10.96.0.10"), 53, UDP}},
		}}},
		{"in Backends of 10.96.0.10:53/udp: [fd00::1]:53 is not an endpoint of the frontend's " +
			"family",
			Change{Claims: []Claim{{Frontend: vip, Backends: aps("10.0.0.1:53", "[fd00::1]:53")}}}},
		{"in Gone of 10.96.0.10:53/udp: 10.0.0.1:0 is not an endpoint",
			Change{Claims: []Claim{{Frontend: vip, Gone: aps("10.0.0.1:0")}}}},
	} {
		_, err := NewMatcher(tc.change)
		require.ErrorIs(t, err, ErrBadClaim)
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

// The requests of a matcher bring every flow that it finds stale, once, and its verdicts are those
// of a judge who knows no maps.
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
			want := judgeSlowly(c, &f)
			require.Equal(t, want, m.Judge(&f), "seed %d: %+v: %s", seed, c, f)
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

func judgeSlowly(c Change, f *Flow) Verdict {
	if f.Zone() != c.Zone {
		return Unclaimed
	}
	exact := slices.IndexFunc(c.Claims, func(cl Claim) bool {
		return cl.Frontend == Frontend{f.Original.Dst.Addr(), f.Original.Dst.Port(), f.Protocol}
	})
	if exact < 0 && slices.Contains(c.NodeAddrs, f.Original.Dst.Addr()) {
		exact = slices.IndexFunc(c.Claims, func(cl Claim) bool {
			return cl.Frontend.Addr.IsUnspecified() &&
				cl.Frontend.Addr.Is4() == f.Original.Dst.Addr().Is4() &&
				cl.Frontend.Port == f.Original.Dst.Port() && cl.Frontend.Protocol == f.Protocol
		})
	}
	if exact < 0 {
		return Unclaimed
	}
	claim := c.Claims[exact]
	switch {
	case slices.Contains(claim.Backends, f.Reply.Src):
		return Current
	case !f.Translated() && claim.Untranslated:
		return Untranslated
	case f.Translated() && (claim.Gone == nil || slices.Contains(claim.Gone, f.Reply.Src)):
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
				claim := Claim{Frontend: Frontend{addr(a), port, p}, Backends: own[:r.IntN(3)],
					Untranslated: r.IntN(2) == 0}
				if r.IntN(2) == 0 {
					claim.Gone = append([]netip.AddrPort{}, own[r.IntN(3):]...)
				}
				c.Claims = append(c.Claims, claim)
			}
		}
	}
	return c
}
