package servicemodel_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	sm "github.com/kernlb/kernlb/servicemodel"
)

// fedState has endpoints with these numbers as their shares. Negative numbers leave out an
// endpoint.
func fedState(by sm.Scheduler, shares ...int) sm.State {
	svc := webService(func(s *sm.Service) { s.Scheduler = by })
	var eps []sm.Endpoint
	for i, share := range shares {
		if share >= 0 {
			eps = append(eps, endpoint(fmt.Sprintf("10.64.0.%d", i+1),
				func(e *sm.Endpoint) { e.Share = uint16(share) }))
		}
	}

	return sm.State{}.WithNode(thisNode).WithService(svc).WithEndpoints(svc.Name, eps)
}

// unitsIn returns the units of the endpoints of the only IPv4 pool, by the last number of their
// addresses, and the endpoint of each unit.
func unitsIn(t *testing.T, table *sm.Table) (counts map[byte]int, at []byte) {
	for p := range table.Pools() {
		counts = map[byte]int{}
		for i, n := range p.UnitCounts() {
			counts[p.Slots[i].Endpoint.Addr().As4()[3]] = n
		}
		for _, u := range p.Units {
			at = append(at, p.Slots[u].Endpoint.Addr().As4()[3])
		}

		for i, share := range p.Shares() {
			if len(p.Units) > 0 {
				require.InDelta(t, float64(counts[p.Slots[i].Endpoint.Addr().As4()[3]])/
					float64(len(p.Units)), share, 1e-9)
			}
		}
		return counts, at
	}

	return nil, nil
}

func TestSharesBecomeUnits(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		before sm.State
		now    sm.State
		want   map[byte]int
		moved  int // units that existed and now have a different endpoint
	}{
		{"nothing was fed back", sm.State{}, fedState(sm.LeastConn, 0, 0), map[byte]int{}, 0},
		{"as they are", sm.State{}, fedState(sm.WeightedLC, 32, 20, 12),
			map[byte]int{1: 32, 2: 20, 3: 12}, 0},
		{"in proportion", sm.State{}, fedState(sm.LeastConn, 3, 1), map[byte]int{1: 48, 2: 16}, 0},
		{"at least one", sm.State{}, fedState(sm.LeastConn, 1000, 1), map[byte]int{1: 63, 2: 1}, 0},
		{"a share that is not known", sm.State{}, fedState(sm.LeastConn, 20, 12, 0, 0),
			map[byte]int{1: 20, 2: 12, 3: 16, 4: 16}, 0},
		{"two move", fedState(sm.LeastConn, 20, 20, 24), fedState(sm.LeastConn, 22, 19, 23),
			map[byte]int{1: 22, 2: 19, 3: 23}, 2},
		{"no shares any more", fedState(sm.LeastConn, 20, 20, 24), fedState(sm.LeastConn, 0, 0, 0),
			map[byte]int{1: 20, 2: 20, 3: 24}, 0},
		{"one leaves", fedState(sm.LeastConn, 16, 16, 32), fedState(sm.LeastConn, -1, 0, 0),
			map[byte]int{2: 21, 3: 43}, 16},
		{"one joins", fedState(sm.LeastConn, 16, 48), fedState(sm.LeastConn, 0, 0, 0),
			map[byte]int{1: 11, 2: 32, 3: 21}, 21},
		{"the weights", fedState(sm.LeastConn, 16, 48), fedState(sm.LeastConn, 1, 1),
			map[byte]int{1: 1, 2: 1}, 1},
		{"one joins those of equal weight", fedState(sm.LeastConn, 1, 1),
			fedState(sm.LeastConn, 0, 0, 0), map[byte]int{1: 1, 2: 1, 3: 1}, 0},
		{"other scheduler", fedState(sm.LeastConn, 16, 48), fedState(sm.Random, 16, 48),
			map[byte]int{}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			before := mustResolve(t, nil, tt.before)
			now := mustResolve(t, before, tt.now)
			got, at := unitsIn(t, now)
			require.Equal(t, tt.want, got)
			_, was := unitsIn(t, before)
			moved := 0
			for i := range min(len(was), len(at)) {
				if was[i] != at[i] {
					moved++
				}
			}

			require.Equal(t, tt.moved, moved)
			same := mustResolve(t, now, tt.now)
			require.True(t, same.Equal(now), "again")
			read := ok(sm.NewTable(now.Contents()))(t)
			adopted := mustResolve(t, nil, tt.now).Arrange(read)
			require.True(t, adopted.Equal(read), "after a restart: %v", sm.Diff(read, adopted))
		})
	}
}

