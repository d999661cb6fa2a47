package kernelspace_test

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/examples/kernelspace"
	"github.com/kernlb/kernlb/examples/kernelspace/hnsfake"
	"github.com/kernlb/kernlb/internal/test/must"
	sm "github.com/kernlb/kernlb/servicemodel"
)

func TestOneChangeTouchesOneLoadBalancer(t *testing.T) {
	t.Parallel()
	other := func(s sm.State) sm.State {
		svc := &sm.Service{Name: sm.Name{Namespace: "default", Name: "other"},
			ClusterIPs: must.Addrs("10.96.0.11"),
			Ports:      []sm.ServicePort{{Protocol: sm.TCP, Port: 80}}}
		return s.WithService(svc).WithEndpoints(svc.Name, s.Endpoints(web))
	}

	two := other(with(service(), "10.244.1.1", "10.244.2.7"))
	grown := with(service(), "10.244.1.1", "10.244.2.7", "10.244.2.8").
		WithService(two.Service(sm.Name{Namespace: "default", Name: "other"})).
		WithEndpoints(sm.Name{Namespace: "default", Name: "other"}, two.Endpoints(web))
	fewer := func(f kernelspace.Features) kernelspace.Features {
		f.ModifyLoadBalancer = false
		return f
	}

	for _, c := range []struct {
		name     string
		features kernelspace.Features
		missing  bool
		want     []string
	}{
		{"in place", hnsfake.AllFeatures, false, []string{"create endpoint 10.244.2.8",
			"modify load balancer 10.96.0.10:80/tcp"}},
		{"HNS cannot modify", fewer(hnsfake.AllFeatures), false, []string{
			"create endpoint 10.244.2.8", "delete load balancer ID",
			"create load balancer 10.96.0.10:80/tcp"}},
		{"HNS says that it can, and cannot", hnsfake.AllFeatures, true, []string{
			"create endpoint 10.244.2.8", "modify load balancer 10.96.0.10:80/tcp",
			"delete load balancer ID", "create load balancer 10.96.0.10:80/tcp"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, bridge, c.features)
			e, _ := m.process()
			apply(m, e, two)
			if c.missing {
				m.hns.Fail(func(call string) hnsfake.Fault {
					if strings.HasPrefix(call, "modify") {
						return hnsfake.Missing
					}
					return hnsfake.None
				})
			}

			m.hns.Calls()
			apply(m, e, grown)
			require.Equal(t, c.want, withoutIDs(m.hns.Calls()))
			m.is([]string{"10.96.0.10:80/tcp", "10.96.0.11:80/tcp"}, "10.244.2.7", "10.244.2.8")

			apply(m, e, two) // the endpoint that no load balancer uses any more goes
			calls := m.hns.Calls()
			require.True(t, strings.HasPrefix(calls[len(calls)-1], "delete endpoint"), "%v", calls)
			m.is([]string{"10.96.0.10:80/tcp", "10.96.0.11:80/tcp"}, "10.244.2.7")
			apply(m, e, two.WithoutService(web))
			m.is([]string{"10.96.0.11:80/tcp"}, "10.244.2.7")
			apply(m, e, sm.State{})
			m.is(nil)
		})
	}
}

// withoutIDs replaces the identities that the fake makes up.
func withoutIDs(calls []string) (l []string) {
	for _, c := range calls {
		if before, _, found := strings.Cut(c, "ABCDEF00"); found {
			c = before + "ID"
		}
		l = append(l, c)
	}

	return l
}

