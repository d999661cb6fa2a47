package dataplanetest

import (
	"net/netip"
	"slices"

	"github.com/kernlb/kernlb/internal/netnstest"
	"github.com/kernlb/kernlb/servicemodel"
)

// addressScenarios are about where services answer, and to whom.
func addressScenarios() []Scenario {
	return slices.Concat(nodePortScenarios(), otherAddressScenarios())
}

// withNode is a state with the service and one endpoint, on a node that is edited.
func withNode(edit func(*servicemodel.Node)) servicemodel.State {
	n := podCIDRs(thisNode())
	edit(&n)
	return state(n, web(), eps("pod2"))
}

// nodePortScenarios are about where node ports answer.
func nodePortScenarios() []Scenario {
	outsideFacing := pair(netnstest.NodeOutsideIPv4, netnstest.NodeOutsideIPv6)
	underlay := pair(netnstest.NodeUnderlayIPv4, netnstest.NodeUnderlayIPv6)
	yes := to(NodeSource, "pod2")
	return []Scenario{
		{Name: "node ports answer at every address of the node", Line: "2.7",
			Steps: []Step{{State: withNode(func(*servicemodel.Node) {}), Checks: checks(
				ask("outside1", nodeIP, nodePort, yes), ask("outside1", nodeIP2, nodePort, yes),
				ask("outside1", outsideFacing, nodePort, yes),
				ask("pod1", underlay, nodePort, yes), ask("node", nodeIP2, nodePort, yes))}}},
		{Name: "node ports answer at the addresses in the CIDRs only", Line: "2.7",
			Steps: []Step{{State: withNode(func(n *servicemodel.Node) {
				n.NodePortAddresses.CIDRs = prefixes("192.0.2.11/32", "198.51.100.0/24",
					"2001:db8:2::11/128")
			}), Checks: checks(
				ask("outside1", nodeIP2, nodePort, yes), ask("outside1", nodeIP, nodePort,
					untouched),
				askFamily(0, "outside1", outsideFacing, nodePort, yes),
				askFamily(1, "outside1", outsideFacing, nodePort, untouched))}}},
		{Name: "CIDRs of one family leave the other unrestricted", Line: "2.7",
			Steps: []Step{{State: withNode(func(n *servicemodel.Node) {
				n.NodePortAddresses.CIDRs = prefixes("192.0.2.11/32")
			}), Checks: checks(
				askFamily(0, "outside1", nodeIP, nodePort, untouched),
				askFamily(1, "outside1", nodeIP, nodePort, yes))}}},
		{Name: "node ports answer at the primary addresses only", Line: "2.7",
			Steps: []Step{{State: withNode(func(n *servicemodel.Node) {
				n.NodePortAddresses.Primary = true
			}), Checks: checks(
				ask("outside1", nodeIP, nodePort, yes), ask("outside1", nodeIP2, nodePort,
					untouched), ask("node", outsideFacing, nodePort, untouched))}}},
		{Name: "primary, without an address of the family, answers nowhere", Line: "2.7",
			Steps: []Step{{State: withNode(func(n *servicemodel.Node) {
				n.NodePortAddresses.Primary, n.Addresses = true, n.Addresses[:1]
			}), Checks: checks(
				askFamily(0, "outside1", nodeIP, nodePort, yes), askFamily(1, "outside1", nodeIP,
					nodePort, untouched))}}},
		{Name: "node ports do not answer at loopback addresses", Line: "2.8",
			Steps: []Step{{State: withNode(func(*servicemodel.Node) {}),
				Checks: askFamily(0, "node", pair("127.0.0.1", "::1"), nodePort, untouched)[:1]}}},
		{Name: "a node port of another protocol is not touched", Line: "1.2",
			Steps: []Step{{State: state(thisNode(), web(func(s *servicemodel.Service) {
				s.Ports = s.Ports[:1]
			}), eps("pod2")), Checks: checks(
				ask("outside1", nodeIP, nodePort, to(NodeSource, "pod2"))[:1],
				ask("outside1", nodeIP, nodePort, untouched)[1:2])}}},
	}
}

