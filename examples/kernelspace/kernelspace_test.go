package kernelspace_test

import (
	"context"
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/examples/kernelspace"
	"github.com/kernlb/kernlb/examples/kernelspace/hnsfake"
	"github.com/kernlb/kernlb/internal/test/must"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// machine is a node: HNS, the record of the instance, and the configuration.
type machine struct {
	*testing.T
	hns *hnsfake.Service
	cfg kernelspace.Config
}

var bridge = kernelspace.Network{ID: "00000000-0000-4000-8000-00000000B41D", Name: "bridge",
	Type: "L2Bridge", Ipams: subnets("10.244.1.0/24", "fd00:10:244:1::/64")}

var overlay = kernelspace.Network{ID: "00000000-0000-4000-8000-0000000000FE", Name: "overlay",
	Type: "Overlay", Ipams: subnets("10.244.1.0/24", "fd00:10:244:1::/64"),
	Policies: []kernelspace.Policy{
		{Type: "VxlanPort", Settings: json.RawMessage(`{"Port":4789}`)},
		{Type: "RemoteSubnetRoute", Settings: json.RawMessage(`{"DestinationPrefix":` +
			`"10.244.2.0/24","IsolationId":4096,"ProviderAddress":"192.0.2.20",` +
			`"DistributedRouterMacAddress":"00-11-22-33-44-55"}`)},
		{Type: "RemoteSubnetRoute", Settings: json.RawMessage(`{"DestinationPrefix":` +
			`"fd00:10:244:2::/64","ProviderAddress":"2001:db8::20"}`)}}}

func subnets(l ...string) []kernelspace.Ipam {
	var i kernelspace.Ipam
	for _, s := range l {
		i.Subnets = append(i.Subnets, kernelspace.Subnet{IPAddressPrefix: s})
	}
	return []kernelspace.Ipam{i}
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// newMachine returns a node with the pods 10.244.1.1 to .4 and fd00:10:244:1::1 to ::4, and a root
// endpoint.
func newMachine(t *testing.T, n kernelspace.Network, f kernelspace.Features) *machine {
	t.Helper()
	m := &machine{T: t, hns: hnsfake.New(f, n), cfg: kernelspace.Config{Network: n.Name,
		SourceVIP: addr("10.244.1.250"), NodeIPs: []netip.Addr{addr("192.0.2.10"),
			addr("2001:db8::10")}, HostMAC: "02-00-00-00-00-10", Store: &kernelspace.Memory{}}}
	m.cfg.HNS = m.hns
	for _, p := range []string{"1", "2", "3", "4"} {
		m.local("pod-"+p, "10.244.1."+p, "fd00:10:244:1::"+p)
	}
	m.local("root", "10.244.1.254", "fd00:10:244:1::fe")
	m.hns.Calls()
	return m
}

// local adds an endpoint as the container runtime does.
func (m *machine) local(name string, addrs ...string) *kernelspace.Endpoint {
	m.Helper()
	n := must.OK(m.hns.Network(m.cfg.Network))(m)
	e := &kernelspace.Endpoint{Name: name, HostComputeNetwork: n.ID,
		MacAddress: "02-00-00-00-00-01", SchemaVersion: kernelspace.SchemaVersion{Major: 2}}
	for _, a := range addrs {
		e.IPConfigurations = append(e.IPConfigurations, kernelspace.IPConfig{IPAddress: a})
	}
	return must.OK(m.hns.CreateEndpoint(e))(m)
}

func forwardHealthChecks(c *kernelspace.Config) {
	c.ForwardHealthCheckVIP, c.RootEndpoint, c.HealthzPort = true, "root", 10256
}

// process is a program that starts.
func (m *machine) process() (*dataplane.Engine, *kernelspace.Backend) {
	m.Helper()
	b := must.OK(kernelspace.New(&m.cfg))(m)
	m.Cleanup(func() { b.Close() })
	return dataplane.New(b, nil), b
}

// apply applies a state with a new process.
func (m *machine) apply(s sm.State) *dataplane.Result {
	m.Helper()
	e, _ := m.process()
	return apply(m, e, s)
}

func apply(t testing.TB, e *dataplane.Engine, s sm.State) *dataplane.Result {
	t.Helper()
	r := must.OK(e.Apply(context.Background(), s))(t)
	require.Empty(t, r.Refused)
	return r
}

var web = sm.Name{Namespace: "default", Name: "web"}

// service is default/web with a port 80, changed by functions.
func service(change ...func(*sm.Service)) sm.State {
	s := &sm.Service{Name: web, ClusterIPs: []netip.Addr{addr("10.96.0.10")},
		Ports: []sm.ServicePort{{Protocol: sm.TCP, Port: 80}}}
	for _, f := range change {
		f(s)
	}
	return sm.State{}.WithNode(sm.Node{Name: "this"}).WithService(s)
}

// with adds endpoints. Endpoints in the node's ranges are on the node.
func with(s sm.State, addrs ...string) sm.State {
	for svc := range s.Services() {
		var eps []sm.Endpoint
		for _, a := range addrs {
			node := "other"
			if strings.HasPrefix(a, "10.244.1.") || strings.HasPrefix(a, "fd00:10:244:1:") {
				node = "this"
			}
			e := sm.Endpoint{Addr: addr(a), Node: node}
			for _, p := range svc.Ports {
				e.Ports = append(e.Ports, sm.EndpointPort{Name: p.Name, Protocol: p.Protocol,
					Port: 8080})
			}

			eps = append(eps, e)
		}

		s = s.WithEndpoints(svc.Name, eps)
	}

	return s
}

// everything gives a service each kind of address, in both families.
func everything(s *sm.Service) {
	s.ClusterIPs = append(s.ClusterIPs, addr("fd00:10:96::10"))
	s.ExternalIPs = []netip.Addr{addr("198.51.100.1"), addr("2001:db8:51::1")}
	s.LoadBalancerIPs = []sm.LoadBalancerIP{{Addr: addr("203.0.113.1")},
		{Addr: addr("2001:db8:113::1")}}
	s.Ports[0].NodePort = 30080
}

func local(s *sm.Service) {
	s.ExternalTrafficPolicy, s.HealthCheckNodePort = sm.PolicyLocal, 32000
}

// plan returns the plan of a state for an empty instance.
func (m *machine) plan(s sm.State) string {
	m.Helper()
	e, _ := m.process()
	r := must.OK(e.Plan(m.Context(), s))(m)
	return r.Plan.String()
}

func lines(l ...string) string { return strings.Join(l, "\n") + "\n" }

var mixed = []string{"10.244.1.1", "10.244.2.7", "fd00:10:244:1::1", "fd00:10:244:2::7"}

// plans returns the plan for each kind of address, traffic policy and network, as text.
func plans() []planCase {
	return []planCase{
		{"a service without endpoints", bridge, nil, service(), ""},
		{"all addresses", bridge, nil, with(service(everything), mixed...), lines(
			"add endpoint 10.244.2.7", "add endpoint fd00:10:244:2::7",
			"add load balancer *4:30080/tcp 10.244.1.1 10.244.2.7 port 8080 local-routed-vip "+
				"vip-external-ip",
			"add load balancer 10.96.0.10:80/tcp 10.244.1.1 10.244.2.7 port 8080",
			"add load balancer 198.51.100.1:80/tcp 10.244.1.1 10.244.2.7 port 8080 "+
				"vip-external-ip",
			"add load balancer 203.0.113.1:80/tcp 10.244.1.1 10.244.2.7 port 8080 "+
				"vip-external-ip",
			"add load balancer *6:30080/tcp fd00:10:244:1::1 fd00:10:244:2::7 port 8080 "+
				"local-routed-vip vip-external-ip",
			"add load balancer [2001:db8:51::1]:80/tcp fd00:10:244:1::1 fd00:10:244:2::7 port "+
				"8080 vip-external-ip",
			"add load balancer [2001:db8:113::1]:80/tcp fd00:10:244:1::1 fd00:10:244:2::7 port "+
				"8080 vip-external-ip",
			"add load balancer [fd00:10:96::10]:80/tcp fd00:10:244:1::1 fd00:10:244:2::7 port "+
				"8080")},
		{"external traffic policy", bridge, func(c *kernelspace.Config) {
			c.EnableDSR, c.ForwardHealthCheckVIP, c.RootEndpoint = true, true, "root"
		}, with(service(everything, local), mixed[:2]...), lines(
			"add endpoint 10.244.2.7",
			"add load balancer *4:30080/tcp 10.244.1.1 port 8080 local dsr local-routed-vip "+
				"vip-external-ip",
			"add load balancer 10.96.0.10:80/tcp 10.244.1.1 10.244.2.7 port 8080 dsr",
			"add load balancer 198.51.100.1:80/tcp 10.244.1.1 port 8080 local dsr vip-external-ip",
			"add load balancer 203.0.113.1:80/tcp 10.244.1.1 port 8080 local dsr vip-external-ip",
			"add load balancer 203.0.113.1:32000/tcp root-endpoint port 32000")},
		{"health checks of the node", bridge, forwardHealthChecks, with(service(
			func(s *sm.Service) {
				s.LoadBalancerIPs = []sm.LoadBalancerIP{{Addr: addr("203.0.113.1")}}
			}), "10.244.1.1"), lines(
			"add load balancer 10.96.0.10:80/tcp 10.244.1.1 port 8080",
			"add load balancer 203.0.113.1:80/tcp 10.244.1.1 port 8080 vip-external-ip",
			"add load balancer 203.0.113.1:10256/tcp root-endpoint port 10256")},
		{"internal traffic policy", bridge, nil, with(service(func(s *sm.Service) {
			s.InternalTrafficPolicy = sm.PolicyLocal
		}), mixed[:2]...), lines(
			"add load balancer 10.96.0.10:80/tcp 10.244.1.1 port 8080 local")},
		{"session affinity", bridge, nil, with(service(func(s *sm.Service) {
			s.SessionAffinity.ClientIP = true
		}), "10.244.1.1"), lines(
			"add load balancer 10.96.0.10:80/tcp 10.244.1.1 port 8080 source-ip")},
		{"direct routing", bridge, nil, with(service(local, func(s *sm.Service) {
			s.LoadBalancerIPs = []sm.LoadBalancerIP{{Addr: addr("203.0.113.1")}}
			s.Forwarding = sm.ForwardDirect
		}), "10.244.1.1"), lines(
			"add load balancer 10.96.0.10:80/tcp 10.244.1.1 port 8080",
			"add load balancer 203.0.113.1:80/tcp 10.244.1.1 port 8080 local dsr use-mux "+
				"preserve-dip vip-external-ip")},
		{"overlay", overlay, nil, with(service(), mixed[:2]...), lines(
			"add endpoint 10.244.2.7", "add endpoint 10.244.1.250", "add endpoint 10.96.0.10",
			"add load balancer 10.96.0.10:80/tcp 10.244.1.1 10.244.2.7 port 8080 from "+
				"10.244.1.250")},
		{"overlay, an endpoint is a node", overlay, nil, with(service(), "192.0.2.20"), lines(
			"add endpoint 192.0.2.20", "add endpoint 10.244.1.250", "add endpoint 10.96.0.10",
			"add load balancer 10.96.0.10:80/tcp 192.0.2.20 port 8080 from 192.0.2.10")},
		{"overlay, an endpoint is outside", overlay, nil, with(service(), "198.51.100.9"), lines(
			"add endpoint 198.51.100.9", "add endpoint 10.244.1.250", "add endpoint 10.96.0.10",
			"add load balancer 10.96.0.10:80/tcp 198.51.100.9 port 8080 from 192.0.2.10")},
		{"an endpoint of the node that is not in HNS", bridge, nil,
			with(service(), "10.244.1.1", "10.244.1.77"), lines(
				"add load balancer 10.96.0.10:80/tcp 10.244.1.1 10.244.1.77 port 8080")},
		{"no endpoint is in HNS", bridge, nil, with(service(), "10.244.1.77"), ""},
	}
}

type planCase struct {
	name    string
	network kernelspace.Network
	config  func(*kernelspace.Config)
	state   sm.State
	want    string
}

func TestPlans(t *testing.T) {
	t.Parallel()
	for _, c := range plans() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, c.network, hnsfake.AllFeatures)
			if c.config != nil {
				c.config(&m.cfg)
			}
			require.Equal(t, c.want, m.plan(c.state))
			r := m.apply(c.state)
			require.Equal(t, strings.Count(c.want, "\n"), r.Stats.Messages)
			m.nothing(c.state)
		})
	}
}

