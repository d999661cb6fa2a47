package servicemodel_test

import (
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	sm "github.com/kernlb/kernlb/servicemodel"
)

func TestStatesAreValues(t *testing.T) {
	t.Parallel()
	var empty sm.State
	one := empty.WithService(webService())
	two := one.WithService(webService(named("app"))).WithEndpoints(web,
		[]sm.Endpoint{endpoint("10.64.0.1")})
	less := two.WithoutService(web)
	require.Zero(t, empty.Len())
	require.Equal(t, 1, one.Len())
	require.Nil(t, empty.Service(web))
	require.Nil(t, less.Service(web))
	require.Empty(t, less.Endpoints(web), "endpoints go with their service")
	require.Len(t, two.Endpoints(web), 1)
	require.Empty(t, two.WithEndpoints(web, nil).Endpoints(web))
	require.Empty(t, one.Endpoints(web))
	var names []string
	for svc := range two.Services() {
		names = append(names, svc.Name.Name)
	}
	require.Equal(t, []string{"app", "web"}, names)
	for svc := range two.Services() {
		require.Equal(t, "app", svc.Name.Name)
		break
	}

	require.Equal(t, sm.Node{}, empty.Node())
	require.Equal(t, thisNode, empty.WithNode(thisNode).Node())
}

// perturb changes each field reachable in v, one after the other, calls check, and changes it back.
func perturb(t *testing.T, v reflect.Value, path string, check func(path string)) {
	with := func(changed reflect.Value) {
		old := reflect.New(v.Type()).Elem()
		old.Set(v)
		v.Set(changed)
		check(path)
		v.Set(old)
	}

	if other, leaf := otherValue(v); leaf {
		with(other)
		return
	}

	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			perturb(t, v.Field(i), path+"."+v.Type().Field(i).Name, check)
		}
	case reflect.Slice:
		require.Positive(t, v.Len(), "%s must not be empty for this test", path)
		with(v.Slice(0, v.Len()-1))

		// a copy, so that the original keeps its elements
		own := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
		reflect.Copy(own, v)
		old := reflect.ValueOf(v.Interface())
		v.Set(own)
		perturb(t, v.Index(0), path+"[0]", check)
		v.Set(old)
	default:
		t.Fatalf("%s: a field of kind %v is not perturbed", path, v.Kind())
	}
}

// otherValue returns a different value for v, if v is a leaf: an address, a word or a number.
func otherValue(v reflect.Value) (other reflect.Value, leaf bool) {
	switch x := v.Interface().(type) {
	case netip.Addr:
		return reflect.ValueOf(ip("203.0.113.77")), true
	case netip.AddrPort:
		return reflect.ValueOf(netip.MustParseAddrPort("203.0.113.77:9")), true
	case netip.Prefix:
		return reflect.ValueOf(netip.MustParsePrefix("203.0.113.77/32")), true
	case bool:
		return reflect.ValueOf(!x), true
	}

	switch v.Kind() {
	case reflect.String:
		return reflect.ValueOf(v.String() + "x").Convert(v.Type()), true
	case reflect.Uint8, reflect.Uint16, reflect.Uint32:
		return reflect.ValueOf(v.Uint() + 1).Convert(v.Type()), true
	case reflect.Int, reflect.Int64:
		return reflect.ValueOf(v.Int() + 1).Convert(v.Type()), true
	}

	return v, false
}

func TestEveryFieldCountsWhenStatesAreCompared(t *testing.T) {
	t.Parallel()
	svc := webService(everywhere, func(s *sm.Service) {
		s.LoadBalancerSourceRanges = prefixes("10.0.0.0/8")
		s.HostIPs, s.MasqueradeIPs = addrs("192.0.2.1"), addrs("192.0.2.2")
		s.Clients = []sm.ClientRule{{Addrs: addrs("192.0.2.1"), Allow: prefixes("10.0.0.0/8"),
			Deny: prefixes("10.1.0.0/16")}}
		s.SessionAffinity.Timeout = time.Second
	})
	base := sm.State{}.WithService(svc)
	fields := 0
	changed := *svc
	perturb(t, reflect.ValueOf(&changed).Elem(), "Service", func(path string) {
		fields++
		own := changed
		require.False(t, base.Same(base.WithService(&own)), path)
	})

	require.Greater(t, fields, 15)
	require.True(t, base.Same(base.WithService(&changed)), "all changes were taken back")

	eps := []sm.Endpoint{endpoint("10.64.0.1", here, zones("z"), nodes("n"), func(e *sm.Endpoint) {
		e.Zone = "z"
	})}
	base = sm.State{}.WithEndpoints(web, eps)
	copied := slices.Clone(eps)
	perturb(t, reflect.ValueOf(&copied[0]).Elem(), "Endpoint", func(path string) {
		require.False(t, base.Same(base.WithEndpoints(web, slices.Clone(copied))), path)
	})
	require.True(t, base.Same(base.WithEndpoints(web, copied)))
	require.False(t, base.Same(base.WithEndpoints(web, append(copied, copied...))))

	node := thisNode
	node.NodePortAddresses.CIDRs, node.ServiceCIDRs = prefixes("192.0.2.0/24"),
		prefixes("10.96.0.0/12")
	base = sm.State{}.WithNode(node)
	perturb(t, reflect.ValueOf(&node).Elem(), "Node", func(path string) {
		require.False(t, base.Same(base.WithNode(node)), path)
	})
	require.True(t, base.Same(base.WithNode(node)))
}

