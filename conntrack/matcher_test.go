package conntrack_test

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	. "github.com/kernlb/kernlb/conntrack"
	. "github.com/kernlb/kernlb/internal/test/cttest"
)

// classified are flows and their classes after the change dns.
var classified = []struct {
	name string
	flow Flow
	want Class
}{
	{"an endpoint that is gone, by cluster IP",
		udpTo("10.96.0.10:53", "10.244.0.5:5353", ""), Misdirected},
	{"the same, masqueraded",
		udpTo("10.96.0.10:53", "10.244.0.5:5353", "192.0.2.10:1024"), Misdirected},
	{"the same, by external IP", udpTo("203.0.113.5:53", "10.244.0.5:5353", ""), Misdirected},
	{"the same, by node port",
		udpTo("192.0.2.10:30053", "10.244.0.5:5353", "192.0.2.10:1024"), Misdirected},
	{"the same, over IPv6",
		NewFlow(UDP, "[fd00::1]:4000", "[fd00:96::10]:53", "[fd00:244::5]:5353", ""), Misdirected},
	{"the same, by node port over IPv6",
		NewFlow(UDP, "[fd00::1]:4000", "[2001:db8::10]:30053", "[fd00:244::5]:5353", ""),
		Misdirected},
	{"the right address but another port",
		udpTo("10.96.0.10:53", "10.244.0.6:53", ""), Misdirected},
	{"an endpoint that stays", udpTo("10.96.0.10:53", "10.244.0.6:5353", ""), Current},
	{"an endpoint that stays, by node port",
		udpTo("192.0.2.10:30053", "10.244.0.7:5353", "192.0.2.10:1024"), Current},

	{"from before there were rules", udpTo("10.96.0.10:53", "", ""), Untranslated},
	{"the same, masqueraded on its way out",
		udpTo("10.96.0.10:53", "", "192.0.2.10:1024"), Untranslated},
	{"a process of the node had the node port", udpTo("192.0.2.10:30053", "", ""), Untranslated},

	{"a removed frontend, translated", udpTo("10.96.0.10:54", "10.244.0.5:5353", ""), Misdirected},
	{"a removed frontend, untranslated: not ours", udpTo("10.96.0.10:54", "", ""), Current},

	{"TCP to the endpoint to be cut",
		NewFlow(TCP, Client, "10.96.0.10:80", "10.244.0.5:8080", ""), Misdirected},
	{"TCP to the endpoint that is drained",
		NewFlow(TCP, Client, "10.96.0.10:80", "10.244.0.4:8080", ""), Current},
	{"TCP untranslated, not asked for", NewFlow(TCP, Client, "10.96.0.10:80", "", ""), Current},

	{"looks alike: the same numbers over TCP",
		NewFlow(TCP, Client, "10.96.0.10:53", "10.244.0.5:5353", ""), Unrelated},
	{"looks alike: another service of the endpoint",
		udpTo("10.96.0.99:53", "10.244.0.5:5353", ""), Unrelated},
	{"looks alike: straight to the endpoint", udpTo("10.244.0.5:5353", "", ""), Unrelated},
	{"looks alike: a pod asks a server on the node port's number",
		NewFlow(UDP, "10.244.0.9:4000", "198.51.100.7:30053", "", "192.0.2.10:4000"), Unrelated},
	{"looks alike: a node port of another node, from here",
		NewFlow(UDP, "10.244.0.9:4000", "192.0.2.99:30053", "", "192.0.2.10:4000"), Unrelated},
	{"looks alike: the node asks from the node port's number",
		NewFlow(UDP, "192.0.2.10:30053", "198.51.100.7:53", "", ""), Unrelated},
	{"looks alike: the endpoint asks from its port",
		NewFlow(UDP, "10.244.0.5:5353", "10.0.0.1:4000", "", ""), Unrelated},
	{"looks alike: the frontend's address asks",
		NewFlow(UDP, "10.96.0.10:53", "10.0.0.1:4000", "", ""), Unrelated},
	{"looks alike: another port of the frontend",
		udpTo("10.96.0.10:5353", "10.244.0.5:5353", ""), Unrelated},
	{"looks alike: in another zone", inZone(9), Unrelated},
	{"looks alike: another service on a node address with the node port's number",
		udpTo("192.0.2.11:30053", "10.244.0.5:5353", ""), Current},
}

