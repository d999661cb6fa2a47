package servicemodel_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	sm "github.com/kernlb/kernlb/servicemodel"
)

// Any range is divided into at most 30 adjacent blocks, and a block of a part of a range lies in a
// block of the whole range.
func TestBlocksMakeUpTheirRange(t *testing.T) {
	t.Parallel()
	r := newSource(t)
	for range 2000 {
		k := sm.FrontendKey{Port: uint16(r.IntN(1 << 16))}
		if k.EndPort = uint16(r.IntN(1 << 16)); k.EndPort <= k.Port {
			k.EndPort = 0
		}
		next, n := int(k.Port), 0
		for b := range k.Blocks() {
			require.Equal(t, next, int(b.First), "%v", k)
			require.Zero(t, b.First&(b.Last()-b.First), "%v: %v", k, b)
			next, n = int(b.Last())+1, n+1
		}

		require.Equal(t, int(k.LastPort())+1, next)
		require.LessOrEqual(t, n, 30)
	}

	all := slices.Collect(sm.FrontendKey{EndPort: 65535}.Blocks())
	require.Equal(t, []sm.PortBlock{{}}, all)
}

// The index of a table has exactly the ranges of its frontends, whatever the history of the table.
func TestRangesAreFoundByTheirPorts(t *testing.T) {
	t.Parallel()
	r := newSource(t)
	seen := 0
	requireIndex := func(table *sm.Table) {
		t.Helper()
		at := map[netip.Addr]bool{}
		for f := range table.Frontends() {
			at[f.Key.Addr] = true
		}
		for a := range at {
			first := table.FirstRange(a)
			for _, port := range []uint16{1, 77, 78, 79, 80, 81, 82, 83, 84, 85, 300, 65535} {
				for _, p := range []sm.Protocol{sm.TCP, sm.UDP} {
					var want []*sm.Frontend
					for f := range table.Frontends() {
						if k := f.Key; k.Addr == a && k.Protocol == p && k.EndPort != 0 &&
							k.Contains(port) {
							want = append(want, f)
						}
					}

					got := table.RangesAt(a, p, port)
					require.ElementsMatch(t, want, got)
					require.True(t, slices.IsSortedFunc(got, func(x, y *sm.Frontend) int {
						return int(x.Key.EndPort-x.Key.Port) - int(y.Key.EndPort-y.Key.Port)
					}))
					require.True(t, len(want) == 0 || first != nil && first.Key.EndPort != 0)
					seen += len(want)
				}
			}
		}
	}

	for range 20 {
		s := r.state()
		table := mustResolve(t, nil, s)
		for range 5 {
			requireIndex(table)
			next := r.edit(s)
			after := mustResolve(t, table, next)
			requireIndex(table.Apply(sm.Diff(table, after)))
			again, err := sm.NewTable(after.Contents())
			require.NoError(t, err)
			requireIndex(again)
			requireIndex(after.WithoutParts("a"))
			s, table = next, after
		}
	}

	require.Positive(t, seen)
}

func TestARangeAnswersWhereNothingNarrowerDoes(t *testing.T) {
	t.Parallel()
	service := func(name string, port, end uint16) *sm.Service {
		s := at(name, "198.51.100.1")
		s.Ports[0].Port, s.Ports[0].EndPort = port, end
		return s
	}

	s := sm.State{}
	for _, svc := range []*sm.Service{service("all", 1, 65535), service("some", 100, 200),
		service("fewer", 150, 160), service("across", 190, 210), service("one", 155, 0),
		service("some-too", 100, 200)} {
		s = s.WithService(svc).WithEndpoints(svc.Name, []sm.Endpoint{endpoint("10.64.0.1",
			func(e *sm.Endpoint) { e.Ports[0].Port = 0 })})
	}

	table := mustResolve(t, nil, s)
	for port, want := range map[uint16]string{1: "all", 99: "all", 100: "some", 149: "some",
		150: "fewer", 155: "one", 160: "fewer", 161: "some", 190: "across", 201: "across",
		211: "all", 65535: "all"} {
		d := table.Decide(sm.Packet{Src: netip.MustParseAddrPort("198.51.100.7:1"),
			Dst: netip.AddrPortFrom(ip("198.51.100.1"), port), Protocol: sm.TCP}, nil)
		require.Equal(t, want, d.Frontend.Service.Name.Name, "port %d", port)
		require.Equal(t, netip.AddrPortFrom(ip("10.64.0.1"), port), d.Candidates[0].Endpoint)
	}

	require.Equal(t, []string{"198.51.100.1:100-200/tcp: default/some:http wins over " +
		"default/some-too:http"}, texts(table.Conflicts()))

	var k sm.FrontendKey
	for _, text := range []string{"198.51.100.1:1-65535/tcp", "[fd00::1]:80-81/udp",
		"*4:1-2/sctp"} {
		require.NoError(t, k.UnmarshalText([]byte(text)))
		require.Equal(t, text, k.String())
	}

	for _, text := range []string{"198.51.100.1:1-/tcp", "198.51.100.1:1-0/tcp", "*4:1-65536/tcp"} {
		require.Error(t, k.UnmarshalText([]byte(text)))
	}
}