func TestEveryFieldCountsWhenTablesAreCompared(t *testing.T) {
	t.Parallel()
	f := sm.Frontend{Key: sm.FrontendKey{Addr: ip("10.96.0.1"), Protocol: sm.TCP, Port: 80},
		Service: webHTTP, Sources: prefixes("10.0.0.0/8")}
	changed := f
	perturb(t, reflect.ValueOf(&changed).Elem(), "Frontend", func(path string) {
		require.False(t, f.Equal(&changed), path)
	})
	require.True(t, f.Equal(&changed))

	p := sm.Pool{
		ID:    sm.PoolID{Service: webHTTP, Family: sm.IPv4},
		Slots: []sm.Slot{{Endpoint: netip.MustParseAddrPort("10.64.0.1:1"), Weight: 1}},
	}
	other := p
	other.Slots = slices.Clone(p.Slots)
	perturb(t, reflect.ValueOf(&other.ID).Elem(), "Pool.ID", func(path string) {
		require.False(t, p.Equal(&other), path)
	})
	other.Slots[0].Weight = 2
	require.False(t, p.Equal(&other))
	other.Slots = p.Slots
	require.True(t, p.Equal(&other))
	other.Scheduler = sm.Random
	require.False(t, p.Equal(&other))
	other.Scheduler, other.Forwarding = p.Scheduler, sm.ForwardTunnel
	require.False(t, p.Equal(&other))

	r := sm.Rules{
		LocalPods: sm.PodDetector{CIDRs: prefixes("10.0.0.0/8")}, NodePorts: prefixes("0.0.0.0/0"),
		ServiceCIDRs: prefixes("10.96.0.0/12"),
	}
	rules := r
	perturb(t, reflect.ValueOf(&rules).Elem(), "Rules", func(path string) {
		require.False(t, r.Equal(rules), path)
	})
	require.True(t, r.Equal(rules))
}

func TestKeysAreOrderedByAllOfTheirParts(t *testing.T) {
	t.Parallel()
	keys := []sm.FrontendKey{
		{Addr: ip("0.0.0.0"), Port: 30000, Protocol: sm.TCP},
		{Addr: ip("10.0.0.1"), Port: 79, Protocol: sm.UDP},
		{Addr: ip("10.0.0.1"), Port: 80, Protocol: sm.TCP},
		{Addr: ip("10.0.0.1"), Port: 80, Protocol: sm.SCTP},
		{Addr: ip("10.0.0.2"), Port: 1, Protocol: sm.TCP},
		{Addr: ip("::"), Port: 30000, Protocol: sm.TCP},
		{Addr: ip("fd00::1"), Port: 1, Protocol: sm.TCP},
	}
	requireOrder(t, keys, sm.FrontendKey.Compare)
	port := func(ns, n, p string, proto sm.Protocol) sm.PortName {
		return sm.PortName{Name: sm.Name{Namespace: ns, Name: n}, Port: p, Protocol: proto}
	}
	names := []sm.PortName{
		port("a", "z", "z", sm.SCTP), port("b", "a", "b", sm.TCP), port("b", "a", "c", sm.TCP),
		port("b", "a", "c", sm.UDP),
		port("b", "b", "", sm.TCP),
	}
	requireOrder(t, names, sm.PortName.Compare)
	ids := []sm.PoolID{
		{Service: names[0], Family: sm.IPv6, Local: true},
		{Service: names[1], Family: sm.IPv4},
		{Service: names[1], Family: sm.IPv4, Local: true},
		{Service: names[1], Family: sm.IPv6},
	}
	requireOrder(t, ids, sm.PoolID.Compare)
}

func requireOrder[T any](t *testing.T, want []T, compare func(a, b T) int) {
	t.Helper()
	got := slices.Clone(want)
	rand.Shuffle(len(got), func(i, j int) { got[i], got[j] = got[j], got[i] })
	slices.SortFunc(got, compare)
	require.Equal(t, want, got)
	for _, x := range want {
		require.Zero(t, compare(x, x))
	}
}

