package servicemodel_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	sm "github.com/kernlb/kernlb/servicemodel"
)

// everywhere gives default/web an address of each kind.
func everywhere(s *sm.Service) {
	s.ExternalIPs = addrs("198.51.100.1")
	s.LoadBalancerIPs = []sm.LoadBalancerIP{{Addr: ip("203.0.113.1")}}
}

func TestSourceRanges(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		ranges []string
		v4, v6 []string
	}{
		{"none", nil, nil, nil},
		{"of one family leave the other open", []string{"198.51.100.0/24"},
			[]string{"198.51.100.0/24"}, nil},
		{"of both families", []string{"fd00::/8", "198.51.100.0/24"}, []string{"198.51.100.0/24"},
			[]string{"fd00::/8"}},
		{"a whole family opens that family", []string{"198.51.100.0/24", "0.0.0.0/0", "fd00::/8"},
			nil, []string{"fd00::/8"}},
		{"are sorted, masked, and not nested", []string{"198.51.100.9/24", "10.0.0.0/8",
			"10.1.0.0/16", "198.51.100.0/24"},
			[]string{"10.0.0.0/8", "198.51.100.0/24"}, nil},
		{"that hold the node let in the load balancer's own addresses", []string{"192.0.2.0/24"},
			[]string{"192.0.2.0/24", "203.0.113.1/32"}, nil},
		{"that hold the node's address of the other family do not",
			[]string{"2001:db8::/64", "198.51.100.0/24"},
			[]string{"198.51.100.0/24"}, []string{"2001:db8::/64", "2001:db8:1::1/128"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			table := tableOf(t, thisNode, webService(everywhere, func(s *sm.Service) {
				s.ClusterIPs = append(s.ClusterIPs, ip("fd96::1"))
				s.LoadBalancerIPs = append(s.LoadBalancerIPs,
					sm.LoadBalancerIP{Addr: ip("2001:db8:1::1")},
					sm.LoadBalancerIP{Addr: ip("203.0.113.9"), Proxy: true})
				s.LoadBalancerSourceRanges = prefixes(tt.ranges...)
			}))
			require.Equal(t, prefixes(tt.v4...), frontendAt(t, table, "203.0.113.1:80", sm.TCP).
				Sources)
			require.Equal(t, prefixes(tt.v6...), frontendAt(t, table, "[2001:db8:1::1]:80", sm.TCP).
				Sources)
			for f := range table.Frontends() {
				if f.Kind != sm.LoadBalancer {
					require.Nil(t, f.Sources, "only load balancer IPs are restricted: %v", f)
				}
			}
		})
	}
}

func TestFamiliesInWhichAServiceExists(t *testing.T) {
	t.Parallel()
	v4, v6 := endpoint("10.64.0.1"), endpoint("fd64::1")
	external := func(list ...string) func(*sm.Service) {
		return func(s *sm.Service) { s.ClusterIPs, s.ExternalIPs = nil, addrs(list...) }
	}
	tests := []struct {
		name      string
		service   func(*sm.Service)
		endpoints []sm.Endpoint
		want      []string
	}{
		{"the cluster IP's family only", func(s *sm.Service) {
			s.ExternalIPs = addrs("198.51.100.1", "2001:db8::9")
		}, []sm.Endpoint{v4, v6},
			[]string{"*4:30080/tcp cluster", "10.96.0.1:80/tcp cluster",
				"198.51.100.1:80/tcp cluster"}},
		{"both families, endpoints of one", func(s *sm.Service) {
			s.ClusterIPs = addrs("fd96::1", "10.96.0.1")
		}, []sm.Endpoint{v6},
			[]string{"*4:30080/tcp reject", "10.96.0.1:80/tcp reject", "*6:30080/tcp cluster",
				"[fd96::1]:80/tcp cluster"}},
		{"no cluster IP: addresses of both families, node ports where there are endpoints or " +
			"addresses",
			external("198.51.100.1"), []sm.Endpoint{v4},
			[]string{"*4:30080/tcp cluster", "198.51.100.1:80/tcp cluster"}},
		{"no cluster IP, endpoints of the other family", external("198.51.100.1"),
			[]sm.Endpoint{v6},
			[]string{"*4:30080/tcp reject", "198.51.100.1:80/tcp reject", "*6:30080/tcp cluster"}},
		{"no address at all, endpoints of one family", external(), []sm.Endpoint{v6},
			[]string{"*6:30080/tcp cluster"}},
		{"no address at all, no endpoints", external(), nil, []string{"*4:30080/tcp reject",
			"*6:30080/tcp reject"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			table := tableOf(t, thisNode, webService(tt.service), tt.endpoints...)
			var got []string
			for f := range table.Frontends() {
				got = append(got, f.Key.String()+" "+f.Internal.String())
			}
			require.Equal(t, tt.want, got)
		})
	}
}