func TestForeignLoadBalancersStay(t *testing.T) {
	t.Parallel()
	m := newMachine(t, bridge, hnsfake.AllFeatures)
	state := with(service(), "10.244.1.1", "10.244.2.7")
	pod := m.local("another", "10.244.1.9")
	m.foreign(pod, "10.96.0.99")
	m.apply(state)
	m.apply(sm.State{})
	e, b := m.process()
	apply(m, e, state)
	must.OK(b.Cleanup(t.Context()))(t)
	m.is([]string{"10.96.0.99:80/tcp"})

	// A taken place is a collision, and the other services are served.
	taken := m.foreign(pod, "10.96.0.10")
	e, _ = m.process()
	r := must.OK(e.Apply(t.Context(), state))(t)
	require.Len(t, r.Refused, 1)
	require.ErrorIs(t, r.Refused[0].Err, backends.ErrCollision)
	require.ErrorContains(t, r.Refused[0].Err, "load balancer 10.96.0.10:80/tcp is not ours")

	// If the program takes over, the load balancer is changed in place.
	m.cfg.TakeOver = true
	m.hns.Calls()
	m.apply(state)
	require.Equal(t, []string{"create endpoint 10.244.2.7",
		"modify load balancer 10.96.0.10:80/tcp"}, m.hns.Calls())
	l := must.OK(m.hns.LoadBalancers())(t)
	require.True(t, slices.ContainsFunc(l, func(lb kernelspace.LoadBalancer) bool {
		return lb.ID == taken.ID
	}))
	m.nothing(state)
}

// foreign adds a load balancer as another program does.
func (m *machine) foreign(pod *kernelspace.Endpoint, vip string) *kernelspace.LoadBalancer {
	m.Helper()
	return must.OK(m.hns.CreateLoadBalancer(&kernelspace.LoadBalancer{
		HostComputeEndpoints: []string{pod.ID}, FrontendVIPs: []string{vip},
		PortMappings:  []kernelspace.PortMapping{{Protocol: 6, InternalPort: 1, ExternalPort: 80}},
		SchemaVersion: pod.SchemaVersion}))(m)
}

// A foreign load balancer may be created between the reading and the commit, or between two calls
// of the commit.
func TestAPlaceThatIsTakenMeanwhileIsACollision(t *testing.T) {
	t.Parallel()
	for _, late := range []bool{false, true} {
		m := newMachine(t, bridge, hnsfake.AllFeatures)
		e, b := m.process()
		apply(m, e, service())
		pod := m.local("another", "10.244.1.9")
		state := with(service(), "10.244.1.1")
		if late {
			held := e.Status().Held
			want := must.OK(sm.Resolve(held, state))(t)
			m.foreign(pod, "10.96.0.10")
			_, err := b.Commit(t.Context(), sm.Diff(held, want))
			require.ErrorIs(t, err, kernelerr.ErrConflict)
		} else {
			m.foreign(pod, "10.96.0.10")
			i := must.OK(b.Integrity(t.Context()))(t)
			require.Equal(t, backends.Touched, i)
		}

		m.hns.Calls()
		r := must.OK(e.Apply(t.Context(), state))(t)
		require.Len(t, r.Refused, 1)
		require.ErrorIs(t, r.Refused[0].Err, backends.ErrCollision)
		require.Empty(t, m.hns.Calls())
	}
}

// The frontends of a load-balancer IP share one load balancer for health checks.
func TestHealthChecksStayAsLongAsAPortNeedsThem(t *testing.T) {
	t.Parallel()
	m := newMachine(t, bridge, hnsfake.AllFeatures)
	forwardHealthChecks(&m.cfg)
	ports := func(n ...uint16) sm.State {
		return with(service(func(s *sm.Service) {
			s.LoadBalancerIPs = []sm.LoadBalancerIP{{Addr: addr("203.0.113.1")}}
			s.Ports = nil
			for _, p := range n {
				s.Ports = append(s.Ports, sm.ServicePort{Name: fmt.Sprint("p", p),
					Protocol: sm.TCP, Port: p})
			}
		}), "10.244.1.1")
	}

	both := []string{"10.96.0.10:80/tcp", "10.96.0.10:81/tcp", "203.0.113.1:80/tcp",
		"203.0.113.1:81/tcp"}
	e, _ := m.process()
	for _, c := range []struct {
		state sm.State
		want  []string
	}{
		{ports(80, 81), append([]string{"203.0.113.1:10256/tcp"}, both...)},
		{ports(81), []string{both[1], both[3], "203.0.113.1:10256/tcp"}},
		{ports(81, 10256), []string{both[1], both[3], "203.0.113.1:10256/tcp",
			"10.96.0.10:10256/tcp"}}, // the service itself has the port
		{ports(81), []string{both[1], both[3], "203.0.113.1:10256/tcp"}},
		{ports(80), []string{both[0], both[2], "203.0.113.1:10256/tcp"}},
		{sm.State{}, nil},
	} {
		apply(m, e, c.state)
		m.is(c.want)
		m.nothing(c.state)
		fresh := newMachine(t, bridge, hnsfake.AllFeatures)
		forwardHealthChecks(&fresh.cfg)
		fresh.apply(c.state)
		require.Equal(t, fresh.content(), m.content())
	}
}

