package dataplanetest

import (
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/servicemodel"
)

// familyScenarios are about nodes that serve one address family.
func familyScenarios() []Scenario {
	serves := func(f servicemodel.Family) Step {
		four, six := masqueraded("pod2"), masqueraded("pod2")
		switch f {
		case servicemodel.IPv4:
			six = untouched
		case servicemodel.IPv6:
			four = untouched
		}
		var checks [][]Check
		for _, d := range everywhere {
			checks = append(checks, ipv4(ask("outside1", d, four)), ipv6(ask("outside1", d, six)))
		}
		return after(withNode(serviceCIDRs, func(n *servicemodel.Node) { n.OnlyFamily = f }),
			checks...)
	}
	return []Scenario{scenario("1.2", "a node of one family serves the addresses of that family",
		serves(servicemodel.IPv4), serves(servicemodel.IPv6), serves(0), serves(servicemodel.IPv6),
		serves(servicemodel.IPv4), serves(0), serves(servicemodel.IPv4))}
}

// withNode is a state with the service and one endpoint, on a node that is edited.
func withNode(edit ...func(*servicemodel.Node)) servicemodel.State {
	n := podCIDRs(thisNode())
	for _, f := range edit {
		f(&n)
	}
	return state(n, web(), eps("pod2"))
}

func nodePortCIDRs(cidrs ...string) func(*servicemodel.Node) {
	return func(n *servicemodel.Node) { n.NodePortAddresses.CIDRs = prefixes(cidrs...) }
}

func primaryOnly(n *servicemodel.Node)   { n.NodePortAddresses.Primary = true }
func firstAddress(n *servicemodel.Node)  { n.Addresses = n.Addresses[:1] }
func otherMark(n *servicemodel.Node)     { n.MasqueradeMark = 1 << 31 }
func masqueradeAll(n *servicemodel.Node) { n.MasqueradeAll = true }

func serviceCIDRs(n *servicemodel.Node) {
	n.ServiceCIDRs = prefixes(netnstest.Net.ServiceCIDRv4, netnstest.Net.ServiceCIDRv6)
}

var (
	nodePorts2        = target{nodeIP2, nodePort}
	nodePortsOutside  = at(netnstest.Net.NodeOutsideIPv4, netnstest.Net.NodeOutsideIPv6, nodePort)
	nodePortsUnderlay = at(netnstest.Net.NodeUnderlayIPv4, netnstest.Net.NodeUnderlayIPv6, nodePort)
	nodePortsLoopback = at("127.0.0.1", "::1", nodePort)
)

// nodePortScenarios are about the addresses of the node at which node ports answer.
func nodePortScenarios() []Scenario {
	yes := masqueraded("pod2")
	return []Scenario{
		scenario("2.7", "node ports answer at every address of the node",
			after(withNode(),
				ask("outside1", nodePorts, yes), ask("outside1", nodePorts2, yes),
				ask("outside1", nodePortsOutside, yes), ask("pod1", nodePortsUnderlay, yes),
				ask("node", nodePorts2, yes))),
		scenario("2.7", "node ports answer at the addresses in the CIDRs only",
			after(withNode(nodePortCIDRs("192.0.2.11/32", "198.51.100.0/24", "2001:db8:2::11/128")),
				ask("outside1", nodePorts2, yes), ask("outside1", nodePorts, untouched),
				ipv4(ask("outside1", nodePortsOutside, yes)),
				ipv6(ask("outside1", nodePortsOutside, untouched)))),
		scenario("2.7", "CIDRs of one family leave the other unrestricted",
			after(withNode(nodePortCIDRs("192.0.2.11/32")),
				ipv4(ask("outside1", nodePorts, untouched)),
				ipv6(ask("outside1", nodePorts, yes)))),
		scenario("2.7", "node ports answer at the primary addresses only",
			after(withNode(primaryOnly),
				ask("outside1", nodePorts, yes), ask("outside1", nodePorts2, untouched),
				ask("node", nodePortsOutside, untouched))),
		scenario("2.7", "primary, without an address of the family, answers nowhere",
			after(withNode(primaryOnly, firstAddress),
				ipv4(ask("outside1", nodePorts, yes)),
				ipv6(ask("outside1", nodePorts, untouched)))),
		scenario("2.8", "node ports do not answer at loopback addresses",
			after(withNode(), tcp(ipv4(ask("node", nodePortsLoopback, untouched))))),
	}
}