// udpTo is a UDP flow of the usual client.
func udpTo(dst, endpoint, seen string) Flow { return NewFlow(UDP, Client, dst, endpoint, seen) }

func inZone(zone uint16) Flow {
	f := udpTo("10.96.0.10:53", "10.244.0.5:5353", "")
	f.Original.Zone, f.Reply.Zone = zone, zone
	return f
}

func TestClassify(t *testing.T) {
	t.Parallel()
	m := matcherOf(t, DNSChange())
	for _, tc := range classified {
		require.Equal(t, tc.want, Class(m.Classify(&tc.flow)), "%s: %s", tc.name, tc.flow)
	}
}

// A late answer made a new flow, and the client's packets count as its replies.
func TestClassifyFlowsThatAreBackwards(t *testing.T) {
	t.Parallel()
	c := DNSChange()
	for i := range c.Frontends {
		c.Frontends[i].Backwards = c.Frontends[i].Untranslated
	}
	m := matcherOf(t, c)
	for _, tc := range []struct {
		name string
		flow Flow
		want Class
	}{
		{"from the frontend's own address and port",
			NewFlow(UDP, "10.96.0.10:53", "10.0.0.1:4000", "", ""), Backwards},
		{"the same, over IPv6",
			NewFlow(UDP, "[fd00:96::10]:53", "[fd00::1]:4000", "", ""), Backwards},
		{"from another port", NewFlow(UDP, "10.96.0.10:5353", "10.0.0.1:4000", "", ""), Unrelated},
		{"from a frontend that was removed", NewFlow(UDP, "10.96.0.10:54", "10.0.0.1:4000", "", ""),
			Unrelated},
		{"translated on its way",
			NewFlow(UDP, "10.96.0.10:53", "10.0.0.1:4000", "10.0.0.2:4000", ""), Unrelated},
		{"the node asks from the node port's number",
			NewFlow(UDP, "192.0.2.10:30053", "198.51.100.7:53", "", ""), Unrelated},
		{"the node asks from where another service answers",
			NewFlow(UDP, "192.0.2.11:30053", "198.51.100.7:53", "", ""), Unrelated},
		{"of another protocol", NewFlow(TCP, "10.96.0.10:53", "10.0.0.1:4000", "", ""), Unrelated},
	} {
		require.Equal(t, tc.want, Class(m.Classify(&tc.flow)), "%s: %s", tc.name, tc.flow)
	}
	require.Equal(t, m.Dumps(ScanProtocol), m.Dumps(ScanNarrow),
		"the kernel cannot look at both ends")
}

func TestMatcherOfAZone(t *testing.T) {
	t.Parallel()
	c := DNSChange()
	c.Zone = 9
	m := matcherOf(t, c)
	f := NewFlow(UDP, Client, "10.96.0.10:53", "10.244.0.5:5353", "")
	require.Equal(t, Unrelated, Class(m.Classify(&f)))
	f.Original.Zone = 9
	require.Equal(t, Misdirected, Class(m.Classify(&f)))
}

func TestMatcherThatFindsNothingIsEmpty(t *testing.T) {
	t.Parallel()
	vip := Key("10.96.0.10:53", UDP)
	for _, tc := range []struct {
		name      string
		frontends []Frontend
		want      bool
	}{
		{"no frontends", nil, true},
		{"only a frontend that is protected",
			[]Frontend{{Key: vip, Removed: []netip.AddrPort{}}}, true},
		{"a frontend of which an endpoint is removed",
			[]Frontend{{Key: vip, Removed: AddrPorts("10.244.0.5:53")}}, false},
		{"a frontend without endpoints", []Frontend{{Key: vip}}, false},
		{"a frontend that wants no untranslated flows",
			[]Frontend{{Key: vip, Removed: []netip.AddrPort{}, Untranslated: true}}, false},
	} {
		m, err := NewMatcher(Change{Frontends: tc.frontends})
		require.NoError(t, err, tc.name)
		require.Equal(t, tc.want, m.Empty(), tc.name)
		if tc.want {
			require.Empty(t, m.Dumps(ScanAll), tc.name)
		}
	}
}

