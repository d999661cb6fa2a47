package ipvs

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

// A node that serves one family has no chain, hook, rule, route or virtual server of the other,
// also if it served both before. The table ip stays, because it has the version.
func TestTheFamiliesOfAnInstanceChange(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	b := r.backend()
	e := dataplane.New(b, nil)
	node := goldenNode()
	for _, only := range []servicemodel.Family{servicemodel.IPv4, 0, servicemodel.IPv6, 0,
		servicemodel.IPv4, servicemodel.IPv6, servicemodel.IPv4} {
		node.OnlyFamily = only
		r.apply(e, perFamily("10.244.1.1").WithNode(node))
		requireIntegrity(t, b, dataplane.Intact, only)

		rules, servers := servicemodel.Rules{OnlyFamily: only}, strings.Join(r.servers(), "\n")
		ruleset, tables := r.run("nft list ruleset"), r.run("nft list tables")
		for _, f := range []struct {
			*nft.Family
			ip, address string
		}{{nft.IPv4, "ip -4", "10.96.0.10:80"}, {nft.IPv6, "ip -6", "[fd00:10:96::66]:80"}} {
			served := f.ServedBy(&rules)
			require.Equal(t, served, strings.Contains(servers, f.address), "%v of %v", f.Name, only)
			require.Equal(t, served, strings.Contains(r.run(f.ip+" rule"), "fwmark"))
			require.Equal(t, served,
				strings.Contains(r.run(f.ip+" route show table all"), "local default"))
			require.Equal(t, served || f.Family == nft.IPv4,
				strings.Contains(tables, "table "+f.Name+" "+DefaultTable))
			_, table, _ := strings.Cut(ruleset, "table "+f.Name+" "+DefaultTable+" {\n")
			table, _, _ = strings.Cut(table, "\n}\n")
			require.Equal(t, served, strings.Contains(table, "hook"))
		}
	}
	// A route that another program brings back is drift. The next reading finds it.
	r.run(fmt.Sprintf("ip -6 route add local default dev lo table %d",
		instanceNumber(b.pl.instance)))
	observed := ok(b.Observe(t.Context(), nil))(t)
	require.Len(t, observed.Drift, 1)
	require.Contains(t, observed.Drift[0], "leads IPv6 packets to IPVS")
	r.apply(e, perFamily("10.244.1.2").WithNode(node))
	require.NotContains(t, r.run("ip -6 route show table all"), "local default")
	cleanUp(t, e)
	require.NotContains(t, r.run("nft list tables"), "kernlb")
}