// A kernel that holds no units, such as IPVS, causes no difference.
func TestSharesWithoutUnitsInTheKernel(t *testing.T) {
	t.Parallel()
	table := mustResolve(t, nil, fedState(sm.WeightedLC, 10, 54))
	c := table.Contents()
	for i := range c.Pools {
		own := *c.Pools[i]
		own.Units = nil
		c.Pools[i] = &own
	}

	read := ok(sm.NewTable(c))(t)
	require.True(t, table.Arrange(read).Equal(read))
}

// A change of shares moves no more units than the shares require.
func TestSharesMoveFewUnits(t *testing.T) {
	t.Parallel()
	r := newSource(t)
	for range 100 {
		n := 2 + r.IntN(30)
		random := func() []int {
			shares := make([]float64, n)
			for i := range shares {
				shares[i] = 1 + 20*r.Float64()
			}
			return sm.Apportion(shares, sm.FedUnits(n))
		}

		a, b := random(), random()
		before := mustResolve(t, nil, fedState(sm.LeastConn, a...))
		_, was := unitsIn(t, before)
		got, is := unitsIn(t, mustResolve(t, before, fedState(sm.LeastConn, b...)))
		moved, must := 0, 0
		for i := range is {
			if was[i] != is[i] {
				moved++
			}
		}

		for i := range b {
			require.Equal(t, b[i], got[byte(i+1)])
			must += max(0, b[i]-a[i])
		}
		require.Equal(t, must, moved)
	}
}

func TestApportion(t *testing.T) {
	t.Parallel()
	r := newSource(t)
	for range 1000 {
		shares := make([]float64, 1+r.IntN(20))
		for i := range shares {
			shares[i] = r.Float64() + 1e-6
		}
		units := len(shares) + r.IntN(100)
		got, total := sm.Apportion(shares, units), 0
		for _, n := range got {
			require.Positive(t, n)
			total += n
		}

		require.Equal(t, units, total)
	}

	require.Zero(t, sm.FedUnits(1<<14))
	require.Equal(t, 64, sm.FedUnits(10))
	require.Equal(t, 128, sm.FedUnits(11))
}

// Tables whose units do not represent shares are refused.
func TestUnitsOfShares(t *testing.T) {
	t.Parallel()
	pool := func(units ...int32) error {
		_, err := sm.NewTable(sm.Contents{Pools: []*sm.Pool{{Scheduler: sm.LeastConn, Units: units,
			ID: sm.PoolID{Service: sm.PortName{Name: sm.Name{Namespace: "a", Name: "b"},
				Protocol: sm.TCP}, Family: sm.IPv4},
			Slots: []sm.Slot{{Endpoint: netip.MustParseAddrPort("10.64.0.1:80"), Weight: 1},
				{Endpoint: netip.MustParseAddrPort("10.64.0.2:80"), Weight: 1}}}}})
		return err
	}

	require.NoError(t, pool(0, 1, 1))
	require.ErrorContains(t, pool(0, 2), "unit 1 has the wrong slot 2")
	require.ErrorContains(t, pool(0, -1), "unit 1 has the wrong slot -1")
	require.ErrorContains(t, pool(0, 0), "a slot has no unit")
	require.ErrorContains(t, pool(slices.Repeat([]int32{0, 1}, 1<<15)...), "too many")
}