// Two services at one address share the load balancer for health checks, although only one of them
// asks for flags of direct routing.
func TestServicesShareTheHealthChecksOfAnAddress(t *testing.T) {
	t.Parallel()
	m := newMachine(t, bridge, hnsfake.AllFeatures)
	forwardHealthChecks(&m.cfg)
	one := func(name string, port uint16) *sm.Service {
		return &sm.Service{Name: sm.Name{Namespace: "default", Name: name},
			Ports:           []sm.ServicePort{{Protocol: sm.TCP, Port: port}},
			LoadBalancerIPs: []sm.LoadBalancerIP{{Addr: addr("203.0.113.1")}}}
	}

	direct := one("direct", 81)
	direct.Forwarding, direct.ExternalTrafficPolicy = sm.ForwardDirect, sm.PolicyLocal
	state := with(sm.State{}.WithNode(sm.Node{Name: "this"}).WithService(one("plain", 80)).
		WithService(direct), "10.244.1.1")
	m.apply(state)
	m.is([]string{"203.0.113.1:80/tcp", "203.0.113.1:81/tcp", "203.0.113.1:10256/tcp"})
	m.nothing(state)
}

// An object may be removed between the list of identities and the query about the object.
func TestAListThatIsInterruptedIsAConflict(t *testing.T) {
	t.Parallel()
	m := newMachine(t, bridge, hnsfake.AllFeatures)
	e, _ := m.process()
	left := 4
	m.hns.Fail(func(call string) hnsfake.Fault {
		if left--; left >= 0 && (call == "endpoints" || call == "load balancers") {
			return hnsfake.Vanished
		}
		return hnsfake.None
	})

	apply(m, e, with(service(), "10.244.1.1"))
	m.is([]string{"10.96.0.10:80/tcp"})
}

// A program that loses its record takes over its load balancers, if this is allowed.
func TestALostRecord(t *testing.T) {
	t.Parallel()
	for _, record := range []string{"", "not JSON", `{"layout":99}`} {
		m := newMachine(t, bridge, hnsfake.AllFeatures)
		m.cfg.TakeOver = true
		state := with(service(everything), mixed...)
		m.apply(state)
		before := must.OK(m.hns.LoadBalancers())(t)
		require.NoError(t, m.cfg.Store.Save([]byte(record)))
		m.hns.Calls()
		m.apply(state)
		for _, call := range m.hns.Calls() {
			require.True(t, strings.HasPrefix(call, "modify"), call)
		}
		after := must.OK(m.hns.LoadBalancers())(t)
		require.ElementsMatch(t, before, after)
		m.nothing(state)
	}
}

