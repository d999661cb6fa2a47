package ipvs_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/netnstest"
	"github.com/kernlb/kernlb/servicemodel"
)

// ask sends packets of every protocol to an address, and returns what came of them: the servers
// that answered, or what else.
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

// With the addresses on a device, services do what they do without: for pods, clients outside and
// the host, in both families and all protocols.
func TestKernelServicesWithDevice(t *testing.T) {
	t.Parallel()
	k := newKernel(t, withDevice)
	for _, h := range k.Pods {
		for _, proto := range []netnstest.Protocol{netnstest.UDP, netnstest.SCTP} {
			require.NoError(t, h.Serve(proto, 8080))
		}
	}
	external := []netip.Addr{netip.MustParseAddr("203.0.113.10"),
		netip.MustParseAddr("2001:db8:113::10")}
	service := func(edit ...func(*servicemodel.Service)) *servicemodel.Service {
		s := web(edit...)
		s.Ports = nil
		for _, p := range []servicemodel.Protocol{servicemodel.TCP, servicemodel.UDP,
			servicemodel.SCTP} {
			s.Ports = append(s.Ports, servicemodel.ServicePort{Name: p.String(), Protocol: p,
				Port: 80})
		}
		return s
	}
	state := func(s *servicemodel.Service, here, other []string) servicemodel.State {
		var l []servicemodel.Endpoint
		for node, pods := range map[string][]string{"this": here, "other": other} {
			for _, p := range pods {
				for _, a := range []netip.Addr{k.pods[p].IPv4, k.pods[p].IPv6} {
					e := servicemodel.Endpoint{Addr: a, Ready: true, Serving: true, Node: node}
					for _, sp := range s.Ports {
						e.Ports = append(e.Ports, servicemodel.EndpointPort{Name: sp.Name,
							Protocol: sp.Protocol, Port: 8080})
					}
					l = append(l, e)
				}
			}
		}
		n := servicemodel.Node{Name: "this", LocalPods: servicemodel.PodDetector{
			CIDRs: []netip.Prefix{
				netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/48")}}}
		return servicemodel.State{}.WithNode(n).WithService(s).WithEndpoints(s.Name, l)
	}
	local := func(s *servicemodel.Service) {
		s.ExternalIPs, s.ExternalTrafficPolicy = external, servicemodel.PolicyLocal
	}
	ranges := func(s *servicemodel.Service) {
		for _, a := range external {
			s.LoadBalancerIPs = append(s.LoadBalancerIPs, servicemodel.LoadBalancerIP{Addr: a})
		}
		for _, a := range []netip.Addr{k.Outside[0].IPv4, k.Outside[0].IPv6} {
			s.LoadBalancerSourceRanges = append(s.LoadBalancerSourceRanges,
				netip.PrefixFrom(a, a.BitLen()))
		}
	}
	sticky := func(s *servicemodel.Service) { s.SessionAffinity.ClientIP = true }
	pod1, pod2, outside, outside2, othernode, node := k.pods["pod1"], k.pods["pod2"], k.Outside[0],
		k.Outside[1], k.OtherNode, k.Node
	both, two, three := []string{"pod2", "pod3"}, []string{"pod2"}, []string{"pod3"}
	for _, tc := range []struct {
		name        string
		service     *servicemodel.Service
		here, other []string
		to          []netip.Addr
		want        map[*netnstest.Host][]string
	}{
		{"cluster IP", service(), both, nil, webAddrs, map[*netnstest.Host][]string{pod1: both,
			outside: both, othernode: both, node: both}},
		{"hairpin", service(), two, nil, webAddrs, map[*netnstest.Host][]string{pod2: two,
			pod1: two, node: two}},
		{"no endpoints", service(), nil, nil, webAddrs, map[*netnstest.Host][]string{
			pod1: {"refused"}, outside: {"refused"}, node: {"refused"}}},
		{"external Local", service(local), two, three, external, map[*netnstest.Host][]string{
			pod1: both, outside: two, node: both}},
		{"external Local without local endpoints", service(local), nil, both, external,
			map[*netnstest.Host][]string{outside: {"dropped"}, node: both}},
		{"source ranges", service(ranges), both, nil, external, map[*netnstest.Host][]string{
			outside: both, outside2: {"dropped"}}},
	} {
		k.apply(state(tc.service, tc.here, tc.other))
		for from, want := range tc.want {
			for _, to := range tc.to {
				set := map[string]bool{}
				for _, w := range want {
					set[w] = true
				}
				require.Equal(t, set, k.ask(from, to, 80), "%s: from %s to %v", tc.name,
					from.Name, to)
			}
		}
	}
	k.apply(state(service(sticky), both, nil))
	for _, to := range webAddrs {
		servers := map[string]bool{}
		for range 6 {
			out := netnstest.Probe{From: outside, Proto: netnstest.TCP,
				To: netip.AddrPortFrom(to, 80), Timeout: 3 * time.Second}.Send(t.Context())
			require.Equal(t, netnstest.Answered, out.Kind, "%v", out)
			servers[out.Server] = true
		}
		require.Len(t, servers, 1, servers)
	}
}

// What changes with a device: other ports of the addresses are the host's own. What the host sends
// elsewhere has no address of a service.
func TestKernelDeviceMakesAddressesTheHosts(t *testing.T) {
	t.Parallel()
	k := newKernel(t, withDevice)
	k.apply(k.state(web(), "pod2"))
	require.NoError(t, k.Outside[0].Serve(netnstest.TCP, 9000))
	for _, a := range webAddrs {
		ask := func(from *netnstest.Host, port uint16) netnstest.Outcome {
			return netnstest.Probe{From: from, Proto: netnstest.TCP,
				To: netip.AddrPortFrom(a, port), Timeout: 3 * time.Second}.Send(t.Context())
		}
		require.Equal(t, netnstest.Refused, ask(k.pods["pod1"], 81).Kind)
		_, err := k.Node.NS.Serve("node", netnstest.TCP, netip.AddrPortFrom(a, 81))
		require.NoError(t, err)
		for _, from := range []*netnstest.Host{k.pods["pod1"], k.Outside[0], k.Node} {
			require.Equal(t, "node", ask(from, 81).Server, from.Name)
		}
		to := netip.AddrPortFrom(k.Outside[0].Addr(a), 9000)
		out := netnstest.Probe{From: k.Node, Proto: netnstest.TCP, To: to,
			Timeout: 3 * time.Second}.Send(t.Context())
		require.Equal(t, netnstest.Answered, out.Kind, "%v", out)
		require.True(t, k.IsNodeAddr(out.Source.Addr()), "%v", out)
	}
}
