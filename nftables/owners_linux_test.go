package nftables

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/test/randstate"
	"github.com/kernlb/kernlb/internal/test/rawnltest"
	"github.com/kernlb/kernlb/nftables/internal/form"
	"github.com/kernlb/kernlb/nftables/internal/read"
	"github.com/kernlb/kernlb/servicemodel"
)

// inOwner returns a state with all services moved to the namespace of an owner.
func inOwner(owner string, s servicemodel.State) servicemodel.State {
	moved := servicemodel.State{}.WithNode(s.Node())
	for svc := range s.Services() {
		own := *svc
		own.Name.Namespace = owner
		moved = moved.WithService(&own).WithEndpoints(own.Name, s.Endpoints(svc.Name))
	}

	return moved
}

// requireIndex requires that the next reading of parts needs only the index, and that the index and
// the numbers of users equal the results of a reading of everything.
func requireIndex(t *testing.T, ns *netnstest.NS, owners []string) {
	t.Helper()
	b := newBackend(t, ns, nil)
	o := ok(b.ObserveParts(t.Context(), owners, nil))(t)
	require.Empty(t, o.Drift)
	require.False(t, b.pl.Owning.Whole)
	all := newBackend(t, ns, nil)
	whole := ok(all.Observe(t.Context(), nil))(t)
	require.Empty(t, whole.Drift)
	for i, f := range []servicemodel.Family{servicemodel.IPv4, servicemodel.IPv6} {
		for _, owner := range owners {
			var keys []servicemodel.FrontendKey
			for fe := range whole.Table.Part(owner).Frontends() {
				if fe.Key.Family() == f {
					keys = append(keys, fe.Key)
				}
			}

			require.Equal(t, keys, b.pl.Tables[i].Index.Frontends[owner])
		}
	}

	for _, owner := range owners {
		c := servicemodel.Diff(o.Table.Part(owner), whole.Table.Part(owner))
		require.Empty(t, c.Frontends)
		require.Empty(t, c.Pools)
		require.Empty(t, c.ClusterIPs)
	}
}

// Parts are added, changed and removed. Afterwards the kernel has the same parts as the model, and
// readings by index find them.
func TestPartsAreWhatTheModelSays(t *testing.T) {
	t.Parallel()
	for seed := range uint64(6) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			t.Parallel()
			ns, _ := newNS(t)
			cfg := randomConfig() // owners share endpoints and claim the same addresses
			cfg.Services, cfg.Nodes = 4, nil
			g := randstate.New(cfg, rand.New(rand.NewPCG(seed, 9)))
			rng := rand.New(rand.NewPCG(seed, 4))
			owners := []string{"a", "b", "c"}
			var model *servicemodel.Table
			for step := range 40 {
				owner := owners[rng.IntN(3)]
				s := inOwner(owner, g.State())
				if rng.IntN(4) == 0 {
					s = servicemodel.State{}.WithNode(s.Node())
				}
				next, want := model.WithPart(owner, mustResolve(t, s))
				p := dataplane.NewParts(newBackend(t, ns, nil), nil)
				r, err := p.Apply(t.Context(), owner, s)
				if want != nil {
					require.ErrorContains(t, err, want.Error())
					continue
				}

				require.NoError(t, err)
				require.Empty(t, r.Drift, step)
				model = next
				held := ok(newBackend(t, ns, nil).Observe(t.Context(), nil))(t)
				require.Empty(t, held.Drift, step)
				c := servicemodel.Diff(held.Table, model.Arrange(held.Table))
				c.Rules = nil // rules that no program has written differ

				// the index in the kernel is the authority on the owners of hairpins
				for _, a := range c.Hairpins {
					require.True(t, a.Added, "%v, step %d", a, step)
				}

				// on one node, an endpoint is a hairpin of all its owners or of no owner
				c.Hairpins = slices.DeleteFunc(c.Hairpins, func(a servicemodel.AddrChange) bool {
					return !slices.ContainsFunc(owners, func(o string) bool {
						return model.Part(o).HasHairpin(a.Addr)
					})
				})
				require.Equal(t, "", c.String(), "step %d", step)
				requireIndex(t, ns, slices.Collect(model.Owners()))
			}
		})
	}
}

// Every failure while parts are read, and every answer that cannot be decoded, is returned as an
// error. The backend is then unobserved.
func TestNoErrorAboutPartsIsSwallowed(t *testing.T) {
	t.Parallel()
	ns, b := newNS(t)
	s := inOwner("a", affinityState(2, -1))
	ok(dataplane.NewParts(b, nil).Apply(t.Context(), "a", s))(t)
	reader, tap := tapped(t, ns)
	observe := func(ctx context.Context) error {
		_, err := reader.ObserveParts(ctx, []string{"a"}, nil)
		require.Equal(t, err == nil, reader.observed)
		return err
	}

	garbled := func() error { return observe(t.Context()) }
	for _, damage := range []string{"list ruleset", "flush map ip kernlb owner-frontends"} {
		runNft(t, ns, nftPrograms(t)[0], damage, "-f", "-")
		rawnltest.FailEach(t, "observe parts", observe)
		rawnltest.GarbleEach(t, "observe parts", tap, garbled)
	}

	owners := func(ctx context.Context) error { _, err := reader.Owners(ctx); return err }
	rawnltest.FailEach(t, "owners", owners)
	rawnltest.GarbleEach(t, "owners", tap, func() error { return owners(t.Context()) })
}

// The objects of owners are damaged if they differ from the index, or if a single set has drift.
func TestWhichPartsAreDamaged(t *testing.T) {
	t.Parallel()
	table := ok(servicemodel.Resolve(nil, unitsState()))(t)
	reading := func() *read.Parts {
		p := &read.Parts{Snapshot: &read.Snapshot{}, Owners: []string{"default"}}
		for i, f := range nft.Families {
			p.Tables = append(p.Tables, read.NewReading(f, defaultTable))
			p.Tables[i].Index.Parts(f, p.Owners, table)
		}

		return p
	}

	require.False(t, reading().Damaged(table))
	for i := range nft.Families {
		p := reading()
		p.Tables[i].Drift = map[string]*nft.ElemList{form.SetHairpins: {}}
		require.True(t, p.Damaged(table))
	}

	p := reading()
	delete(p.Tables[0].Index.Frontends, "default")
	require.True(t, p.Damaged(table))
}