// otherAddressScenarios are about the addresses of services, and what is beside them.
func otherAddressScenarios() []Scenario {
	yes := to(NodeSource, "pod2")
	return []Scenario{
		{Name: "an address of a service comes before a node port", Line: "2.7",
			Steps: []Step{
				{State: and(state(thisNode(), web(), eps("pod2")),
					web(named("b", clusterIP2), func(s *servicemodel.Service) {
						s.ExternalIPs = nodeIP[:]
						for i := range s.Ports {
							s.Ports[i].Port = nodePort
						}
					}), eps("pod3")), Checks: checks(
					ask("outside1", nodeIP, nodePort, to(NodeSource, "pod3")),
					ask("outside1", nodeIP2, nodePort, yes))}}},
		{Name: "other ports of a cluster IP are rejected", Line: "2.6",
			Steps: []Step{{State: state(thisNode(), web(), eps("pod2")), Checks: checks(
				ask("pod1", clusterIP, 81, rejected), ask("outside1", clusterIP, 81, rejected),
				ask("node", clusterIP, 81, rejected))}}},
		{Name: "other ports of external and load-balancer IPs are not touched", Line: "2.6",
			Steps: []Step{{State: state(thisNode(), web(), eps("pod2")), Checks: checks(
				ask("pod1", externalIP, 81, untouched), ask("outside1", lbIP, 81, untouched),
				ask("node", lbIP, 81, untouched))}}},
		{Name: "unused addresses of the service CIDR are dropped", Line: "2.6",
			Steps: []Step{{State: withNode(func(n *servicemodel.Node) {
				n.ServiceCIDRs = prefixes(netnstest.ServiceCIDRv4, netnstest.ServiceCIDRv6)
			}), Checks: checks(ask("pod1", unusedIP, servicePort, dropped),
				ask("node", unusedIP, servicePort, dropped),
				ask("pod1", clusterIP, servicePort, to(OwnSource, "pod2")),
				ask("pod1", clusterIP, 81, rejected))}}},
		{Name: "without a service CIDR they are not touched", Line: "2.6",
			Steps: []Step{{State: state(thisNode(), web(), eps("pod2")),
				Checks: ask("pod1", unusedIP, servicePort, untouched)}}},
		{Name: "a load balancer that is a proxy is left alone", Line: "1.2",
			Steps: []Step{{State: state(thisNode(), web(func(s *servicemodel.Service) {
				for i := range s.LoadBalancerIPs {
					s.LoadBalancerIPs[i].Mode = servicemodel.LoadBalancerProxy
				}
			}), eps("pod2")), Checks: checks(ask("pod1", lbIP, servicePort, untouched),
				ask("outside1", lbIP, servicePort, untouched),
				ask("outside1", externalIP, servicePort, to(NodeSource, "pod2")))}}},
		{Name: "two ports of a service are two services", Line: "1.2",
			Steps: []Step{{State: state(thisNode(), twoPorts(), twoPortEps()), Checks: []Check{
				{From: "pod1", Proto: servicemodel.TCP, To: netip.AddrPortFrom(clusterIP[0], 80),
					Want: to(OwnSource, "pod2")},
				{From: "pod1", Proto: servicemodel.TCP, To: netip.AddrPortFrom(clusterIP[0], 443),
					Want: Want{Outcome: servicemodel.Balanced,
						Servers: []string{serverName("pod2", PortB)}}},
			}}}},
		{Name: "masquerade all", Line: "2.2",
			Steps: []Step{
				{State: state(masqueradeAll(podCIDRs(thisNode())), web(), eps("pod2", "remote1")),
					Checks: checks(
						ask("pod1", clusterIP, servicePort, to(NodeSource, "pod2", "remote1")),
						ask("node", clusterIP, servicePort, to(NodeSource, "pod2", "remote1")),
						ask("outside1", clusterIP, servicePort,
							to(NodeSource, "pod2", "remote1")))}}},
		{Name: "masquerade all is for cluster IPs only", Line: "2.2",
			Steps: []Step{{State: state(masqueradeAll(podCIDRs(thisNode())), web(externalLocal),
				eps("pod2", "remote1")), Checks: checks(
				ask("outside1", lbIP, servicePort, to(OwnSource, "pod2")),
				ask("pod1", lbIP, servicePort, to(OwnSource, "pod2", "remote1")))}}},
		{Name: "another bit of the mark", Line: "2.1",
			Steps: []Step{{State: withNode(func(n *servicemodel.Node) {
				n.MasqueradeMark = 1 << 31
			}), Checks: ask("outside1", lbIP, servicePort, yes)}}},
		{Name: "what is not for a service is not touched", Line: "2.1",
			Steps: []Step{{State: withNode(func(*servicemodel.Node) {}), Checks: checks(
				ask("pod1", hostAddrs("pod3"), PortA, untouched), ask("outside1", hostAddrs("pod3"),
					PortA, untouched),
				ask("node", hostAddrs("remote1"), PortB, untouched),
				ask("pod1", pair("203.0.113.99", "2001:db8:113::99"), servicePort, untouched))}}},
	}
}

func twoPorts() *servicemodel.Service {
	return web(func(s *servicemodel.Service) {
		s.Ports = []servicemodel.ServicePort{{Name: "http", Protocol: servicemodel.TCP, Port: 80},
			{Name: "https", Protocol: servicemodel.TCP, Port: 443}}
	})
}