func TestEndpointsOfTheNodeComeAndGo(t *testing.T) {
	t.Parallel()
	m := newMachine(t, bridge, hnsfake.AllFeatures)
	e, b := m.process()
	state := with(service(), "10.244.1.1", "10.244.1.77")
	apply(m, e, state)
	integrity := func(want backends.Integrity) {
		t.Helper()
		i := must.OK(b.Integrity(t.Context()))(t)
		require.Equal(t, want, i)
	}

	endpoints := func(n int) {
		t.Helper()
		l := must.OK(m.hns.LoadBalancers())(t)
		require.Len(t, l, 1)
		require.Len(t, l[0].HostComputeEndpoints, n)
	}

	endpoints(1)
	integrity(backends.Intact)
	m.local("unrelated", "10.244.1.78")
	integrity(backends.Intact)
	pod := m.local("pod-77", "10.244.1.77")
	integrity(backends.Broken)
	r := apply(m, e, state)
	require.True(t, r.IsRepair())
	endpoints(2)
	integrity(backends.Intact)

	// The container runtime replaces the endpoint.
	lbs := must.OK(m.hns.LoadBalancers())(t)
	require.NoError(t, m.hns.DeleteLoadBalancer(lbs[0].ID))
	require.NoError(t, m.hns.DeleteEndpoint(pod.ID))
	m.local("pod-77", "10.244.1.77")
	integrity(backends.Broken)
	apply(m, e, state)
	endpoints(2)
	m.nothing(state)
}

// A missing endpoint is logged once, and again after it was present.
func TestAMissingEndpointIsLoggedOnce(t *testing.T) {
	t.Parallel()
	m := newMachine(t, bridge, hnsfake.AllFeatures)
	var log strings.Builder
	m.cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
	e, _ := m.process()
	logged := func(times int, addrs ...string) {
		t.Helper()
		apply(m, e, with(service(everything), addrs...))
		require.Equal(t, times, strings.Count(log.String(), "address=10.244.1.77"), &log)
	}

	logged(1, "10.244.1.1", "10.244.1.77")
	logged(1, "10.244.1.2", "10.244.1.77")
	pod := m.local("pod-77", "10.244.1.77")
	logged(1, "10.244.1.1", "10.244.1.77")
	logged(1, "10.244.1.2")
	require.NoError(t, m.hns.DeleteEndpoint(pod.ID))
	logged(2, "10.244.1.1", "10.244.1.77")
}

// A CNI plugin may recreate the network. The endpoints get new identities.
func TestAnotherNetworkOfTheSameName(t *testing.T) {
	t.Parallel()
	m := newMachine(t, bridge, hnsfake.AllFeatures)
	e, _ := m.process()
	state := with(service(), "10.244.1.1", "10.244.2.7")
	apply(m, e, state)
	m.hns.SetNetworks()
	_, err := e.Apply(t.Context(), state)
	require.ErrorIs(t, err, kernelspace.ErrNotFound)
	require.ErrorContains(t, err, "network bridge")
	again := bridge
	again.ID = "00000000-0000-4000-8000-00000000B42D"
	m.hns.SetNetworks(again)
	m.local("pod-1", "10.244.1.1")
	apply(m, e, state)
	m.is([]string{"10.96.0.10:80/tcp"}, "10.244.2.7")
	m.nothing(state)
}

// A network may be deleted before its services. Its endpoints are deleted with it.
func TestACleanupNeedsNoNetwork(t *testing.T) {
	t.Parallel()
	m := newMachine(t, bridge, hnsfake.AllFeatures)
	m.apply(with(service(everything), mixed...))
	m.hns.SetNetworks()
	e, _ := m.process()
	must.OK(e.Cleanup(t.Context()))(t)
	require.Empty(t, must.OK(m.hns.LoadBalancers())(t))
	require.Empty(t, must.OK(m.cfg.Store.Load())(t))
}

