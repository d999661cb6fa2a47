package servicemodel_test

import (
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	sm "github.com/kernlb/kernlb/servicemodel"
)

// contentsOf returns the parts of a table, shuffled.
func contentsOf(r source, t *sm.Table) sm.Contents {
	c := t.Contents()
	r.Shuffle(len(c.Frontends), func(i, j int) {
		c.Frontends[i], c.Frontends[j] = c.Frontends[j], c.Frontends[i]
	})
	r.Shuffle(len(c.Pools), func(i, j int) { c.Pools[i], c.Pools[j] = c.Pools[j], c.Pools[i] })
	c.ClusterIPs = append(c.ClusterIPs, c.ClusterIPs...) // sets may contain an address twice
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
	require.False(t, none.HasClusterIP(ip("10.96.0.1")))
	require.False(t, none.HasHairpin(ip("10.96.0.1")))
	require.Equal(t, sm.Untouched, none.Decide(sm.Packet{}, nil).Outcome)
}

func TestIterationOverATableStopsWhenAsked(t *testing.T) {
	t.Parallel()
	table := mustResolve(t, nil, benchState(50, 2))
	for range table.Frontends() {
		break
	}
	for range table.Hairpins() {
		break
	}
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
		require.True(t, table.AssumedIn(read).Equal(table))
		require.Len(t, slices.Collect(read.Pools()), len(lacks.Pools), "the table itself stays")
		require.Same(t, table, other.AssumedIn(table), "nothing is missing")
		require.Same(t, read, (*sm.Table)(nil).AssumedIn(read))

		lacks.Frontends = nil // so no frontend lacks a pool
		read = ok(sm.NewTable(lacks))(t)
		require.Same(t, read, table.AssumedIn(read))
	}

	require.Nil(t, mustResolve(t, nil, r.state()).AssumedIn((*sm.Table)(nil)))
}

// scramble overwrites everything that can be reached from v.
func scramble(v reflect.Value) {
	if other, leaf := otherValue(v); leaf {
		v.Set(other)
		return
	}

	if _, table := v.Interface().(*sm.Table); table {
		return // immutable
	}
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			scramble(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				scramble(v.Field(i))
			}
		}
	case reflect.Slice:
		all := v.Slice(0, v.Cap()) // including elements that an append would overwrite
		for i := range all.Len() {
			scramble(all.Index(i))
		}
	default:
		panic("cannot scramble " + v.Type().String())
	}
}

// stateParts holds everything that a caller can get from a state.
type stateParts struct {
	Node      sm.Node
	Services  []*sm.Service
	Endpoints [][]sm.Endpoint
}

func partsOf(s sm.State, names []sm.Name) stateParts {
	p := stateParts{Node: s.Node(), Services: slices.Collect(s.Services())}
	for _, n := range names {
		p.Endpoints = append(p.Endpoints, s.Endpoints(n))
	}
	return p
}

func TestStatesCannotBeChangedFromOutside(t *testing.T) {
	t.Parallel()
	r := newSource(t)
	for range 50 {
		given := stateParts{Node: r.node()}
		s := sm.State{}.WithNode(given.Node)
		var names []sm.Name
		for range 6 {
			svc, eps := r.service(r.name()), r.endpoints()
			for i := range svc.Ports {
				svc.Ports[i].TargetPort = 0 // it would not suit all of the endpoints
			}
			given.Services = append(given.Services, svc)
			given.Endpoints = append(given.Endpoints, eps)
			names = append(names, svc.Name)
			s = s.WithService(svc).WithEndpoints(svc.Name, eps)
		}

		want, table := partsOf(s, names), mustResolve(t, nil, s)
		got := partsOf(s, names)
		single := []*sm.Service{s.Service(names[0]), s.Service(names[1])}
		for _, v := range []any{&given, &got, &single} {
			scramble(reflect.ValueOf(v).Elem())
		}
		require.Equal(t, want, partsOf(s, names))
		require.True(t, table.Equal(mustResolve(t, nil, s)))
	}
}

func TestAnUpdateInPlaceIsAnUpdate(t *testing.T) {
	t.Parallel()
	s := stateOf(thisNode, webService(), endpoint("10.64.0.1", zones("z")), endpoint("10.64.0.2"))
	table := mustResolve(t, nil, s)

	svc := s.Service(web)
	svc.Ports[0].Port = 81
	changed := s.WithService(svc)
	require.NotNil(t, frontendAt(t, mustResolve(t, table, changed), "10.96.0.1:81", sm.TCP))
	require.EqualValues(t, 80, s.Service(web).Ports[0].Port)

	eps := s.Endpoints(web)
	eps[1].Ports[0].Port = 9090
	require.EqualValues(t, 8080, eps[0].Ports[0].Port, "endpoints share nothing")
	require.Equal(t,
		"~ pool default/web:http/tcp IPv4 cluster: slot 1: 10.64.0.2:8080 -> 10.64.0.2:9090\n",
		sm.Diff(table, mustResolve(t, table, s.WithEndpoints(web, eps))).String())

	n := s.Node()
	n.Addresses[0] = ip("192.0.2.77")
	require.False(t, s.Same(s.WithNode(n)))
	require.Equal(t, thisNode, s.Node())
}