func twoPortEps() []servicemodel.Endpoint {
	return each(eps("pod2"), func(e *servicemodel.Endpoint) {
		e.Ports = []servicemodel.EndpointPort{{Name: "http", Protocol: servicemodel.TCP,
			Port: PortA}, {Name: "https", Protocol: servicemodel.TCP, Port: PortB}}
	})
}

// sourceScenarios are about source ranges.
func sourceScenarios() []Scenario {
	ranged := func(ranges ...string) func(*servicemodel.Service) {
		return func(s *servicemodel.Service) { s.LoadBalancerSourceRanges = prefixes(ranges...) }
	}
	n := podCIDRs(thisNode())
	with := func(endpoints []servicemodel.Endpoint,
		edit ...func(*servicemodel.Service)) servicemodel.State {
		return state(n, web(edit...), endpoints)
	}
	yes := to(NodeSource, "pod2")
	first := ranged("198.51.100.11/32", "2001:db8:51::b/128")
	return []Scenario{
		{Name: "source ranges let in whom they name", Line: "2.4",
			Steps: []Step{{State: with(eps("pod2"), first), Checks: checks(
				ask("outside1", lbIP, servicePort, yes), ask("outside2", lbIP, servicePort,
					dropped))}}},
		{Name: "source ranges hold for load-balancer IPs only", Line: "2.4",
			Steps: []Step{{State: with(eps("pod2"), first), Checks: checks(
				ask("outside2", externalIP, servicePort, yes), ask("outside2", nodeIP, nodePort,
					yes), ask("outside2", clusterIP, servicePort, yes))}}},
		{Name: "source ranges hold for pods and the host, too", Line: "2.4",
			Steps: []Step{{State: with(eps("pod2"), first), Checks: checks(
				ask("pod1", lbIP, servicePort, dropped),
				ask("node", lbIP, servicePort, dropped))}}},
		{Name: "source ranges may name pods and the host", Line: "2.4",
			Steps: []Step{
				{State: with(eps("pod2"), ranged(netnstest.ClusterCIDRv4, netnstest.ClusterCIDRv6,
					"192.0.2.0/24", "2001:db8:2::/64")), Checks: checks(
					ask("pod1", lbIP, servicePort, yes), ask("node", lbIP, servicePort, yes),
					ask("outside1", lbIP, servicePort, dropped))}}},
		{Name: "ranges of one family leave the other unrestricted", Line: "2.4",
			Steps: []Step{{State: with(eps("pod2"), ranged("198.51.100.11/32")), Checks: checks(
				askFamily(0, "outside2", lbIP, servicePort, dropped),
				askFamily(1, "outside2", lbIP, servicePort, yes))}}},
		{Name: "a range of everything is no restriction", Line: "2.4",
			Steps: []Step{
				{State: with(eps("pod2"), ranged("0.0.0.0/0", "198.51.100.11/32",
					"2001:db8:51::b/128")), Checks: checks(
					askFamily(0, "outside2", lbIP, servicePort, yes),
					askFamily(1, "outside2", lbIP, servicePort, dropped))}}},
		{Name: "ranges inside ranges", Line: "2.4",
			Steps: []Step{
				{State: with(eps("pod2"), ranged("198.51.100.11/32", "198.51.100.0/28",
					"198.51.100.0/30", "2001:db8:51::/120", "2001:db8:51::b/128")), Checks: checks(
					ask("outside1", lbIP, servicePort, yes), ask("outside2", lbIP, servicePort,
						yes), ask("pod1", lbIP, servicePort, dropped))}}},
		{Name: "without endpoints the blocked are dropped and the others rejected", Line: "2.4",
			Steps: []Step{{State: with(nil, first), Checks: checks(
				ask("outside1", lbIP, servicePort, rejected), ask("outside2", lbIP, servicePort,
					dropped))}}},
		{Name: "source ranges and policy Local", Line: "2.4",
			Steps: []Step{{State: with(eps("pod2", "remote1"), first, externalLocal),
				Checks: checks(
					ask("outside1", lbIP, servicePort, to(OwnSource, "pod2")),
					ask("outside2", lbIP, servicePort, dropped),
					ask("pod1", lbIP, servicePort, dropped))}}},
		{Name: "source ranges change", Line: "2.4", Steps: []Step{
			{State: with(eps("pod2"), first), Checks: ask("outside2", lbIP, servicePort, dropped)},
			{State: with(eps("pod2"), ranged("198.51.100.12/32", "2001:db8:51::c/128")),
				Checks: checks(ask("outside2", lbIP, servicePort, yes),
					ask("outside1", lbIP, servicePort, dropped))},
			{State: with(eps("pod2")), Checks: checks(ask("outside2", lbIP, servicePort, yes),
				ask("outside1", lbIP, servicePort, yes))},
		}},
	}
}