func TestWords(t *testing.T) {
	t.Parallel()
	tests := []struct{ got, want string }{
		{sm.Protocol(1).String(), "protocol 1"},
		{sm.Kind(9).String(), "kind 9"}, {sm.Verdict(9).String(), "verdict 9"},
		{sm.PortName{Name: web, Protocol: sm.TCP}.String(), "default/web"},
		{(&sm.FieldError{Object: "node", Field: "x", Reason: "required"}).Error(),
			"node: x: required"},
		{(&sm.FieldError{Object: "node", Field: "x", Value: "1", Reason: "odd"}).Error(),
			"node: x: 1: odd"},
	}
	for _, tt := range tests {
		require.Equal(t, tt.want, tt.got)
	}
}

func TestSinceCountsWhatDiffers(t *testing.T) {
	t.Parallel()
	web, db := sm.Name{Name: "web"}, sm.Name{Name: "db"}
	a := sm.State{}.WithService(&sm.Service{Name: web}).
		WithEndpoints(web, []sm.Endpoint{{Weight: 1}, {Weight: 2}}).
		WithService(&sm.Service{Name: db})
	since := func(s, old sm.State) [3]int {
		services, endpoints, growth := s.Since(old)
		return [...]int{services, endpoints, growth}
	}

	require.Equal(t, [...]int{2, 1, 2}, since(a, sm.State{}))
	b := a.WithoutService(web).WithEndpoints(db, []sm.Endpoint{{Weight: 1}})
	require.Equal(t, [...]int{1, 2, -1}, since(b, a))
	require.Zero(t, since(b, b))
	require.Zero(t, since(a.WithNode(sm.Node{Name: "n1"}), a))
}

// Any list of endpoints comes back as it was, whatever its endpoints have in common with each other
// and with the list before.
func TestEndpointsComeBackAsTheyWere(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	pick := func(words ...string) string { return words[r.IntN(len(words))] }
	ports := func() (l []sm.EndpointPort) {
		for i := range r.IntN(3) {
			l = append(l, sm.EndpointPort{Name: pick("a", "b"), Protocol: sm.TCP, Port: uint16(i)})
		}
		return l
	}

	var s sm.State
	for range 300 {
		eps := slices.AppendSeq(s.Endpoints(web), func(yield func(sm.Endpoint) bool) {
			for range r.IntN(4) {
				yield(sm.Endpoint{Addr: ip("10.64.0.1"), Node: pick("", "x", "y"), Ports: ports(),
					Condition: sm.Condition(pick("", "not-ready")), Zone: pick("", "z"),
					ForNodes: []string{pick("x", "y")}, ForZones: []string{pick("z", "w")},
					Weight: uint16(r.IntN(2)), Share: uint16(r.IntN(2))})
			}
		})
		for range r.IntN(3) {
			if i := r.IntN(len(eps) + 1); i < len(eps) {
				eps[i].Addr, eps[i].Zone = ip("10.64.0.2"), pick("", "z")
			}
		}

		eps = eps[r.IntN(len(eps)/2+1):]
		before := s
		want, held := cloned(eps), s.Endpoints(web)
		s = s.WithEndpoints(web, eps)
		for i := range eps { // the state has a copy
			eps[i].ForZones[0] = "another"
		}
		require.Equal(t, want, s.Endpoints(web))
		require.True(t, s.Same(s.WithEndpoints(web, want)))
		require.Equal(t, held, before.Endpoints(web))
		_, all := s.Peek(web)
		require.Equal(t, want, slices.Collect(all))
	}
}

func cloned(eps []sm.Endpoint) (l []sm.Endpoint) {
	for _, e := range eps {
		e.Ports, e.ForNodes = slices.Clone(e.Ports), slices.Clone(e.ForNodes)
		e.ForZones = slices.Clone(e.ForZones)
		l = append(l, e)
	}
	return l
}

// The endpoints of a few zones in turn have each list once, also after a change of one of them.
func TestEndpointsShareTheirLists(t *testing.T) {
	t.Parallel()
	var eps []sm.Endpoint
	for i := range 30 {
		e := endpoint("10.64.0.1")
		e.Zone = string(rune('a' + i%3))
		e.ForZones = []string{e.Zone}
		eps = append(eps, e)
	}

	s := sm.State{}.WithEndpoints(web, eps)
	eps[7].Addr = ip("10.64.0.2")
	lists := map[*string]bool{}
	for _, s := range []sm.State{s, s.WithEndpoints(web, eps)} {
		_, all := s.Peek(web)
		for e := range all {
			lists[&e.ForZones[0]] = true
		}
	}
	require.Len(t, lists, 3)
}
