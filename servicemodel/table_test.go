package servicemodel_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/nocopy"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// contentsOf returns the parts of a table, shuffled.
func contentsOf(r source, t *sm.Table) sm.Contents {
	c := nocopy.Of(t).Contents()
	r.Shuffle(len(c.Frontends), func(i, j int) {
		c.Frontends[i], c.Frontends[j] = c.Frontends[j], c.Frontends[i]
	})
	r.Shuffle(len(c.Pools), func(i, j int) { c.Pools[i], c.Pools[j] = c.Pools[j], c.Pools[i] })
	c.ClusterIPs = append(c.ClusterIPs, c.ClusterIPs...) // sets may name an address twice
	return c
}

func TestATableReadBackEqualsTheOneWritten(t *testing.T) {
	t.Parallel()
	r := newSource(t)
	for range 50 {
		table := mustResolve(t, nil, r.state())
		found := ok(sm.NewTable(contentsOf(r, table)))(t)
		c := sm.Diff(found, table)
		require.True(t, c.Empty(), c.String())
		for f := range table.Frontends() {
			require.Equal(t, table.FrontendsOf(f.Service), found.FrontendsOf(f.Service))
		}
		require.Empty(t, slices.Collect(found.Conflicts()))

		// Resolving from a table without memory starts from scratch, but keeps the table's slots.
		s := r.state()
		again := mustResolve(t, found, s)
		requireSame(t, mustResolve(t, nil, s), again)
	}
}

func TestNewTableRefusesDuplicatesAndNils(t *testing.T) {
	t.Parallel()
	f := &sm.Frontend{Key: sm.FrontendKey{Addr: ip("10.96.0.1"), Protocol: sm.TCP, Port: 80},
		Service: webHTTP}
	other := *f
	other.Service.Port = "other"
	_, err := sm.NewTable(sm.Contents{Frontends: []*sm.Frontend{f, &other}})
	require.EqualError(t, err, "new table: frontend 10.96.0.1:80/tcp occurs twice")
	p := &sm.Pool{
		ID:    sm.PoolID{Service: webHTTP, Family: sm.IPv4},
		Slots: []sm.Slot{{Endpoint: netip.MustParseAddrPort("10.64.0.1:80"), Weight: 1}},
	}
	_, err = sm.NewTable(sm.Contents{Pools: []*sm.Pool{p, p}})
	require.EqualError(t, err, "new table: pool default/web:http/tcp IPv4 cluster occurs twice")
	_, err = sm.NewTable(sm.Contents{Pools: []*sm.Pool{nil}})
	require.EqualError(t, err, "new table: a frontend or pool is nil")
	_, err = sm.NewTable(sm.Contents{Frontends: []*sm.Frontend{nil}})
	require.Error(t, err)
}

func TestTheNilTableIsEmpty(t *testing.T) {
	t.Parallel()
	var none *sm.Table
	empty := ok(sm.NewTable(sm.Contents{}))(t)
	require.True(t, none.Equal(empty))
	require.True(t, empty.Equal(none))
	require.True(t, sm.Diff(none, empty).Empty())
	require.Zero(t, none.Len())
	require.Zero(t, none.Rules())
	require.Nil(t, none.Frontend(sm.FrontendKey{}))
	require.Nil(t, none.FrontendsOf(webHTTP))
	require.Nil(t, none.Pool(sm.PoolID{}))
	require.Empty(t, slices.Collect(none.Frontends()))
	require.Empty(t, slices.Collect(none.Pools()))
	require.Empty(t, slices.Collect(none.ClusterIPs()))
	require.Empty(t, slices.Collect(none.Hairpins()))
	require.Empty(t, slices.Collect(none.HealthChecks()))
	require.Empty(t, slices.Collect(none.Conflicts()))
	require.False(t, nocopy.Of(none).HasClusterIP(ip("10.96.0.1")))
	require.False(t, nocopy.Of(none).HasHairpin(ip("10.96.0.1")))
	require.Equal(t, sm.Untouched, none.Decide(sm.Packet{}, nil).Outcome)
}

func TestIterationOverATableStopsWhenAsked(t *testing.T) {
	t.Parallel()
	table := mustResolve(t, nil, benchState(50, 2).WithService(at("x", "10.0.0.1", "10.0.0.2")).
		WithService(at("y", "10.0.0.1", "10.0.0.2")))
	for range table.Frontends() {
		break
	}
	for range table.Hairpins() {
		break
	}
	n := 0
	for range table.Conflicts() {
		n++
		break
	}
	require.Equal(t, 1, n)
	require.Equal(t, 55, table.Len())
}

func TestPoolsThatATableLacksAreAssumed(t *testing.T) {
	t.Parallel()
	r := newSource(t)
	for range 50 {
		table, other := mustResolve(t, nil, r.state()), mustResolve(t, nil, r.state())
		c := contentsOf(r, table)
		lacks := c
		lacks.Pools = c.Pools[:len(c.Pools)/2]
		read := ok(sm.NewTable(lacks))(t)
		require.True(t, nocopy.Of(table).AssumedIn(read).Equal(table))
		require.Len(t, slices.Collect(read.Pools()), len(lacks.Pools), "the table itself stays")
		require.Same(t, table, nocopy.Of(other).AssumedIn(table), "nothing is missing")
		require.Same(t, read, nocopy.Of((*sm.Table)(nil)).AssumedIn(read))

		lacks.Frontends = nil // so no frontend lacks a pool
		read = ok(sm.NewTable(lacks))(t)
		require.Same(t, read, nocopy.Of(table).AssumedIn(read))
	}
	require.Nil(t, nocopy.Of(mustResolve(t, nil, r.state())).AssumedIn((*sm.Table)(nil)))
}
