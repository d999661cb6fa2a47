package nftables

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/test/randstate"
	"github.com/kernlb/kernlb/servicemodel"
)

// After a sequence of changes, a new process reads exactly the applied state, and the kernel has
// the same contents as if that process had written the state.
func TestKernelHoldsWhatWasApplied(t *testing.T) {
	t.Parallel()
	for seed := range uint64(24) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			t.Parallel()
			ns, b := newNS(t)
			g := randstate.New(randomConfig(), rand.New(rand.NewPCG(seed, 1)))
			e := dataplane.New(b, nil)
			s := g.State()
			for step := range 120 {
				if step%3 == 0 { // the change then starts from a reading
					e.Resync()
				}
				r, err := e.Apply(t.Context(), s)
				require.NoError(t, err, "step %d", step)
				require.Empty(t, r.Drift)
				require.Equal(t, step%3 == 0, r.Observed)

				again := ok(e.Apply(t.Context(), s))(t)
				require.True(t, again.Changes.Empty(), "the same state: %s", again.Changes)
				require.Zero(t, again.Stats.Messages)
				if step%10 == 0 {
					requireAdopts(t, newBackend(t, ns, nil), s, r.Changes.New)
				}
				s = g.Change(s)
			}
		})
	}
}

// A full set does not change the result of a reading. So stored changes can be applied, and nothing
// counts as repaired.
func TestFullSetsAreRead(t *testing.T) {
	t.Parallel()
	ns, b := newNS(t)
	b.pl.Capacity = func(n int) uint32 { return uint32(n) + 1 }
	s := manyServices(3)
	ok(dataplane.New(b, nil).Apply(t.Context(), s))(t)
	for i, n := range []int{6, 12} {
		s = manyServices(n)
		if i == 0 {
			r := ok(dataplane.New(b, nil).Apply(t.Context(), s))(t)
			require.Equal(t, []string{"a set is full"}, r.Drift)
			require.Equal(t, servicemodel.Counts{Added: 3}, r.Counts)
			continue
		}

		p := ok(dataplane.New(newBackend(t, ns, nil), nil).Plan(t.Context(), s))(t)
		stored := &servicemodel.ChangeSet{}
		require.NoError(t, json.Unmarshal(ok(json.Marshal(p.Changes))(t), stored))
		r := ok(dataplane.New(b, nil).ApplyChanges(t.Context(), stored))(t)
		require.Equal(t, []string{"a set is full"}, r.Drift)
	}

	requireAdopts(t, newBackend(t, ns, nil), s, mustResolve(t, s))
}

// requireAdopts reads the kernel with a new backend and requires that it has the table, and that
// applying the state changes nothing.
func requireAdopts(t *testing.T, b *backend, s servicemodel.State, want *servicemodel.Table) {
	t.Helper()
	e := dataplane.New(b, nil)
	o := ok(e.Observe(t.Context()))(t)
	require.Empty(t, o.Drift)
	require.True(t, servicemodel.Diff(o.Table, want).Empty(), "observed, and applied: %s",
		servicemodel.Diff(o.Table, want))
	r := ok(e.Apply(t.Context(), s))(t)
	require.True(t, r.Changes.Empty(), "adopting changes nothing: %s", r.Changes)
	require.Zero(t, r.Stats.Messages)
}

// After a set was full, larger tables replace the tables, in one transaction.
func TestFullSetsAreMadeLarger(t *testing.T) {
	t.Parallel()
	ns, b := newNS(t)
	b.pl.Capacity = func(n int) uint32 { return uint32(n) + 1 }
	e := dataplane.New(b, nil)
	g := randstate.New(randomConfig(), rand.New(rand.NewPCG(3, 3)))
	s := g.State()
	grown := 0
	for range 40 {
		r := ok(e.Apply(t.Context(), s))(t)
		if len(r.Drift) > 0 {
			require.Equal(t, []string{"a set is full"}, r.Drift)
			grown++
		}

		s = g.Change(s)
	}

	require.Positive(t, grown)
	r := ok(e.Apply(t.Context(), s))(t)
	requireAdopts(t, newBackend(t, ns, nil), s, r.Changes.New)
}
