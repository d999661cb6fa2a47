package ipvs_test

import (
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/servicemodel"
)

// ask sends packets of every protocol to an address, and returns the results: the servers that
// answered, or other outcomes.
func (k *kernel) ask(from *netnstest.Host, to netip.Addr, port uint16) map[string]bool {
	k.t.Helper()
	var probes []netnstest.Probe
	for _, proto := range netnstest.Protocols() {
		for range 6 {
			probes = append(probes, netnstest.Probe{From: from, Proto: proto,
				To: netip.AddrPortFrom(to, port), Timeout: 2 * time.Second})
		}
	}
	m := map[string]bool{}
	for _, out := range netnstest.SendAll(k.t.Context(), probes) {
		if out.Kind == netnstest.Answered {
			m[out.Server] = true
		} else {
			m[out.Kind.String()] = true
		}
	}
	return m
}

var externalAddrs = []netip.Addr{netip.MustParseAddr("203.0.113.10"),
	netip.MustParseAddr("2001:db8:113::10")}

// inAllProtocols is web with a port of each protocol.
func inAllProtocols(edit ...func(*servicemodel.Service)) *servicemodel.Service {
	s := web(edit...)
	s.Ports = nil
	for _, p := range []servicemodel.Protocol{servicemodel.TCP, servicemodel.UDP,
		servicemodel.SCTP} {
		s.Ports = append(s.Ports, servicemodel.ServicePort{Name: p.String(), Protocol: p,
			Port: 80})
	}
	return s
}

// endpointsAt returns endpoints in pods for all ports of a service, as if they were on a node.
func (k *kernel) endpointsAt(node string, s *servicemodel.Service,
	pods []string) (l []servicemodel.Endpoint) {
	var ports []servicemodel.EndpointPort
	for _, p := range s.Ports {
		ports = append(ports, servicemodel.EndpointPort{Name: p.Name, Protocol: p.Protocol,
			Port: 8080})
	}
	for _, p := range pods {
		for _, a := range []netip.Addr{k.pods[p].IPv4, k.pods[p].IPv6} {
			l = append(l, servicemodel.Endpoint{Addr: a, Ready: true, Serving: true, Node: node,
				Ports: ports})
		}
	}
	return l
}

