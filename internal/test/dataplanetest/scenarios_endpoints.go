package dataplanetest

import (
	"slices"

	"github.com/kernlb/kernlb/servicemodel"
)

// readinessScenarios are about endpoints that are not ready, or terminate.
func readinessScenarios() []Scenario {
	mixed := slices.Concat(eps("pod2"), each(eps("pod3"), terminating),
		each(eps("remote1"), notReady))
	localTerminates := slices.Concat(eps("remote1"), each(eps("pod2"), terminating))
	return []Scenario{
		scenario("1.6", "terminating and unready endpoints are left alone while another is ready",
			after(state(thisNode(), web(), mixed), ask("pod1", cluster, reaches("pod2")))),
		scenario("1.6", "the local list falls back to terminating endpoints on its own",
			after(state(podCIDRs(thisNode()), web(externalLocal), localTerminates),
				ask("outside1", loadBalancer, reaches("pod2")),
				ask("pod1", loadBalancer, reaches("remote1")),
				ask("node", loadBalancer, masqueraded("remote1")))),
		scenario("1.6", "a ready endpoint that terminates is in use (publishNotReadyAddresses)",
			after(state(thisNode(), web(), each(eps("pod2"), terminatingButReady)),
				ask("pod1", cluster, reaches("pod2")))),
	}
}

func terminatingButReady(e *servicemodel.Endpoint) { e.Terminating = true }

// hintScenarios are about topology hints.
func hintScenarios() []Scenario {
	with := func(endpoints ...[]servicemodel.Endpoint) servicemodel.State {
		return state(thisNode(), web(), slices.Concat(endpoints...))
	}
	bothLocal := state(thisNode(), web(internalLocal, externalLocal),
		slices.Concat(forZone("zone-b", "pod2"), forZone("zone-a", "remote1")))
	return []Scenario{
		scenario("1.6", "node hints choose the endpoints for this node",
			after(with(forNode("this", "pod2"), forNode("other", "pod3"),
				forNode("this", "remote1")),
				ask("pod1", cluster, reaches("pod2", "remote1")))),
		scenario("1.6", "node hints for other nodes only are ignored",
			after(with(forNode("other", "pod2"), forNode("third", "pod3")),
				ask("pod1", cluster, reaches("pod2", "pod3")))),
		scenario("1.6", "zone hints choose the endpoints for this zone",
			after(with(forZone("zone-a", "pod2"), forZone("zone-b", "pod3", "remote1")),
				ask("pod1", cluster, reaches("pod2")))),
		scenario("1.6", "one endpoint without a hint disables hints",
			after(with(forZone("zone-b", "pod2"), forZone("zone-a", "remote1"), eps("pod3")),
				ask("pod1", cluster, reaches("pod2", "pod3", "remote1")))),
		scenario("1.6", "hints do not narrow a Local policy",
			after(bothLocal,
				ask("pod1", cluster, reaches("pod2")),
				ask("outside1", loadBalancer, reaches("pod2")))),
	}
}

func forNode(node string, hosts ...string) []servicemodel.Endpoint {
	return each(eps(hosts...), func(e *servicemodel.Endpoint) { e.ForNodes = []string{node} })
}

func forZone(zone string, hosts ...string) []servicemodel.Endpoint {
	return each(eps(hosts...), func(e *servicemodel.Endpoint) { e.ForZones = []string{zone} })
}

// servingScenarios are about the families and ports of endpoints.
func servingScenarios() []Scenario {
	return []Scenario{
		scenario("1.2", "one family can have endpoints and the other none",
			after(state(thisNode(), web(), onlyIPv4(eps("pod2"))),
				ipv4(ask("pod1", cluster, reaches("pod2"))),
				ipv6(ask("pod1", cluster, rejected)))),
		scenario("1.2", "a service with a cluster IP of one family does not exist in the other",
			after(state(thisNode(), web(clusterIPv4), eps("pod2")),
				ipv4(ask("pod1", loadBalancer, masqueraded("pod2"))),
				ipv6(ask("pod1", loadBalancer, untouched)),
				ipv6(ask("outside1", nodePorts, untouched)))),
		scenario("1.2", "each endpoint has its own port number",
			after(state(thisNode(), web(),
				slices.Concat(eps("pod2"), each(eps("pod3"), listening(PortB)))),
				ask("pod1", cluster,
					answered(serverName("pod2", PortA), serverName("pod3", PortB))))),
		scenario("1.3", "an endpoint without a port of the name does not serve it",
			after(state(thisNode(), web(),
				slices.Concat(eps("pod2"), each(eps("pod3"), firstPortOfPod))),
				ipv4(tcp(ask("pod1", cluster, reaches("pod2", "pod3")))),
				ipv4(udp(ask("pod1", cluster, reaches("pod2")))),
				ipv4(sctp(ask("pod1", cluster, reaches("pod2")))))),
	}
}

func clusterIPv4(s *servicemodel.Service)     { s.ClusterIPs = s.ClusterIPs[:1] }
func firstPortOfPod(e *servicemodel.Endpoint) { e.Ports = e.Ports[:1] }

func onlyIPv4(l []servicemodel.Endpoint) []servicemodel.Endpoint {
	return slices.DeleteFunc(l, func(e servicemodel.Endpoint) bool { return !e.Addr.Is4() })
}

// hostEndpointScenarios are about endpoints in the host's network, and pods that are their own
// endpoint.
func hostEndpointScenarios() []Scenario {
	inHost := to(AnySource, "node")
	return []Scenario{
		scenario("2.2", "an endpoint in the host's network is reached",
			after(state(podCIDRs(thisNode()), web(), eps("node")),
				ask("pod1", cluster, reaches("node")), ask("outside1", nodePorts, inHost))),
		scenario("2.9", "a pod that is given itself is masqueraded",
			after(state(podCIDRs(thisNode()), web(externalLocal), eps("pod1")),
				ask("pod1", cluster, masqueraded("pod1")),
				ask("pod1", loadBalancer, masqueraded("pod1")),
				ask("pod1", nodePorts, masqueraded("pod1")),
				ask("pod2", cluster, reaches("pod1")))),
	}
}

// weighted gives weights to the endpoints of hosts, in the order of the hosts.
func weighted(l []servicemodel.Endpoint, weights ...uint16) []servicemodel.Endpoint {
	for i := range l {
		l[i].Weight = weights[i/len(families)]
	}
	return l
}