func TestRulesOfANode(t *testing.T) {
	t.Parallel()
	addresses := addrs("192.0.2.1", "192.0.2.2")
	tests := []struct {
		name string
		node sm.Node
		want sm.Rules
	}{
		{"the zero node", sm.Node{}, sm.Rules{MasqueradeMark: 1 << 12,
			NodePorts: prefixes("0.0.0.0/0", "::/0")}},
		{"primary addresses; a family without one opens nowhere",
			sm.Node{Addresses: addresses, NodePortAddresses: sm.NodePortAddresses{Primary: true}},
			sm.Rules{MasqueradeMark: 1 << 12, NodePorts: prefixes("192.0.2.1/32")}},
		{"primary addresses of both families",
			sm.Node{Addresses: append(addrs("2001:db8::1"), addresses...),
				NodePortAddresses: sm.NodePortAddresses{Primary: true}},
			sm.Rules{MasqueradeMark: 1 << 12, NodePorts: prefixes("192.0.2.1/32",
				"2001:db8::1/128")}},
		{"CIDRs; a family without one opens everywhere",
			sm.Node{NodePortAddresses: sm.NodePortAddresses{
				CIDRs: prefixes("192.0.2.77/24", "192.0.2.128/25")}},
			sm.Rules{MasqueradeMark: 1 << 12, NodePorts: prefixes("192.0.2.0/24", "::/0")}},
		{"a CIDR of the whole family",
			sm.Node{NodePortAddresses: sm.NodePortAddresses{
				CIDRs: prefixes("192.0.2.0/24", "0.0.0.0/0", "fd00::/8")}},
			sm.Rules{MasqueradeMark: 1 << 12, NodePorts: prefixes("0.0.0.0/0", "fd00::/8")}},
		{"one family", sm.Node{OnlyFamily: sm.IPv6, Addresses: addresses,
			LocalPods:         sm.PodDetector{CIDRs: prefixes("fd64::/16", "10.64.0.0/16")},
			NodePortAddresses: sm.NodePortAddresses{CIDRs: prefixes("192.0.2.0/24")},
			ServiceCIDRs:      prefixes("10.96.0.0/12", "fd96::/112")},
			sm.Rules{MasqueradeMark: 1 << 12, OnlyFamily: sm.IPv6, NodePorts: prefixes("::/0"),
				ServiceCIDRs: prefixes("fd96::/112"),
				LocalPods:    sm.PodDetector{CIDRs: prefixes("fd64::/16")}}},
		{"everything else", sm.Node{
			LocalPods: sm.PodDetector{CIDRs: prefixes("fd64::1/16", "10.64.1.1/16",
				"10.64.3.0/24")}, MasqueradeMark: 2, LocalhostNodePorts: true,
			ServiceCIDRs: prefixes("10.96.0.0/12", "10.100.0.0/16")},
			sm.Rules{MasqueradeMark: 2, LocalhostNodePorts: true, NodePorts: prefixes("0.0.0.0/0",
				"::/0"), ServiceCIDRs: prefixes("10.96.0.0/12"),
				LocalPods: sm.PodDetector{CIDRs: prefixes("10.64.0.0/16", "fd64::/16")}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			table := mustResolve(t, nil, sm.State{}.WithNode(tt.node))
			tt.want.NoEndpoints = "reset"
			require.Equal(t, tt.want, table.Rules())
			require.True(t, table.Rules().Equal(tt.want))
		})
	}
}

func TestAffinityAndSchedulingReachTheTable(t *testing.T) {
	t.Parallel()
	table := tableOf(t, thisNode, webService(func(s *sm.Service) {
		s.SessionAffinity.ClientIP = true
		s.Scheduler, s.Forwarding = sm.Maglev, sm.ForwardTunnel
	}), endpoint("10.64.0.1"))
	for f := range table.Frontends() {
		require.Equal(t, 3*time.Hour, f.Affinity)
	}
	for p := range table.Pools() {
		require.Equal(t, sm.Maglev, p.Scheduler)
		require.Equal(t, sm.ForwardTunnel, p.Forwarding)
	}

	table = tableOf(t, thisNode, webService(func(s *sm.Service) {
		s.SessionAffinity = sm.SessionAffinity{ClientIP: true, Timeout: time.Minute}
	}))
	require.Equal(t, time.Minute, frontendAt(t, table, "10.96.0.1:80", sm.TCP).Affinity)
	table = tableOf(t, thisNode, webService(func(s *sm.Service) {
		s.SessionAffinity = sm.SessionAffinity{Timeout: time.Minute}
	}))
	require.Zero(t, frontendAt(t, table, "10.96.0.1:80", sm.TCP).Affinity)
	for bits, want := range map[uint8]uint8{0: 0, 1: 1, 24: 24, 32: 0} {
		table = tableOf(t, thisNode, webService(func(s *sm.Service) {
			s.SessionAffinity = sm.SessionAffinity{ClientIP: true, Bits4: bits, Bits6: 64,
				WholeService: true}
		}))
		require.Equal(t, want, frontendAt(t, table, "10.96.0.1:80", sm.TCP).AffinityBits)
		require.True(t, frontendAt(t, table, "10.96.0.1:80", sm.TCP).AffinityService)
	}
}