// However published ports are listed, JoinPorts changes neither which ports a place has nor the
// order of the list, and joins exactly the runs of 16 ports and more.
// A range is mapped to a range of the same length, at all addresses and at node ports.
func TestARangeIsMappedToARange(t *testing.T) {
	t.Parallel()
	s := at("mapped", "198.51.100.1")
	s.Ports[0] = sm.ServicePort{Name: "http", Protocol: sm.TCP, Port: 8000, EndPort: 8099,
		TargetPort: 9000, NodePort: 30000}
	state := func(port uint16) sm.State {
		return sm.State{}.WithService(s).WithEndpoints(s.Name, []sm.Endpoint{endpoint("10.64.0.1",
			func(e *sm.Endpoint) { e.Ports[0].Port = port })})
	}

	for _, own := range []uint16{0, 9000} {
		table := mustResolve(t, nil, state(own))
		for to, want := range map[string]string{"198.51.100.1:8000": "10.64.0.1:9000",
			"198.51.100.1:8042": "10.64.0.1:9042", "198.51.100.1:8099": "10.64.0.1:9099",
			"192.0.2.10:30042": "10.64.0.1:9042"} {
			d := table.Decide(sm.Packet{Src: netip.MustParseAddrPort("198.51.100.7:1"),
				Dst: netip.MustParseAddrPort(to), Protocol: sm.TCP},
				sm.Locality{ip("192.0.2.10")})
			require.Equal(t, want, d.Candidates[0].Endpoint.String(), to)
		}
	}

	require.EqualError(t, state(9001).Validate(), "endpoints default/mapped: "+
		"endpoints[0].ports[0].port: 9001: must be the targetPort 9000 of the service's range, "+
		"or 0")
	require.Equal(t, uint16(9000), s.TargetPort(sm.EndpointPort{Name: "http", Protocol: sm.TCP}))
}

func TestPublishedPortsAreJoined(t *testing.T) {
	t.Parallel()
	type claim struct {
		place string
		port  uint16
		may   bool
	}
	shift := func(claim) uint16 { return 0 }
	join := func(l []claim) (ranges []sm.FrontendKey, by []int) {
		for i, end := range sm.JoinPorts(len(l), func(i int) (string, uint16, uint16, bool) {
			return l[i].place, l[i].port, l[i].port + shift(l[i]), l[i].may
		}) {
			ranges = append(ranges, sm.FrontendKey{Port: l[i].port, EndPort: end})
			by = append(by, i)
		}
		return ranges, by
	}

	var run []claim
	for port := 65535; port >= 65520; port-- {
		run = append(run, claim{"a", uint16(port), true})
	}
	keys, _ := join(run)
	require.Equal(t, []sm.FrontendKey{{Port: 65520, EndPort: 65535}}, keys)
	keys, _ = join(run[1:])
	require.Len(t, keys, 15, "too few")
	keys, _ = join(append(run, claim{"a", 65530, false}))
	require.Len(t, keys, 17, "one is there twice")
	for _, shift = range []func(c claim) uint16{func(claim) uint16 { return 8 }, // beyond 65535
		func(c claim) uint16 { return c.port % 2 }} {
		keys, _ = join(run)
		require.Len(t, keys, 16, "the endpoints' ports are not consecutive")
	}
	shift = func(claim) uint16 { return 96 }

	r := newSource(t)
	for range 300 {
		var l []claim
		times := map[claim]int{}
		for range 1 + r.IntN(200) {
			c := claim{pick(r, "a", "b"), uint16(r.IntN(90)), r.chance(98)}
			if c.port > 60 {
				c.port += 65535 - 90
			}
			if times[claim{c.place, c.port, false}] == 0 || r.chance(2) {
				l = append(l, c)
				times[claim{c.place, c.port, false}]++
			}
		}

		got := map[claim]int{}
		keys, by := join(l)
		require.True(t, slices.IsSorted(by))
		for i, k := range keys {
			for port := int(k.Port); port <= int(k.LastPort()); port++ {
				got[claim{l[by[i]].place, uint16(port), false}]++
			}
		}
		require.Equal(t, times, got)
		joins := func(place string, port int) bool {
			is := func(c claim) bool { return c.place == place && int(c.port) == port }
			i := slices.IndexFunc(l, is)
			return i >= 0 && l[i].may && times[claim{place, uint16(port), false}] == 1
		}
		for i, k := range keys {
			place, first, last := l[by[i]].place, int(k.Port), int(k.LastPort())
			if k.EndPort != 0 {
				require.False(t, joins(place, first-1) || joins(place, last+1), "%v", k)
				require.GreaterOrEqual(t, last-first, 15)
				continue
			}
			n := 0
			for port := first; joins(place, port); port-- {
				n++
			}
			for port := first + 1; joins(place, first) && joins(place, port); port++ {
				n++
			}
			require.Less(t, n, 16, "%v", k)
		}
	}
}
