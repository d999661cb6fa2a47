package conntrack_test

import (
	"math/rand/v2"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	. "github.com/kernlb/kernlb/conntrack"
	. "github.com/kernlb/kernlb/internal/test/cttest"
	"github.com/kernlb/kernlb/internal/test/must"
)

func TestClassify(t *testing.T) {
	t.Parallel()
	requireClasses(t, matcherOf(t, DNSChange()), "testdata/classes.txt")
}

func TestClassifyFlowsThatAreBackwards(t *testing.T) {
	t.Parallel()
	c := DNSChange()
	for i := range c.Frontends {
		c.Frontends[i].Backwards = c.Frontends[i].Untranslated
	}
	m := matcherOf(t, c)
	requireClasses(t, m, "testdata/classes-backwards.txt")
	require.Equal(t, m.Dumps(ScanProtocol), m.Dumps(ScanNarrow),
		"the kernel cannot look at both ends")
}

// requireClasses requires that flows have the classes that a file lists.
func requireClasses(t *testing.T, m *Matcher, file string) {
	t.Helper()
	protocols := map[string]Protocol{"tcp": TCP, "udp": UDP}
	for line := range strings.Lines(string(must.OK(os.ReadFile(file))(t))) {
		if line[0] == '#' {
			continue
		}
		f := strings.Fields(line)
		for i, dash := range f[:6] {
			if dash == "-" {
				f[i] = ""
			}
		}

		flow := NewFlow(protocols[f[1]], f[2], f[3], f[4], f[5])
		require.Equal(t, f[0], m.Classify(&flow), line)
	}
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
		{"10.96.0.10:53-52/udp: Key.EndPort makes no range",
			Change{Frontends: []Frontend{{Key: FrontendKey{vip.Addr, 53, UDP, 52}}}}},
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

// The requests of a matcher find every stale flow exactly once. The matcher's classes are the
// classes of a plain implementation without maps.
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
