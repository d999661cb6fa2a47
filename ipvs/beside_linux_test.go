package ipvs

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/nftables"
	"github.com/kernlb/kernlb/servicemodel"
)

// An instance and an instance of package nftables with the same table name do not replace each
// other's tables: the second instance is refused.
func TestTablesOfNftablesAreNotReplaced(t *testing.T) {
	t.Parallel()
	const shared = "kernlb"
	other := func(r *rig) backends.Backend {
		b := ok(nftables.New(&nftables.Config{NetNS: r.ns.NetNS(), Table: shared}))(t)
		t.Cleanup(func() { b.Close() })
		return b
	}

	for name, open := range map[string][2]func(*rig) backends.Backend{
		"ipvs comes second": {other, func(r *rig) backends.Backend {
			return r.backend(Config{Table: shared})
		}},
		"nftables comes second": {func(r *rig) backends.Backend {
			return r.backend(Config{Table: shared})
		}, other},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			s := servicemodel.State{}.WithService(goldenService()).
				WithEndpoints(goldenService().Name, goldenEndpoints("10.244.1.1"))
			ok(dataplane.New(open[0](r), nil).Apply(t.Context(), s))(t)
			before := r.run("nft list ruleset")
			e := dataplane.New(open[1](r), nil)
			_, err := e.Apply(t.Context(), s)
			require.ErrorIs(t, err, backends.ErrCollision)
			ok(e.Cleanup(t.Context()))(t)
			require.Equal(t, before, r.run("nft list ruleset"))
		})
	}
}

// Tables of other packages and programs are not tables of an instance.
func TestNamesOfOthersTablesAreRefused(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"kernlb-counters", "nat", "1a"} {
		_, err := New(&Config{Table: name})
		require.ErrorContains(t, err, "ipvs: table name ", name)
	}
}