// detecting is the state of a service with endpoints on this node and another. The node can
// recognize pods.
func (k *kernel) detecting(s *servicemodel.Service, here, other []string) servicemodel.State {
	n := servicemodel.Node{Name: "this", LocalPods: servicemodel.PodDetector{CIDRs: []netip.Prefix{
		netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/48")}}}
	return servicemodel.State{}.WithNode(n).WithService(s).WithEndpoints(s.Name,
		append(k.endpointsAt("this", s, here), k.endpointsAt("other", s, other)...))
}

// outcome is the result for each host that asks a service: the pods that answer, or something else.
type outcome map[*netnstest.Host][]string

// servicesWithDevice are services, their endpoints here and on another node, and the outcomes at
// their addresses.
func (k *kernel) servicesWithDevice() []struct {
	name        string
	service     *servicemodel.Service
	here, other []string
	to          []netip.Addr
	want        outcome
} {
	local := func(s *servicemodel.Service) {
		s.ExternalIPs, s.ExternalTrafficPolicy = externalAddrs, servicemodel.PolicyLocal
	}
	pod1, pod2, outside, outside2 := k.pods["pod1"], k.pods["pod2"], k.Outside[0], k.Outside[1]
	ranges := func(s *servicemodel.Service) {
		for _, a := range externalAddrs {
			s.LoadBalancerIPs = append(s.LoadBalancerIPs, servicemodel.LoadBalancerIP{Addr: a})
			from := outside.Addr(a)
			s.LoadBalancerSourceRanges = append(s.LoadBalancerSourceRanges,
				netip.PrefixFrom(from, from.BitLen()))
		}
	}
	both, two, three := []string{"pod2", "pod3"}, []string{"pod2"}, []string{"pod3"}
	refused, dropped := []string{"refused"}, []string{"dropped"}
	return []struct {
		name        string
		service     *servicemodel.Service
		here, other []string
		to          []netip.Addr
		want        outcome
	}{
		{"cluster IP", inAllProtocols(), both, nil, webAddrs,
			outcome{pod1: both, outside: both, k.OtherNode: both, k.Node: both}},
		{"hairpin", inAllProtocols(), two, nil, webAddrs,
			outcome{pod2: two, pod1: two, k.Node: two}},
		{"no endpoints", inAllProtocols(), nil, nil, webAddrs,
			outcome{pod1: refused, outside: refused, k.Node: refused}},
		{"external Local", inAllProtocols(local), two, three, externalAddrs,
			outcome{pod1: both, outside: two, k.Node: both}},
		{"external Local without local endpoints", inAllProtocols(local), nil, both, externalAddrs,
			outcome{outside: dropped, k.Node: both}},
		{"source ranges", inAllProtocols(ranges), both, nil, externalAddrs,
			outcome{outside: both, outside2: dropped}},
	}
}

// With the addresses on a device, services work as without: for pods, clients outside and the host,
// in both families and all protocols.
func TestKernelServicesWithDevice(t *testing.T) {
	t.Parallel()
	k := newKernel(t, withDevice)
	for _, h := range k.Pods {
		for _, proto := range []servicemodel.Protocol{servicemodel.UDP, servicemodel.SCTP} {
			require.NoError(t, h.Serve(proto, 8080))
		}
	}
	for _, tc := range k.servicesWithDevice() {
		k.apply(k.detecting(tc.service, tc.here, tc.other))
		for from, want := range tc.want {
			for _, to := range tc.to {
				require.ElementsMatch(t, want, slices.Collect(maps.Keys(k.ask(from, to, 80))),
					"%s: from %s to %v", tc.name, from.Name, to)
			}
		}
	}
	sticky := func(s *servicemodel.Service) { s.SessionAffinity.ClientIP = true }
	k.apply(k.detecting(inAllProtocols(sticky), []string{"pod2", "pod3"}, nil))
	for _, to := range webAddrs {
		servers := map[string]bool{}
		for range 6 {
			out := netnstest.Probe{From: k.Outside[0], Proto: servicemodel.TCP,
				To: netip.AddrPortFrom(to, 80), Timeout: 3 * time.Second}.Send(t.Context())
			require.Equal(t, netnstest.Answered, out.Kind, "%v", out)
			servers[out.Server] = true
		}
		require.Len(t, servers, 1, servers)
	}
}

// This is the difference with a device: other ports of the addresses belong to the host. Packets of
// the host to elsewhere do not have the address of a service.
func TestKernelDeviceMakesAddressesTheHosts(t *testing.T) {
	t.Parallel()
	k := newKernel(t, withDevice)
	k.apply(k.state(web(), "pod2"))
	require.NoError(t, k.Outside[0].Serve(servicemodel.TCP, 9000))
	for _, a := range webAddrs {
		ask := func(from *netnstest.Host, port uint16) netnstest.Outcome {
			return netnstest.Probe{From: from, Proto: servicemodel.TCP,
				To: netip.AddrPortFrom(a, port), Timeout: 3 * time.Second}.Send(t.Context())
		}
		require.Equal(t, netnstest.Refused, ask(k.pods["pod1"], 81).Kind)
		ok(k.Node.NS.Serve("node", servicemodel.TCP, netip.AddrPortFrom(a, 81)))(t)
		for _, from := range []*netnstest.Host{k.pods["pod1"], k.Outside[0], k.Node} {
			require.Equal(t, "node", ask(from, 81).Server, from.Name)
		}
		to := netip.AddrPortFrom(k.Outside[0].Addr(a), 9000)
		out := netnstest.Probe{From: k.Node, Proto: servicemodel.TCP, To: to,
			Timeout: 3 * time.Second}.Send(t.Context())
		require.Equal(t, netnstest.Answered, out.Kind, "%v", out)
		require.True(t, k.IsNodeAddr(out.Source.Addr()), "%v", out)
	}
}