// Windows Server 2019 and 2022 let a local endpoint have the address of a remote endpoint.
func TestARemoteEndpointWithTheAddressOfALocalOneGoes(t *testing.T) {
	t.Parallel()
	m := newMachine(t, bridge, hnsfake.AllFeatures)
	e, _ := m.process()
	away := sm.Endpoint{Addr: addr("10.244.1.9"), Node: "other",
		Ports: []sm.EndpointPort{{Protocol: sm.TCP, Port: 8080}}}
	apply(m, e, service().WithEndpoints(web, []sm.Endpoint{away}))
	m.is([]string{"10.96.0.10:80/tcp"}, "10.244.1.9")
	m.local("pod-9", "10.244.1.9")
	state := with(service(), "10.244.1.9")
	r := apply(m, e, state)
	require.NotEmpty(t, r.Drift)
	m.is([]string{"10.96.0.10:80/tcp"})
	m.nothing(state)
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	none := kernelspace.Features{V2: true}
	lb := func(s *sm.Service) {
		s.LoadBalancerIPs = []sm.LoadBalancerIP{{Addr: addr("203.0.113.1")}}
	}
	for _, c := range []struct {
		name     string
		features kernelspace.Features
		state    sm.State
		want     string
	}{
		{"SCTP", hnsfake.AllFeatures, service(func(s *sm.Service) {
			s.Ports[0].Protocol = sm.SCTP
		}), "service default/web: protocol: sctp"},
		{"ranges of ports", hnsfake.AllFeatures, service(func(s *sm.Service) {
			s.Ports[0].EndPort, s.Ports[0].NodePort = 90, 0
		}), "service default/web: endPort: 90"},
		{"source ranges", hnsfake.AllFeatures, service(lb, func(s *sm.Service) {
			s.LoadBalancerSourceRanges = must.Prefixes("192.0.2.0/24")
		}), "service default/web: sources: 192.0.2.0/24"},
		{"host IPs", hnsfake.AllFeatures, service(func(s *sm.Service) {
			s.HostIPs = must.Addrs("192.0.2.10")
		}), "service default/web: hostIPs: 192.0.2.10"},
		{"masquerade", hnsfake.AllFeatures, service(func(s *sm.Service) {
			s.Masquerade.ClusterIPs = sm.MasqueradeAlways
		}), "service default/web: masquerade: all"},
		{"scheduler", hnsfake.AllFeatures, with(service(func(s *sm.Service) {
			s.Scheduler = sm.Maglev
		}), "10.244.1.1"), "service default/web: scheduler: mh"},
		{"tunnel", hnsfake.AllFeatures, with(service(func(s *sm.Service) {
			s.Forwarding = sm.ForwardTunnel
		}), "10.244.1.1"), "service default/web: forwarding: tunnel"},
		{"direct routing to all endpoints", hnsfake.AllFeatures, with(service(lb,
			func(s *sm.Service) { s.Forwarding = sm.ForwardDirect }), "10.244.1.1"),
			"service default/web: forwarding: direct"},
		{"weights", hnsfake.AllFeatures, changed(func(e *sm.Endpoint) { e.Weight = 3 }),
			"service default/web: weights: 3"},
		{"ports", hnsfake.AllFeatures, changed(func(e *sm.Endpoint) {
			e.Ports = []sm.EndpointPort{{Protocol: sm.TCP, Port: 9090}}
		}), "service default/web: endpoints: ports "},
		{"affinity on an old Windows", none, service(func(s *sm.Service) {
			s.SessionAffinity.ClientIP = true
		}), "service default/web: sessionAffinity: ClientIP"},
		{"affinity of a prefix", hnsfake.AllFeatures, service(func(s *sm.Service) {
			s.SessionAffinity = sm.SessionAffinity{ClientIP: true, Bits4: 24}
		}), "service default/web: sessionAffinity.bits: 24"},
		{"affinity for a whole service", hnsfake.AllFeatures, service(func(s *sm.Service) {
			s.SessionAffinity = sm.SessionAffinity{ClientIP: true, WholeService: true}
		}), "service default/web: sessionAffinity.service: true"},
		{"policy Local on an old Windows", none, with(service(local, lb), "10.244.1.1"),
			"service default/web: externalTrafficPolicy: Local"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, bridge, c.features)
			e, _ := m.process()
			r := must.OK(e.Apply(t.Context(), c.state))(t)
			require.Len(t, r.Refused, 1)
			require.Equal(t, web, r.Refused[0].Service)
			require.ErrorIs(t, r.Refused[0].Err, backends.ErrUnsupported)
			require.ErrorContains(t, r.Refused[0].Err, "kernelspace cannot express "+c.want)
			require.Empty(t, m.hns.Calls())
		})
	}
}