func TestChangesThatMakeNoSense(t *testing.T) {
	t.Parallel()
	vip := Key("10.96.0.10:53", UDP)
	for _, tc := range []struct {
		want   string
		change Change
	}{
		{"NodeAddrs[1]: invalid IP is not the address of a node",
			Change{NodeAddrs: []netip.Addr{Addr("192.0.2.1"), {}}}},
		{"NodeAddrs[0]: :: is not the address of a node",
			Change{NodeAddrs: []netip.Addr{Addr("::")}}},
		{"Frontends[0]: no Key.Addr", Change{Frontends: []Frontend{{}}}},
		{"Frontends[0]: 10.96.0.10:0/udp: no Key.Port",
			Change{Frontends: []Frontend{{Key: FrontendKey{Addr: vip.Addr, Protocol: UDP}}}}},
		{"10.96.0.10:53/icmp: Key.Protocol is not",
			Change{Frontends: []Frontend{{Key: Key("10.96.0.10:53", ICMP)}}}},
		{"Frontends[1]: 10.96.0.10:53/udp is there twice", Change{Frontends: []Frontend{
			{Key: vip}, {Key: Key("[::ffff:10.96.0.10]:53", UDP)},
		}}},
		{"10.96.0.10:53/udp: Endpoints: [fd00::1]:53 is not an endpoint of the frontend's " +
			"family",
			Change{Frontends: []Frontend{
				{Key: vip, Endpoints: AddrPorts("10.0.0.1:53", "[fd00::1]:53")}}}},
		{"10.96.0.10:53/udp: Removed: 10.0.0.1:0 is not an endpoint",
			Change{Frontends: []Frontend{{Key: vip, Removed: AddrPorts("10.0.0.1:0")}}}},
	} {
		good := Key("10.96.0.77:53", UDP)
		tc.change.Frontends = append(tc.change.Frontends, Frontend{Key: good})
		m, err := NewMatcher(tc.change)
		require.ErrorIs(t, err, ErrBadChange)
		require.ErrorContains(t, err, tc.want)
		require.Len(t, m.Dumps(ScanNarrow), 1, "the rest is looked for")
	}
}

func TestMatcherDumps(t *testing.T) {
	t.Parallel()
	v4 := func(d DumpRequest) DumpRequest { d.Family = IPv4; return d }
	v6 := func(d DumpRequest) DumpRequest { d.Family = IPv6; return d }
	m := matcherOf(t, DNSChange())
	require.Equal(t, []DumpRequest{
		v4(DumpRequest{Protocol: TCP, DstPort: 80, Dst: Addr("10.96.0.10")}),
		v4(DumpRequest{Protocol: UDP, DstPort: 53}), // two addresses
		v4(DumpRequest{Protocol: UDP, DstPort: 54, Dst: Addr("10.96.0.10")}),
		v4(DumpRequest{Protocol: UDP, DstPort: 30053}),
		v6(DumpRequest{Protocol: UDP, DstPort: 53}), // the kernel cannot compare IPv6 addresses
		v6(DumpRequest{Protocol: UDP, DstPort: 30053}),
	}, m.Dumps(ScanNarrow))
	require.Equal(t, []DumpRequest{
		v4(DumpRequest{Protocol: TCP}), v4(DumpRequest{Protocol: UDP}),
		v6(DumpRequest{Protocol: UDP}),
	}, m.Dumps(ScanProtocol))
	require.Equal(t, []DumpRequest{{}}, m.Dumps(ScanAll))
}

// The requests of a matcher find every stale flow exactly once. Its classes are those of a plain
// implementation without maps.
func TestMatcherAgreesWithTheDefinition(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 2))
	for range 300 {
		c := RandomChange(r)
		m := matcherOf(t, c)
		for range 100 {
			f := RandomFlow(r)
			want := Classify(c, &f)
			require.Equal(t, want, Class(m.Classify(&f)), "seed %d: %+v: %s", seed, c, f)
			for _, scan := range []Scan{ScanNarrow, ScanProtocol, ScanAll} {
				answers := 0
				for _, d := range m.Dumps(scan) {
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

// matcherOf returns the matcher of a valid change.
func matcherOf(tb testing.TB, c Change) *Matcher {
	tb.Helper()
	m := OK(NewMatcher(c))(tb)
	return m
}