// nodeAddressScenarios are about other uses of the node's addresses.
func nodeAddressScenarios() []Scenario {
	one := state(thisNode(), web(firstPort), eps("pod2"))
	both := and(state(thisNode(), web(), eps("pod2")),
		web(named("b", clusterIP2), atNodePorts), eps("pod3"))
	return []Scenario{
		scenario("1.2", "a node port of another protocol is not touched",
			after(one,
				ipv4(tcp(ask("outside1", nodePorts, masqueraded("pod2")))),
				ipv4(udp(ask("outside1", nodePorts, untouched))))),
		scenario("2.7", "an address of a service comes before a node port",
			after(both,
				ask("outside1", nodePorts, masqueraded("pod3")),
				ask("outside1", nodePorts2, masqueraded("pod2")))),
	}
}

func firstPort(s *servicemodel.Service) { s.Ports = s.Ports[:1] }

// atNodePorts gives a service the node's own addresses. Its ports become the node ports of the
// other service.
func atNodePorts(s *servicemodel.Service) {
	s.ExternalIPs = nodeIP[:]
	for i := range s.Ports {
		s.Ports[i].Port = nodePort
	}
}

// serviceAddressScenarios are about the addresses of services, and the addresses beside them.
func serviceAddressScenarios() []Scenario {
	one := state(thisNode(), web(), eps("pod2"))
	return []Scenario{
		scenario("2.6", "other ports of a cluster IP are rejected",
			after(one,
				ask("pod1", cluster.on(81), rejected),
				ask("outside1", cluster.on(81), rejected),
				ask("node", cluster.on(81), rejected))),
		scenario("2.6", "other ports of external and load-balancer IPs are not touched",
			after(one,
				ask("pod1", external.on(81), untouched),
				ask("outside1", loadBalancer.on(81), untouched),
				ask("node", loadBalancer.on(81), untouched))),
		scenario("2.6", "unused addresses of the service CIDR are dropped",
			after(withNode(serviceCIDRs),
				ask("pod1", unused, dropped), ask("node", unused, dropped),
				ask("pod1", cluster, reaches("pod2")),
				ask("pod1", cluster.on(81), rejected))),
		scenario("2.6", "without a service CIDR they are not touched",
			after(one, ask("pod1", unused, untouched))),
		scenario("1.2", "a load balancer that is a proxy is left alone",
			after(state(thisNode(), web(proxied), eps("pod2")),
				ask("pod1", loadBalancer, untouched), ask("outside1", loadBalancer, untouched),
				ask("outside1", external, masqueraded("pod2")))),
		scenario("1.2", "two ports of a service are two services",
			after(state(thisNode(), web(twoPorts), each(eps("pod2"), twoPortsOfPod)),
				ipv4(tcp(ask("pod1", cluster, reaches("pod2")))),
				ipv4(tcp(ask("pod1", cluster.on(443), answered(serverName("pod2", PortB))))))),
		scenario("2.1", "what is not for a service is not touched",
			after(withNode(),
				ask("pod1", target{hostAddrs("pod3"), PortA}, untouched),
				ask("outside1", target{hostAddrs("pod3"), PortA}, untouched),
				ask("node", target{hostAddrs("remote1"), PortB}, untouched),
				ask("pod1", at("203.0.113.99", "2001:db8:113::99", servicePort), untouched))),
	}
}

func proxied(s *servicemodel.Service) {
	for i := range s.LoadBalancerIPs {
		s.LoadBalancerIPs[i].Proxy = true
	}
}

func twoPorts(s *servicemodel.Service) {
	s.Ports = []servicemodel.ServicePort{
		{Name: "http", Protocol: servicemodel.TCP, Port: 80},
		{Name: "https", Protocol: servicemodel.TCP, Port: 443},
	}
}

func twoPortsOfPod(e *servicemodel.Endpoint) {
	e.Ports = []servicemodel.EndpointPort{
		{Name: "http", Protocol: servicemodel.TCP, Port: PortA},
		{Name: "https", Protocol: servicemodel.TCP, Port: PortB},
	}
}

// masqueradeScenarios are about the node's options for masquerading.
func masqueradeScenarios() []Scenario {
	n := podCIDRs(thisNode())
	masqueradeAll(&n)
	here := masqueraded("pod2", "remote1")
	return []Scenario{
		scenario("2.2", "masquerade all",
			after(state(n, web(), eps("pod2", "remote1")),
				ask("pod1", cluster, here), ask("node", cluster, here),
				ask("outside1", cluster, here))),
		scenario("2.2", "masquerade all is for cluster IPs only",
			after(state(n, web(externalLocal), eps("pod2", "remote1")),
				ask("outside1", loadBalancer, reaches("pod2")),
				ask("pod1", loadBalancer, reaches("pod2", "remote1")))),
		scenario("2.1", "another bit of the mark",
			after(withNode(otherMark), ask("outside1", loadBalancer, masqueraded("pod2")))),
	}
}
