package servicemodel_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	sm "github.com/kernlb/kernlb/servicemodel"
)

func port(name string) sm.PortName {
	return sm.PortName{Name: sm.Name{Namespace: "default", Name: name}, Port: "http",
		Protocol: sm.TCP}
}

// at returns a service with the given external IPs and nothing else.
func at(name string, external ...string) *sm.Service {
	return &sm.Service{
		Name:        sm.Name{Namespace: "default", Name: name},
		Ports:       []sm.ServicePort{{Name: "http", Protocol: sm.TCP, Port: 80}},
		ExternalIPs: addrs(external...),
	}
}

func TestTheLowerKindAndThenTheLowerNameWins(t *testing.T) {
	t.Parallel()
	key := sm.FrontendKey{Addr: ip("10.96.0.1"), Protocol: sm.TCP, Port: 80}
	lb := at("lb")
	lb.LoadBalancerIPs = []sm.LoadBalancerIP{{Addr: key.Addr}}
	cluster := at("zz")
	cluster.ClusterIPs = webService().ClusterIPs
	s := sm.State{}
	for _, svc := range []*sm.Service{at("b", "10.96.0.1"), lb, at("a", "10.96.0.1", "10.96.0.7"),
		cluster} {
		s = s.WithService(svc)
	}
	table := mustResolve(t, nil, s)
	require.Equal(t, []sm.Conflict{
		{Key: key, Winner: port("zz"), Loser: port("lb")},
		{Key: key, Winner: port("zz"), Loser: port("a")},
		{Key: key, Winner: port("zz"), Loser: port("b")},
	}, slices.Collect(table.Conflicts()))

	for _, winner := range []string{"zz", "lb", "a", "b"} {
		require.Equal(t, port(winner), table.Frontend(key).Service, "the next takes over")
		s = s.WithoutService(port(winner).Name)
		table = mustResolve(t, table, s)
	}
	require.Nil(t, table.Frontend(key))
	require.Empty(t, slices.Collect(table.Conflicts()))
}

func TestAPoolExistsWhileAWinnerUsesIt(t *testing.T) {
	t.Parallel()
	eps := []sm.Endpoint{endpoint("10.64.0.1", here)}
	a, b := at("a", "198.51.100.1"), at("b", "198.51.100.1")
	s := sm.State{}.WithNode(thisNode).WithService(b).WithEndpoints(b.Name, eps).WithEndpoints(
		a.Name, eps[:1])
	only := mustResolve(t, nil, s)
	require.NotNil(t, only.Pool(sm.PoolID{Service: port("b"), Family: sm.IPv4}))

	taken := mustResolve(t, only, s.WithService(a))
	require.Nil(t, taken.Pool(sm.PoolID{Service: port("b"), Family: sm.IPv4}), "b answers nowhere")
	require.NotNil(t, taken.Pool(sm.PoolID{Service: port("a"), Family: sm.IPv4}))
	require.Empty(t, taken.FrontendsOf(port("b")))
	require.Empty(t, sm.Diff(only, taken).Hairpins, "the endpoint is the same")

	// The loser changes while it loses. The change shows when it takes over.
	grown := s.WithService(a).WithEndpoints(b.Name, []sm.Endpoint{endpoint("10.64.0.1", here),
		endpoint("10.64.0.2")})
	waiting := mustResolve(t, taken, grown)
	require.Empty(t, sm.Diff(taken, waiting).String())
	back := mustResolve(t, waiting, grown.WithoutService(a.Name))
	require.Len(t, back.Pool(sm.PoolID{Service: port("b"), Family: sm.IPv4}).Slots, 2)
	require.Len(t, back.FrontendsOf(port("b")), 1)
}

func TestAServiceDoesNotConflictWithItself(t *testing.T) {
	t.Parallel()
	table := tableOf(t, thisNode, webService(func(s *sm.Service) {
		s.ExternalIPs = addrs("10.96.0.1", "203.0.113.1", "203.0.113.1")
		s.LoadBalancerIPs = []sm.LoadBalancerIP{{Addr: ip("203.0.113.1")}}
		s.LoadBalancerSourceRanges = prefixes("198.51.100.0/24")
	}), endpoint("10.64.0.1"))
	require.Empty(t, slices.Collect(table.Conflicts()))
	require.Equal(t, sm.ClusterIP, frontendAt(t, table, "10.96.0.1:80", sm.TCP).Kind)
	lb := frontendAt(t, table, "203.0.113.1:80", sm.TCP)
	require.Equal(t, sm.LoadBalancer, lb.Kind)
	require.NotNil(t, lb.Sources,
		"naming the address as external IP too does not lift the restriction")
}

func TestNodePortsConflictWithinTheirFamily(t *testing.T) {
	t.Parallel()
	other := webService(named("other"), func(s *sm.Service) {
		s.ClusterIPs = addrs("10.96.0.2", "fd96::2")
	})
	table := mustResolve(t, nil, sm.State{}.WithService(webService()).WithService(other))
	require.Equal(t, []sm.Conflict{{
		Key:    sm.FrontendKey{Addr: ip("0.0.0.0"), Protocol: sm.TCP, Port: 30080},
		Winner: port("other"), Loser: port("web"),
	}}, slices.Collect(table.Conflicts()))
	require.Equal(t, port("other"), frontendAt(t, table, "[::]:30080", sm.TCP).Service)
}
