package servicemodel_test

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	sm "github.com/kernlb/kernlb/servicemodel"
)

func prefers(what string) func(*sm.Service) {
	return func(s *sm.Service) { s.Prefer = what }
}

func inZone(zone string) func(*sm.Endpoint) { return func(e *sm.Endpoint) { e.Zone = zone } }

// population returns ready and unready endpoints in each of the three levels of thisNode.
func population(ready, unready [3]int) (eps []sm.Endpoint) {
	for l := range ready {
		for i := range ready[l] + unready[l] {
			e := endpoint(fmt.Sprintf("10.64.%d.%d", l, i), inZone("z2"))
			if l < 2 {
				e.Zone = "z1"
			}
			if l == 0 {
				e.Node = "here"
			}
			if i >= ready[l] {
				e.Condition = sm.NotReady
			}
			eps = append(eps, e)
		}
	}

	return eps
}

// levelShares returns the fraction of the traffic that each level gets.
func levelShares(t *sm.Table) (shares [3]float64) {
	p := t.Pool(sm.PoolID{Service: webHTTP, Family: sm.IPv4})
	if p == nil {
		return shares
	}
	all := 0.
	for _, s := range p.Slots {
		all += float64(s.Weight)
	}
	for _, s := range p.Slots {
		shares[s.Endpoint.Addr().As4()[2]] += float64(s.Weight) / all
	}
	return shares
}

// The examples with two and with three levels of Envoy's documentation ("Priority levels"). In the
// last example the health adds up to 98 %, and the first level gets the remainder.
func TestSharesOfLevels(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		ready [3]int // of 100
		want  string
	}{
		{[3]int{100, 100, 0}, "[100 0 0]"},
		{[3]int{72, 100, 0}, "[100 0 0]"},
		{[3]int{71, 100, 0}, "[99 1 0]"},
		{[3]int{50, 100, 0}, "[70 30 0]"},
		{[3]int{25, 100, 0}, "[35 65 0]"},
		{[3]int{0, 100, 0}, "[0 100 0]"},
		{[3]int{72, 72, 100}, "[100 0 0]"},
		{[3]int{71, 71, 100}, "[99 1 0]"},
		{[3]int{50, 50, 100}, "[70 30 0]"},
		{[3]int{25, 100, 100}, "[35 65 0]"},
		{[3]int{25, 25, 100}, "[35 35 30]"},
		{[3]int{25, 25, 20}, "[37 35 28]"},
		{[3]int{1, 0, 0}, "[100 0 0]"},
		{[3]int{0, 0, 0}, "[0 0 0]"},
	} {
		var unready [3]int
		for l, n := range tt.ready {
			unready[l] = 100 - n
		}
		table := tableOf(t, thisNode, webService(prefers("node")),
			population(tt.ready, unready)...)
		var got [3]int
		for l, share := range levelShares(table) {
			got[l] = int(math.Round(100 * share))
		}
		require.Equal(t, tt.want, fmt.Sprint(got), "ready: %v", tt.ready)
	}
}

// A level whose only ready endpoint is less than 1 % of all endpoints still gets its percent.
func TestALevelWithOneOfManyReadyGetsAPercent(t *testing.T) {
	t.Parallel()
	for ready, want := range map[[3]int]float64{{1, 50, 0}: .01, {1, 0, 50}: .01, {1, 0, 0}: 1} {
		table := tableOf(t, thisNode, webService(prefers("node")),
			population(ready, [3]int{150, 0, 0})...)
		require.InDelta(t, want, levelShares(table)[0], .002, "%v", ready)
	}
}

