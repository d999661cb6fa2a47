package dataplane_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/internal/test/proportion"
	"github.com/kernlb/kernlb/servicemodel"
)

// After ApplyAll, an Apply of each refused owner would be refused, and an Apply of each other owner
// would change nothing, whatever the owners want: each other's ports, ranges, other settings of the
// instance, or nothing.
func TestTheOutcomeOfApplyAllIsThatOfApply(t *testing.T) {
	onBackends(t, func(t *testing.T, b inMemory) {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		r := rand.New(rand.NewPCG(seed, 0))
		b.Refuse(refusePort81)
		p := dataplane.NewParts(b, nil)
		seen := map[string]int{}
		for range 300 {
			states := map[string]servicemodel.State{}
			for _, owner := range []string{"a", "b", "c", "d", "e"} {
				if r.IntN(4) > 0 {
					states[owner] = anyPart(r, owner)
				}
			}

			res, err := p.ApplyAll(t.Context(), states)
			require.NoError(t, err)
			refused := map[string]error{}
			for _, of := range res.Refused {
				refused[of.Owner] = of.Err
				seen[dataplane.Problems(of.Err)[0].Field]++
			}
			for owner, s := range states {
				plan, err := p.Plan(t.Context(), owner, s)
				if refused[owner] != nil {
					require.ErrorIs(t, err, dataplane.ErrRefused, "%s: %v", owner, refused[owner])
					continue
				}
				require.NoError(t, err, owner)
				require.True(t, plan.Changes.Empty(), "%s: %v", owner, plan.Changes)
			}
		}

		for _, field := range []string{"masqueradeMark", "port", "ports[0].port"} {
			require.Positive(t, seen[field], "%s in %v", field, seen)
		}
	})
}

// anyPart returns a random state of an owner, often without services.
func anyPart(r *rand.Rand, owner string) (s servicemodel.State) {
	if r.IntN(3) > 0 {
		ports := []uint16{80, 82, 83, 84, 85}
		r.Shuffle(len(ports), func(i, j int) { ports[i], ports[j] = ports[j], ports[i] })
		s = published(owner, owner[0], ports[:1+r.IntN(2)]...)
		if r.IntN(9) == 0 {
			s = published(owner, owner[0], 81)
		}
	}
	if r.IntN(3) == 0 {
		s = s.WithNode(servicemodel.Node{MasqueradeMark: uint32(1 + r.IntN(2))})
	}
	return s
}

// The cost of ApplyAll grows with the number of its owners, even if half of them are refused.
func TestApplyingAllIsProportional(t *testing.T) {
	each := proportion.Cost{Objects: 280, Bytes: 50_000}
	mark := servicemodel.Node{MasqueradeMark: 1}
	for name, of := range map[string]func(owner string, i int) servicemodel.State{
		"none": func(owner string, i int) servicemodel.State {
			return published(owner, 1, uint16(1000+i))
		},
		"held":    func(owner string, _ int) servicemodel.State { return published(owner, 1, 80) },
		"claimed": func(owner string, _ int) servicemodel.State { return published(owner, 1, 90) },
		"settings": func(owner string, i int) servicemodel.State {
			return published(owner, 1, uint16(1000+i)).WithNode(mark)
		},
		"backend": func(owner string, _ int) servicemodel.State { return published(owner, 1, 81) },
	} {
		t.Run(name, func(t *testing.T) {
			proportion.Calls(t, each, func(n int) func() {
				b := memory.New(nil)
				b.Refuse(refusePort81)
				p := dataplane.NewParts(b, nil)
				ok(p.Apply(t.Context(), "z", published("z", 1, 80)))(t)
				states := map[string]servicemodel.State{}
				for i := range n {
					owner := fmt.Sprintf("o%04d", i)
					if states[owner] = published(owner, 1, uint16(1000+i)); i%2 > 0 {
						states[owner] = of(owner, i)
					}
				}
				return func() { ok(p.ApplyAll(t.Context(), states))(t) }
			})
		})
	}
}
