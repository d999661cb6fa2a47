package servicemodel_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/test/must"
	sm "github.com/kernlb/kernlb/servicemodel"
)

var (
	web     = sm.Name{Namespace: "default", Name: "web"}
	webHTTP = sm.PortName{Name: web, Port: "http", Protocol: sm.TCP}
)

func ip(s string) netip.Addr { return netip.MustParseAddr(s) }

func addrs(list ...string) []netip.Addr { return parsed(netip.MustParseAddr, list) }

func prefixes(list ...string) []netip.Prefix { return parsed(netip.MustParsePrefix, list) }

func parsed[T any](parse func(string) T, list []string) []T {
	var all []T
	for _, s := range list {
		all = append(all, parse(s))
	}
	return all
}

// webService returns default/web at 10.96.0.1:80/tcp and node port 30080, after the edits.
func webService(edits ...func(*sm.Service)) *sm.Service {
	s := &sm.Service{
		Name:       web,
		ClusterIPs: addrs("10.96.0.1"),
		Ports:      []sm.ServicePort{{Name: "http", Protocol: sm.TCP, Port: 80, NodePort: 30080}},
	}
	for _, edit := range edits {
		edit(s)
	}
	return s
}

func named(name string) func(*sm.Service) {
	return func(s *sm.Service) { s.Name.Name = name }
}

func externalLocal(s *sm.Service) { s.ExternalTrafficPolicy = sm.PolicyLocal }
func internalLocal(s *sm.Service) { s.InternalTrafficPolicy = sm.PolicyLocal }

// endpoint returns a ready endpoint with port 8080 on another node, after the edits.
func endpoint(addr string, edits ...func(*sm.Endpoint)) sm.Endpoint {
	e := sm.Endpoint{
		Addr: ip(addr), Node: "elsewhere",
		Ports: []sm.EndpointPort{{Name: "http", Protocol: sm.TCP, Port: 8080}},
	}
	for _, edit := range edits {
		edit(&e)
	}
	return e
}

func here(e *sm.Endpoint)        { e.Node = "here" }
func anywhere(e *sm.Endpoint)    { e.Node = "" }
func terminating(e *sm.Endpoint) { e.Condition = sm.Serving }
func dying(e *sm.Endpoint)       { e.Condition = sm.Terminating }
func notReady(e *sm.Endpoint)    { e.Condition = sm.NotReady }

func zones(names ...string) func(*sm.Endpoint) {
	return func(e *sm.Endpoint) { e.ForZones = names }
}

func nodes(names ...string) func(*sm.Endpoint) {
	return func(e *sm.Endpoint) { e.ForNodes = names }
}

// thisNode is node "here" in zone "z1", with pods in 10.64.0.0/16.
var thisNode = sm.Node{
	Name: "here", Zone: "z1", Addresses: addrs("192.0.2.1", "2001:db8::1"),
	LocalPods: sm.PodDetector{CIDRs: prefixes("10.64.0.0/16", "fd64::/16")},
}

func stateOf(n sm.Node, svc *sm.Service, eps ...sm.Endpoint) sm.State {
	return sm.State{}.WithNode(n).WithService(svc).WithEndpoints(svc.Name, eps)
}

func tableOf(t testing.TB, n sm.Node, svc *sm.Service, eps ...sm.Endpoint) *sm.Table {
	t.Helper()
	return mustResolve(t, nil, stateOf(n, svc, eps...))
}

// endpointsOf returns the endpoints of a pool of default/web, in the order of slots, or nil if
// there is no such pool.
func endpointsOf(t *sm.Table, f sm.Family, local bool) []string {
	p := t.Pool(sm.PoolID{Service: webHTTP, Family: f, Local: local})
	if p == nil {
		return nil
	}
	var list []string
	for _, slot := range p.Slots {
		list = append(list, slot.Endpoint.Addr().String())
	}
	return list
}

func frontendAt(t testing.TB, table *sm.Table, at string, proto sm.Protocol) *sm.Frontend {
	t.Helper()
	a := netip.MustParseAddrPort(at)
	f := table.Frontend(sm.FrontendKey{Addr: a.Addr(), Port: a.Port(), Protocol: proto})
	require.NotNil(t, f, "no frontend at %s", at)
	return f
}

func texts[T interface{ String() string }](seq func(func(T) bool)) []string {
	var list []string
	for v := range seq {
		list = append(list, v.String())
	}
	return list
}

func ok[T any](v T, err error) func(testing.TB) T { return must.OK(v, err) }
