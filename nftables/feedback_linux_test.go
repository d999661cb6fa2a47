package nftables

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/servicemodel"
)

// fed applies endpoints with shares that a program feeds back.
func (w *arena) fed(by servicemodel.Scheduler, shares ...uint16) *dataplane.Result {
	w.t.Helper()
	w.shares = shares
	defer func() { w.shares = nil }()
	weights := make([]uint16, len(shares))
	for i := range weights {
		weights[i] = uint16(1 + i%2) // lc ignores them
	}
	return w.apply(by, weights...)
}

// The kernel follows shares that are fed back. A move of a unit costs one element in each family,
// and another element if the unit is an endpoint's first. A new program continues with the shares
// in the kernel.
func TestSharesAreFedBack(t *testing.T) {
	t.Parallel()
	const seed, n = 21, 1200
	w := newArena(t, 4)
	w.fed("lc", 0, 0, 0, 0)
	require.Nil(t, w.pool(arenaIP).Units)
	for _, by := range []servicemodel.Scheduler{"lc", "wlc"} {
		w.fed(by, 30, 20, 10, 4)
		r := rand.New(rand.NewPCG(seed, 1))
		count, chi := map[netip.Addr]float64{}, 0.
		for _, c := range clients(r, n) {
			ep := w.send(c).Addr()
			for i := range 4 {
				if ep == arenaEndpoint6(i) {
					ep = arenaEndpoint(i)
				}
			}

			count[ep]++
		}

		for i, share := range []float64{30, 20, 10, 4} {
			want := n * share / 64
			off := count[arenaEndpoint(i)] - want
			chi += off * off / want
		}

		require.Less(t, chi, 30.7, "%s: seed %d: %v", by, seed, count)
		moved := w.fed(by, 29, 20, 10, 5)
		require.LessOrEqual(t, moved.Stats.Messages, 10)
		require.Equal(t, []int{29, 20, 10, 5}, w.pool(arenaIP6).UnitCounts())

		// Another process does not know the shares that were fed back, and sees no difference.
		same := w.fed(by, 0, 0, 0, 0)
		require.Zero(t, same.Stats.Messages)
		w.engine = dataplane.New(w.backend, nil)
		same = w.fed(by, 0, 0, 0, 0)
		require.Zero(t, same.Stats.Messages)
		require.Empty(t, same.Drift)
		require.Equal(t, []int{29, 20, 10, 5}, w.pool(arenaIP6).UnitCounts())

		o := ok(w.backend.Observe(t.Context(), nil))(t)
		require.True(t, o.Table.Equal(w.table), servicemodel.Diff(o.Table, w.table))
		require.Empty(t, o.Drift)
		w.fed(by, 1, 1, 1, 1)
		require.Equal(t, map[servicemodel.Scheduler]int{"lc": 4, "wlc": 64}[by],
			len(w.pool(arenaIP).Units))
	}

	// Switching to other schedulers and back loses no packet.
	for _, by := range []servicemodel.Scheduler{"random", "lc", "mh", "wlc", "rr", "lc", "sh",
		"lc"} {
		w.fed(by, 30, 20, 10, 4)
		for _, c := range clients(rand.New(rand.NewPCG(seed, 2)), 10) {
			w.send(c)
		}
	}
}