func TestPreferredEndpoints(t *testing.T) {
	t.Parallel()
	eps := population([3]int{1, 2, 3}, [3]int{1, 1, 0})
	const pool = "default/web:http/tcp IPv4 cluster: "
	for _, tt := range []struct {
		name   string
		node   sm.Node
		prefer string
		change func([]sm.Endpoint)
		want   string
	}{
		{"this node gets 70 %, its zone the rest", thisNode, "node", nil,
			"10.64.0.0:8080 weight 14, 10.64.1.0:8080 weight 3, 10.64.1.1:8080 weight 3"},
		{"the zone, with this node in it, gets 84 %", thisNode, "zone", nil,
			"10.64.0.0:8080 weight 21, 10.64.1.0:8080 weight 21, 10.64.1.1:8080 weight 21, " +
				"10.64.2.0:8080 weight 4, 10.64.2.1:8080 weight 4, 10.64.2.2:8080 weight 4"},
		{"no preference", thisNode, "", nil, "10.64.0.0:8080, 10.64.1.0:8080, 10.64.1.1:8080, " +
			"10.64.2.0:8080, 10.64.2.1:8080, 10.64.2.2:8080"},
		{"a node without name or zone has far endpoints alone", sm.Node{}, "node", nil,
			"10.64.0.0:8080, 10.64.1.0:8080, 10.64.1.1:8080, 10.64.2.0:8080, 10.64.2.1:8080, " +
				"10.64.2.2:8080"},
		{"an endpoint that is terminating does not count", thisNode, "node",
			func(eps []sm.Endpoint) { terminating(&eps[1]) }, "10.64.0.0:8080"},
		{"one that is quiesced counts as not ready", thisNode, "node",
			func(eps []sm.Endpoint) { quiesced(&eps[1]) },
			"10.64.0.0:8080 weight 14, 10.64.1.0:8080 weight 3, 10.64.1.1:8080 weight 3"},
		{"within a level, weights count", thisNode, "node",
			func(eps []sm.Endpoint) { eps[2].Weight = 2 },
			"10.64.0.0:8080 weight 7, 10.64.1.0:8080 weight 2, 10.64.1.1:8080"},
		{"hints decide alone", thisNode, "node", func(eps []sm.Endpoint) {
			for i := range eps {
				eps[i].ForZones = []string{eps[i].Zone}
			}
		}, "10.64.0.0:8080, 10.64.1.0:8080, 10.64.1.1:8080"},
		{"without ready endpoints, the place does not count", thisNode, "node",
			func(eps []sm.Endpoint) {
				for i := range eps {
					terminating(&eps[i])
				}
			}, "10.64.0.0:8080, 10.64.0.1:8080, 10.64.1.0:8080, 10.64.1.1:8080, " +
				"10.64.1.2:8080, 10.64.2.0:8080, 10.64.2.1:8080, 10.64.2.2:8080"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			own := slices.Clone(eps)
			if tt.change != nil {
				tt.change(own)
			}
			table := tableOf(t, tt.node, webService(prefers(tt.prefer)), own...)
			require.Equal(t, []string{pool + tt.want}, texts(table.Pools()))
		})
	}
}

func TestThePolicyLocalStaysStronger(t *testing.T) {
	t.Parallel()
	table := tableOf(t, thisNode, webService(prefers("node"), internalLocal, externalLocal),
		population([3]int{1, 1, 1}, [3]int{1, 0, 0})...)
	require.Equal(t, []string{"10.64.0.0"}, endpointsOf(table, sm.IPv4, true))
	require.Equal(t, sm.BalanceLocal, frontendAt(t, table, "10.96.0.1:80", sm.TCP).Internal)
}

// Whatever the number of endpoints, each used endpoint keeps a weight, the share of a level
// deviates by less than 1 %, and the units are bounded.
func TestRoundedSharesOfLevels(t *testing.T) {
	t.Parallel()
	r := newSource(t)
	rounded := 0
	for range 300 {
		var ready, unready [3]int
		for l := range ready {
			ready[l], unready[l] = r.IntN(pick(r, 3, 12, 90)), r.IntN(pick(r, 3, 12, 90))
		}
		eps := population(ready, unready)
		weights := pick(r, 1, 1, 5)
		for i := range eps {
			eps[i].Weight = uint16(1 + r.IntN(weights))
		}
		table := tableOf(t, thisNode, webService(prefers("node")), eps...)
		var want [3]float64
		total, left := 0., 100.
		for l := range ready {
			if ready[l] > 0 {
				want[l] = max(1, math.Floor(min(100,
					140*float64(ready[l])/float64(ready[l]+unready[l]))))
			}

			total += want[l]
		}

		for l := range want {
			want[l] = min(left, math.Floor(want[l]*100/max(1, min(total, 100))))
			left -= want[l]
		}

		got := levelShares(table)
		if total > 0 {
			sum := 0.
			for l := range want {
				sum += got[l]
				require.InDelta(t, want[l], 100*got[l], 1+left, "%v ready, %v not: %v, not %v",
					ready, unready, got, want)
			}

			require.InDelta(t, 1, sum, 1e-9)
		}

		units, all := 0, 0
		for p := range table.Pools() {
			for _, s := range p.Slots {
				require.Positive(t, s.Weight)
				units, all = units+int(s.Weight), all+weights
			}
		}

		require.LessOrEqual(t, units, 65*max(all, 1))
		if units > 60*all/weights {
			rounded++
		}
	}

	require.Positive(t, rounded, "some shares must need rounding")
}

func TestTraceSaysTheSharesOfLevels(t *testing.T) {
	t.Parallel()
	table := tableOf(t, thisNode, webService(prefers("node")),
		population([3]int{1, 1, 1}, [3]int{1, 0, 0})...)
	text := table.Trace(sm.Packet{Src: netip.MustParseAddrPort("10.64.0.1:40000"),
		Dst:      netip.MustParseAddrPort("10.96.0.1:80"),
		Protocol: sm.TCP}, nil).String()
	require.Contains(t, text, "nearness     this node 70 % (1 of 2 ready), its zone 30 % "+
		"(1 of 1 ready), elsewhere 0 % (1 of 1 ready)\n")
	require.Contains(t, text, "excluded     10.64.2.0:8080 on elsewhere is farther away, and "+
		"enough nearer ones are ready\n")
	require.Contains(t, text, "balanced over 10.64.0.0:8080 (7 of 10), 10.64.1.0:8080 (3 of 10)")
}