func TestHairpinsAreTheEndpointsThatMaySendThroughThisNode(t *testing.T) {
	t.Parallel()
	s := stateOf(thisNode, webService(), endpoint("10.64.0.2", here),
		endpoint("10.64.0.1", anywhere), endpoint("10.64.0.3"),
		endpoint("10.64.0.4", here, notReady))
	table := mustResolve(t, nil, s)
	require.Equal(t, []string{"10.64.0.1", "10.64.0.2"}, texts(table.Hairpins()))
	require.True(t, table.HasHairpin(ip("10.64.0.2")))
	require.False(t, table.HasHairpin(ip("10.64.0.3")))

	other := webService(named("other"), func(s *sm.Service) {
		s.ClusterIPs, s.Ports[0].NodePort = addrs("10.96.0.2"), 0
	})
	s = s.WithService(other).WithEndpoints(other.Name, []sm.Endpoint{endpoint("10.64.0.2", here)})
	shared := mustResolve(t, table, s)
	require.Equal(t, []string{"10.64.0.1", "10.64.0.2"}, texts(shared.Hairpins()))
	require.Empty(t, sm.Diff(table, shared).Hairpins)
	left := mustResolve(t, shared, s.WithoutService(web))
	require.Equal(t, []string{"10.64.0.2"}, texts(left.Hairpins()),
		"still an endpoint of the other service")
}

func TestClusterIPsAreThoseOfServicesWithPorts(t *testing.T) {
	t.Parallel()
	bare := webService(named("bare"), func(s *sm.Service) {
		s.ClusterIPs, s.Ports = addrs("10.96.0.9"), nil
	})
	twin := webService(named("twin"), func(s *sm.Service) {
		s.ClusterIPs = addrs("fd96::1", "10.96.0.1")
	})
	s := sm.State{}.WithService(webService()).WithService(bare).WithService(twin)
	table := mustResolve(t, nil, s)
	require.Equal(t, []string{"10.96.0.1", "fd96::1"}, texts(table.ClusterIPs()))
	next := mustResolve(t, table, s.WithoutService(web))
	require.Equal(t, []string{"10.96.0.1", "fd96::1"}, texts(next.ClusterIPs()),
		"still that of its twin")
	require.True(t, next.HasClusterIP(ip("fd96::1")))
	require.False(t, next.HasClusterIP(ip("10.96.0.9")))
}

func TestHealthChecksCountReadyAddressesOnThisNode(t *testing.T) {
	t.Parallel()
	withCheck := func(s *sm.Service) {
		s.HealthCheckNodePort = 32000
		s.ClusterIPs = append(s.ClusterIPs, ip("fd96::1"))
		s.Ports = append(s.Ports, sm.ServicePort{Name: "metrics", Protocol: sm.TCP, Port: 81})
	}

	eps := []sm.Endpoint{
		endpoint("10.64.0.1", here), endpoint("fd64::1", here), endpoint("10.64.0.2"),
		endpoint("10.64.0.3", here, terminating),
		endpoint("10.64.0.1", here, func(e *sm.Endpoint) {
			e.Ports = []sm.EndpointPort{{Name: "metrics", Protocol: sm.TCP, Port: 9}}
		}),
		endpoint("10.64.0.4", here, func(e *sm.Endpoint) {
			e.Ports = []sm.EndpointPort{{Name: "renamed", Protocol: sm.TCP, Port: 9}}
		}),
		endpoint("10.64.0.5", here, func(e *sm.Endpoint) { e.Ports = nil }),
	}
	checks := func(svc *sm.Service, eps ...sm.Endpoint) []sm.HealthCheck {
		return slices.Collect(tableOf(t, thisNode, svc, eps...).HealthChecks())
	}
	require.Equal(t, []sm.HealthCheck{{Service: web, Port: 32000, IPv4: 2, IPv6: 1}},
		checks(webService(externalLocal, withCheck), eps...))
	require.Equal(t, []sm.HealthCheck{{Service: web, Port: 32000}},
		checks(webService(externalLocal, withCheck)))
	require.Equal(t, []sm.HealthCheck{{Service: web, Port: 32000, IPv4: 2,
		IPv6: sm.NotServed}},
		checks(webService(externalLocal, withCheck, func(s *sm.Service) {
			s.ClusterIPs = s.ClusterIPs[:1]
		}), eps...), "IPv4 only")

	node := thisNode
	node.OnlyFamily = sm.IPv6
	require.Equal(t, []sm.HealthCheck{{Service: web, Port: 32000, IPv4: sm.NotServed, IPv6: 1}},
		slices.Collect(tableOf(t, node, webService(externalLocal, withCheck),
			eps...).HealthChecks()))
	require.Empty(t, checks(webService(withCheck), eps...), "policy Cluster")
	require.Empty(t, checks(webService(externalLocal), eps...), "no port")
}

func port(name string) sm.PortName {
	return sm.PortName{Name: sm.Name{Namespace: "default", Name: name}, Port: "http",
		Protocol: sm.TCP}
}

// at returns a service that has only the given external IPs.
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

	// The loser changes while it loses. The change becomes visible when it takes over.
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
