package servicemodel_test

import (
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/nocopy"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// scramble overwrites everything that can be reached from v.
func scramble(v reflect.Value) {
	switch v.Interface().(type) {
	case netip.Addr:
		v.Set(reflect.ValueOf(ip("203.0.113.99")))
		return
	case netip.AddrPort:
		v.Set(reflect.ValueOf(netip.MustParseAddrPort("203.0.113.99:9")))
		return
	case netip.Prefix:
		v.Set(reflect.ValueOf(netip.MustParsePrefix("203.0.113.99/32")))
		return
	case *sm.Table:
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
		all := v.Slice(0, v.Cap()) // also what an append would overwrite
		for i := range all.Len() {
			scramble(all.Index(i))
		}
	default:
		scrambleScalar(v)
	}
}

func scrambleScalar(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString("scrambled")
	case reflect.Bool:
		v.SetBool(!v.Bool())
	case reflect.Uint8, reflect.Uint16, reflect.Uint32:
		v.SetUint(99)
	case reflect.Int, reflect.Int64:
		v.SetInt(99)
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

// tableParts holds everything that a caller can get from a table.
type tableParts struct {
	Contents sm.Contents
	Of       [][]*sm.Frontend
	PoolsOf  []*sm.Pool
	Health   []sm.HealthCheck
}

func tablePartsOf(t *sm.Table) tableParts {
	p := tableParts{Health: slices.Collect(t.HealthChecks())}
	p.Contents = sm.Contents{Rules: t.Rules(), Frontends: slices.Collect(t.Frontends()),
		Pools: slices.Collect(t.Pools()), ClusterIPs: slices.Collect(t.ClusterIPs()),
		Hairpins: slices.Collect(t.Hairpins())}
	for _, f := range p.Contents.Frontends {
		internal, external := t.PoolsOf(f)
		p.PoolsOf = append(p.PoolsOf, internal, external)
		p.Of = append(p.Of, t.FrontendsOf(f.Service), []*sm.Frontend{t.Frontend(f.Key)})
	}
	for _, pool := range p.Contents.Pools {
		p.PoolsOf = append(p.PoolsOf, t.Pool(pool.ID))
	}
	return p
}

func TestTablesCannotBeChangedFromOutside(t *testing.T) {
	t.Parallel()
	r := newSource(t)
	for range 30 {
		table := mustResolve(t, nil, r.state())
		other := mustResolve(t, nil, r.state())
		want, wantOther := tablePartsOf(table), tablePartsOf(other)

		got, c, part := tablePartsOf(table), sm.Diff(table, other), sm.Diff(table, other)
		part = nocopy.Of(table).Changes(part)
		applied := table.Apply(c)
		read := ok(sm.NewTable(got.Contents))(t)
		wantRead := tablePartsOf(read)
		var decided []sm.Decision
		for _, f := range want.Contents.Frontends {
			decided = append(decided, table.Decide(sm.Packet{
				Dst: netip.AddrPortFrom(f.Key.Addr, f.Key.Port),
				Src: netip.MustParseAddrPort("10.64.0.3:4000"), Protocol: f.Key.Protocol}, nil))
		}
		for _, v := range []any{&got, c, part, &decided} {
			scramble(reflect.ValueOf(v).Elem())
		}
		require.Equal(t, want, tablePartsOf(table))
		require.Equal(t, wantOther, tablePartsOf(other))
		require.Equal(t, wantRead, tablePartsOf(read))
		require.True(t, other.Equal(applied))
	}
}
