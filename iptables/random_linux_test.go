package iptables

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/test/randstate"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// After a sequence of changes, a new process reads exactly what was applied, and the kernel holds
// what that process would have written.
func TestKernelHoldsWhatWasApplied(t *testing.T) {
	t.Parallel()
	for seed := range uint64(4) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			t.Parallel()
			b, ns, _ := opened(t, Config{})
			g := randstate.New(randomConfig(), rand.New(rand.NewPCG(seed, 1)))
			e := dataplane.New(b, nil)
			s := g.State()
			for step := range 60 {
				r, err := e.Apply(t.Context(), s)
				require.NoError(t, err, "step %d", step)
				require.Empty(t, r.Drift)
				require.Equal(t, step == 0, r.Observed, "only the start reads the kernel")

				again := applied(t, e, s)
				require.True(t, again.Changes.Empty(), "the same state: %s", again.Changes)
				require.Zero(t, again.Messages)
				if step%10 == 0 {
					requireAdopts(t, ns, s, r.Changes.New)
				}
				s = g.Change(s)
			}
		})
	}
}

// requireAdopts reads the kernel with a new backend and requires that it holds the table, and that
// applying the state changes nothing.
func requireAdopts(t *testing.T, ns *netnstest.NS, s sm.State, want *sm.Table) {
	t.Helper()
	b := another(t, ns)
	e := dataplane.New(b, nil)
	o := ok(e.Observe(t.Context()))(t)
	require.Empty(t, o.Drift)
	d := sm.Diff(o.Table, want)
	require.Empty(t, d.Frontends, "observed, and applied: %s", d)
	require.Empty(t, d.Pools, "observed, and applied: %s", d)
	require.Nil(t, d.Rules, "observed, and applied: %s", d)
	require.Empty(t, d.ClusterIPs, "observed, and applied: %s", d)
	require.Empty(t, d.Hairpins, "observed, and applied: %s", d)
	r := applied(t, e, s)
	require.Zero(t, r.Messages)
}
