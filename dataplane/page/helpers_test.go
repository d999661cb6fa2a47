package page_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/hooks"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/dataplane/node"
	"github.com/kernlb/kernlb/dataplane/page"
	"github.com/kernlb/kernlb/internal/test/must"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// shown is a page of an engine on a kernel in memory.
type shown struct {
	*page.Page
	engine  *dataplane.Engine
	backend *memory.Backend
}

func newShown(t testing.TB, cfg *page.Config) *shown {
	t.Helper()
	backend := memory.New(nil)
	s := &shown{engine: dataplane.New(backend, nil), backend: backend}
	s.Page = page.New(s.engine, cfg)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// holding is newShown followed by an apply.
func holding(t testing.TB, st sm.State, cfg *page.Config) *shown {
	t.Helper()
	s := newShown(t, cfg)
	must.OK(s.engine.Apply(t.Context(), st))(t)
	return s
}

// get requests a path, and returns the code and the body.
func (s *shown) get(path string) (int, string) { return ask(s, path) }

func ask(h http.Handler, path string) (int, string) {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w.Code, w.Body.String()
}

// json requests a path, requires success, and decodes the answer.
func (s *shown) json(t *testing.T, path string, into any) {
	t.Helper()
	code, body := s.get(path)
	require.Equal(t, http.StatusOK, code, "%s: %s", path, body)
	require.NoError(t, json.Unmarshal([]byte(body), into), "%s: %s", path, body)
}

func name(i int) sm.Name {
	return sm.Name{Namespace: fmt.Sprintf("team-%d", i%7), Name: fmt.Sprintf("app-%d", i)}
}

// addr is the i-th address from a.b.0.0 on.
func addr(a, b byte, i int) netip.Addr {
	return netip.AddrFrom4([4]byte{a, b + byte(i>>16), byte(i >> 8), byte(i)})
}

func ports(name string) []sm.EndpointPort {
	return []sm.EndpointPort{{Name: name, Protocol: sm.TCP, Port: 8080}}
}

// service is a service with a cluster IP.
func service(n sm.Name, ip netip.Addr, edit ...func(*sm.Service)) *sm.Service {
	s := &sm.Service{Name: n, ClusterIPs: []netip.Addr{ip},
		Ports: []sm.ServicePort{{Name: "http", Protocol: sm.TCP, Port: 80}}}
	for _, e := range edit {
		e(s)
	}
	return s
}

// many is a state of n services with m endpoints each.
func many(n, m int) sm.State {
	s := sm.State{}.WithNode(sm.Node{Name: "n1", Addresses: []netip.Addr{addr(192, 168, 1)},
		LocalPods: sm.PodDetector{CIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}})
	for i := range n {
		eps := make([]sm.Endpoint, m)
		for j := range eps {
			eps[j] = sm.Endpoint{Addr: addr(11, 0, i*m+j+1), Ports: ports("http"),
				Node: fmt.Sprintf("n%d", j%5)}
		}

		s = s.WithService(service(name(i), addr(10, 96, i+1))).WithEndpoints(name(i), eps)
	}

	return s
}

// web has endpoints of different weights, an endpoint that is not ready, and policy Local.
func web() sm.State {
	n := sm.Name{Namespace: "default", Name: "web"}
	return many(0, 0).
		WithService(service(n, addr(10, 96, 10), func(s *sm.Service) {
			s.Ports[0].NodePort = 30080
			s.ExternalTrafficPolicy = sm.PolicyLocal
		})).
		WithEndpoints(n, []sm.Endpoint{
			{Addr: addr(10, 244, 1), Weight: 3, Ports: ports("http"), Node: "n1"},
			{Addr: addr(10, 244, 2), Ports: ports("http"), Node: "n2", Zone: "b"},
			{Addr: addr(10, 244, 3), Ports: ports("http"), Node: "n2", Condition: sm.NotReady},
		})
}

// broken returns web with three more services: a service without endpoints, a service that loses
// its node port, and an invalid service.
func broken() sm.State {
	nodePort := func(s *sm.Service) { s.Ports[0].NodePort = 30080 }
	zebra := sm.Name{Namespace: "default", Name: "zebra"}
	return web().
		WithService(service(sm.Name{Namespace: "default", Name: "shop"}, addr(10, 96, 11))).
		WithService(service(sm.Name{Namespace: "default", Name: "x_y"}, addr(10, 96, 12))).
		WithService(service(zebra, addr(10, 96, 13), nodePort)).
		WithEndpoints(zebra, []sm.Endpoint{{Addr: addr(10, 244, 9),
			Ports: ports("http")}})
}

// found returns a function that returns a report.
func found(r node.Report) func(context.Context, *sm.Table) *node.Report {
	return func(context.Context, *sm.Table) *node.Report { return &r }
}

// findings contains one finding of each severity.
var findings = []node.Finding{
	{Check: node.Forwarding, Severity: node.Error, Means: "IPv4 forwarding is off",
		Do: "sysctl -w net.ipv4.ip_forward=1"},
	{Check: node.Conntrack, Severity: node.Warning, Means: "nearly full", Do: "kernlb tune"},
	{Check: node.ForeignChains, Severity: node.Note, Means: "drops by default", Do: "diagnose"},
}

func here() ([]netip.Addr, error) { return []netip.Addr{addr(192, 168, 1)}, nil }

// chains are two chains of another program. One of them drops packets.
func chains(context.Context) ([]hooks.Chain, error) {
	return []hooks.Chain{
		{Family: "inet", Table: "fw", Name: "out", Type: "filter", Hook: hooks.Postrouting,
			Priority: 10, Drops: []hooks.Rule{{Chain: "web", Handle: 7, Text: "th dport 80 drop"}}},
		{Family: "ip", Table: "fw", Name: "fwd", Type: "filter", Hook: hooks.Forward,
			DropsByDefault: true},
	}, nil
}
