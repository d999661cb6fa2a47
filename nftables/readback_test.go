package nftables

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

// What is in the kernel is what is wanted, without what is not there, and what else was found.
func TestTablesArePutTogether(t *testing.T) {
	t.Parallel()
	h := holding(t, unitsState())
	units := unitsOf(nft.IPv4, h.table)
	web := units[slices.IndexFunc(units, func(u unit) bool {
		return u[0].Service.Name.Name == "web"
	})]
	var db *servicemodel.Pool
	for p := range h.table.Pools() {
		if p.ID.Service.Name.Name == "db" && p.ID.Family == servicemodel.IPv4 {
			db = p
		}
	}
	changed := &servicemodel.Pool{ID: db.ID, Slots: []servicemodel.Slot{{Endpoint: stranger,
		Weight: 1}}}
	clusterIP, hairpin := netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("10.244.1.1")
	stray := &servicemodel.Frontend{Key: servicemodel.FrontendKey{
		Addr: netip.MustParseAddr("10.96.0.99"), Protocol: servicemodel.TCP, Port: 80},
		Service:  servicemodel.PortName{Name: servicemodel.Name{Namespace: "x", Name: "stray"}},
		Internal: servicemodel.BalanceCluster, External: servicemodel.BalanceCluster}
	id, _ := stray.Pool(stray.Internal)
	left := servicemodel.Contents{Rules: h.table.Rules(), Frontends: []*servicemodel.Frontend{stray},
		Pools:      []*servicemodel.Pool{{ID: id, Slots: changed.Slots}},
		ClusterIPs: []netip.Addr{stray.Key.Addr}, Hairpins: []netip.Addr{stranger.Addr()}}
	left.Rules.MasqueradeMark = 0x77

	four := &part{gone: web, pools: []servicemodel.PoolChange{{Old: db, New: changed}},
		addrs: map[string][]netip.Addr{setClusterIPs: {clusterIP}, setHairpins: {hairpin}}}
	got, err := assemble(h.table, [2]*part{four, nil}, left)
	require.NoError(t, err)

	want := servicemodel.Contents{Rules: left.Rules, Frontends: []*servicemodel.Frontend{stray},
		Pools:      []*servicemodel.Pool{left.Pools[0], changed},
		ClusterIPs: []netip.Addr{stray.Key.Addr}, Hairpins: []netip.Addr{stranger.Addr()}}
	for fe := range h.table.Frontends() {
		if fe.Key.Family() == servicemodel.IPv4 && fe.Service.Name.Name == "db" {
			want.Frontends = append(want.Frontends, fe)
		}
	}
	for a := range h.table.ClusterIPs() {
		if a.Is4() && a != clusterIP {
			want.ClusterIPs = append(want.ClusterIPs, a)
		}
	}
	for a := range h.table.Hairpins() {
		if a.Is4() && a != hairpin {
			want.Hairpins = append(want.Hairpins, a)
		}
	}
	table, err := servicemodel.NewTable(want)
	require.NoError(t, err)
	require.Empty(t, servicemodel.Diff(got, table).String())
	require.True(t, got.Equal(table))

	for _, nobody := range []*servicemodel.Table{nil, h.table} { // only what is left over
		got, err = assemble(nobody, [2]*part{}, left)
		require.NoError(t, err)
		table, err = servicemodel.NewTable(left)
		require.NoError(t, err)
		require.True(t, got.Equal(table))
	}
	left.Frontends = append(left.Frontends, stray)
	_, err = assemble(h.table, [2]*part{four, nil}, left)
	require.Error(t, err, "a frontend twice")
}