// nothing requires that a process that starts finds the state and writes nothing.
func (m *machine) nothing(s sm.State) {
	m.Helper()
	m.hns.Calls()
	r := m.apply(s)
	require.True(m, r.Changes.Empty(), "%s", r.Changes)
	require.Empty(m, r.Drift)
	require.Empty(m, m.hns.Calls())
}

// is requires the contents of HNS: load balancers by place, and the addresses of remote endpoints.
func (m *machine) is(lbs []string, remote ...string) {
	m.Helper()
	l := must.OK(m.hns.LoadBalancers())(m)
	var got, eps []string
	for i := range l {
		k, _ := l[i].Key()
		got = append(got, k.String())
	}

	n := must.OK(m.hns.Network(m.cfg.Network))(m)
	all := must.OK(m.hns.Endpoints(n.ID))(m)
	for _, e := range all {
		if e.Remote() {
			eps = append(eps, e.IPConfigurations[0].IPAddress)
		}
	}

	slices.Sort(got)
	slices.Sort(eps)
	slices.Sort(lbs)
	slices.Sort(remote)
	require.Equal(m, lbs, got)
	require.Equal(m, remote, eps)
}

// changed returns the service with two endpoints, the second of which is changed.
func changed(change func(*sm.Endpoint)) sm.State {
	s := with(service(), "10.244.1.1", "10.244.1.2")
	eps := s.Endpoints(web)
	change(&eps[1])
	return s.WithEndpoints(web, eps)
}
