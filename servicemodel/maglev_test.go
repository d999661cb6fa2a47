package servicemodel_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	sm "github.com/kernlb/kernlb/servicemodel"
)

func maglev(p *sm.Pool) []uint16 { return p.Maglev() }

// spread maps each entry of a pool's table to its endpoint.
func spread(slots []sm.Slot) []netip.AddrPort {
	table := maglev(&sm.Pool{Slots: slots})
	l := make([]netip.AddrPort, len(table))
	for i, slot := range table {
		l[i] = slots[slot].Endpoint
	}
	return l
}

func randomSlots(r *rand.Rand, n int) []sm.Slot {
	l := make([]sm.Slot, n)
	for i := range l {
		l[i] = sm.Slot{Weight: 1, Endpoint: netip.AddrPortFrom(
			netip.AddrFrom4([4]byte{10, byte(r.UintN(256)), byte(r.UintN(256)), byte(i)}), 8080)}
	}

	return l
}

func countOf(table []netip.AddrPort) map[netip.AddrPort]int {
	count := map[netip.AddrPort]int{}
	for _, ep := range table {
		count[ep]++
	}
	return count
}

// Each share deviates by less than two entries, and with equal weights by 1 % at most.
func TestMaglevIsEven(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{1, 2, 3, 9, 10, 11, 40, 163} {
		for _, greatest := range []uint{1, 4, 1000} {
			slots, sum := randomSlots(r, n), 0
			for i := range slots {
				slots[i].Weight = uint16(1 + r.UintN(greatest))
				sum += int(slots[i].Weight)
			}

			table := spread(slots)
			require.GreaterOrEqual(t, len(table), 100*n)
			count := countOf(table)
			for _, s := range slots {
				share := float64(len(table)) * float64(s.Weight) / float64(sum)
				off := math.Abs(float64(count[s.Endpoint]) - share)
				require.Less(t, off, 2.0, "%d endpoints, %d of %.1f entries", n, count[s.Endpoint],
					share)
				if greatest == 1 {
					require.LessOrEqual(t, off/share, 0.01)
				}
			}
		}
	}

	require.Len(t, spread(randomSlots(r, 10)), 1021)
	require.Len(t, spread(randomSlots(r, 11)), 4093)
	require.Equal(t, 65521, (&sm.Pool{Slots: make([]sm.Slot, 65521)}).MaglevSize())
	require.Zero(t, (&sm.Pool{Slots: make([]sm.Slot, 65522)}).MaglevSize())
	require.Empty(t, maglev(&sm.Pool{Slots: make([]sm.Slot, 65522)}))
}

// Two nodes with the same endpoints have equal tables, whatever the order of their slots.
func TestMaglevDependsOnTheSetOfEndpoints(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(3, 4))
	slots := randomSlots(r, 10)
	slots[3].Weight = 7
	want := spread(slots)
	for range 10 {
		r.Shuffle(len(slots), func(i, j int) { slots[i], slots[j] = slots[j], slots[i] })
		require.Equal(t, want, spread(slots))
	}

	// The table is a format: nodes with different versions of the program have equal tables, too.
	known := []sm.Slot{{Endpoint: netip.MustParseAddrPort("10.0.0.1:80"), Weight: 1},
		{Endpoint: netip.MustParseAddrPort("10.0.0.2:80"), Weight: 2},
		{Endpoint: netip.MustParseAddrPort("[fd00::3]:80"), Weight: 1}}
	require.Equal(t, []uint16{1, 2, 2, 1, 1, 1, 0, 1, 1, 0, 1, 1},
		maglev(&sm.Pool{Slots: known})[:12])
}

// needless returns the share of the entries that move although their endpoint need not lose them.
func needless(old, new []sm.Slot) float64 {
	a, b := spread(old), spread(new)
	moved := 0
	for i := range a {
		if a[i] != b[i] {
			moved++
		}
	}

	// An endpoint must lose the entries that exceed its share.
	had, has := countOf(a), countOf(b)
	for ep, n := range had {
		moved -= max(0, n-has[ep])
	}
	return float64(moved) / float64(len(a))
}

// On average, few clients move needlessly if one endpoint of ten is removed, added, or gets a
// different weight.
func TestMaglevMovesFewClients(t *testing.T) {
	t.Parallel()
	const seed, runs = 5, 1000
	r := rand.New(rand.NewPCG(seed, 6))
	var gone, came, heavier float64
	for range runs {
		slots := randomSlots(r, 10)
		i := r.IntN(10)
		less := slices.Delete(slices.Clone(slots), i, i+1)
		weighty := slices.Clone(slots)
		weighty[i].Weight = 2
		gone += needless(slots, less) / runs
		came += needless(less, slots) / runs
		heavier += needless(slots, weighty) / runs
	}

	t.Logf("needless moves, seed %d: %s", seed, fmt.Sprintf("gone %.2f %%, came %.2f %%, "+
		"weight 1 to 2 %.2f %%", 100*gone, 100*came, 100*heavier))
	require.Less(t, gone, 0.025)
	require.Less(t, came, 0.025)
	require.Less(t, heavier, 0.025)
}

func BenchmarkMaglev(b *testing.B) {
	for _, n := range []int{10, 40, 655} {
		slots := randomSlots(rand.New(rand.NewPCG(1, 2)), n)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				maglev(&sm.Pool{Slots: slots})
			}
		})
	}
}