func TestRefusalsOfTheNode(t *testing.T) {
	t.Parallel()
	for field, change := range map[string]func(*sm.Node){
		"nodePortAddresses": func(n *sm.Node) {
			n.NodePortAddresses.CIDRs = must.Prefixes("192.0.2.0/24")
		},
		"serviceCIDRs":         func(n *sm.Node) { n.ServiceCIDRs = must.Prefixes("10.96.0.0/12") },
		"localhostNodePorts":   func(n *sm.Node) { n.LocalhostNodePorts = true },
		"masqueradeNeighbours": func(n *sm.Node) { n.MasqueradeNeighbours = true },
		"noEndpoints":          func(n *sm.Node) { n.NoEndpoints = "drop" },
		"forbidden":            func(n *sm.Node) { n.Forbidden = "reject" },
	} {
		m := newMachine(t, bridge, hnsfake.AllFeatures)
		e, _ := m.process()
		n := sm.Node{Name: "this"}
		change(&n)
		_, err := e.Apply(t.Context(), service().WithNode(n))
		require.ErrorIs(t, err, dataplane.ErrRefused, field)
		require.ErrorContains(t, err, "kernelspace cannot express node: "+field)
	}
}

// A family that HNS lacks is left out of all services.
func TestAWindowsWithoutIPv6(t *testing.T) {
	t.Parallel()
	f := hnsfake.AllFeatures
	f.IPv6DualStack = false
	m := newMachine(t, bridge, f)
	e, _ := m.process()
	r := must.OK(e.Apply(t.Context(), with(service(everything), mixed...)))(t)
	require.Len(t, r.Refused, 1)
	require.Equal(t, sm.IPv6, r.Refused[0].Family)
	m.is([]string{"*4:30080/tcp", "10.96.0.10:80/tcp", "198.51.100.1:80/tcp",
		"203.0.113.1:80/tcp"}, "10.244.2.7")
}

func TestConfigurationsThatCannotWork(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*kernelspace.Config){
		"Config.Network":      func(c *kernelspace.Config) { c.Network = "" },
		"Config.Store":        func(c *kernelspace.Config) { c.Store = nil },
		"Config.RootEndpoint": func(c *kernelspace.Config) { c.ForwardHealthCheckVIP = true },
		"Config.EnableDSR": func(c *kernelspace.Config) {
			c.EnableDSR, c.HNS = true, hnsfake.New(kernelspace.Features{V2: true})
		},
		"HNS has no API 2": func(c *kernelspace.Config) {
			c.HNS = hnsfake.New(kernelspace.Features{})
		},
	} {
		m := newMachine(t, bridge, hnsfake.AllFeatures)
		change(&m.cfg)
		_, err := kernelspace.New(&m.cfg)
		require.ErrorContains(t, err, want)
	}

	for want, change := range map[string]func(*kernelspace.Config){
		"Config.SourceVIP": func(c *kernelspace.Config) { c.SourceVIP = netip.Addr{} },
		"Config.NodeIPs":   func(c *kernelspace.Config) { c.NodeIPs = nil },
	} {
		m := newMachine(t, overlay, hnsfake.AllFeatures)
		change(&m.cfg)
		e, _ := m.process()
		_, err := e.Apply(t.Context(), service())
		require.ErrorContains(t, err, want)
	}
}

func TestClosed(t *testing.T) {
	t.Parallel()
	m := newMachine(t, bridge, hnsfake.AllFeatures)
	e, b := m.process()
	require.NoError(t, b.Close())
	require.NoError(t, b.Close())
	_, err := e.Apply(t.Context(), service())
	require.ErrorIs(t, err, kernelerr.ErrClosed)
	_, err = b.Plan(nil)
	require.True(t, errors.Is(err, kernelerr.ErrClosed))
}
