package dataplanetest

import (
	"net/netip"
	"slices"

	"github.com/kernlb/kernlb/servicemodel"
)

func masquerades(p servicemodel.MasqueradePolicy) func(*servicemodel.Service) {
	return func(s *servicemodel.Service) { s.Masquerade = servicemodel.MasqueradeAt(p) }
}

func masqueradePolicyScenarios() []Scenario {
	both, asked := masqueraded("pod2", "pod3"), reaches("pod2", "pod3")
	with := func(p servicemodel.MasqueradePolicy,
		policy func(*servicemodel.Service)) servicemodel.State {
		return state(podCIDRs(thisNode()), web(policy, masquerades(p)), eps("pod2", "pod3"))
	}
	from := func(host string, want Want) (l []Check) {
		for _, t := range everywhere {
			l = append(l, ask(host, t, want)...)
		}
		return l
	}
	return []Scenario{
		scenario("masquerade", "a policy masquerades everybody, or nobody, at each kind of address",
			after(with(servicemodel.MasqueradeAlways, externalCluster),
				from("pod1", both), from("outside1", both), from("node", both)),
			after(with(servicemodel.MasqueradeNever, externalCluster),
				from("pod1", asked), from("outside1", asked),
				ask("pod2", cluster, to(AnySource, "pod2", "pod3")))),
		scenario("masquerade", "a policy masquerades all but pods, or the node alone",
			after(with(servicemodel.MasqueradeNotPods, externalCluster),
				from("pod1", asked), from("outside1", both), from("node", both)),
			after(with(servicemodel.MasqueradeHost, externalCluster),
				from("pod1", asked), from("outside1", asked), from("node", both))),
		scenario("masquerade", "a policy holds whatever the traffic policy",
			after(with(servicemodel.MasqueradeAlways, externalLocal), from("outside1", both)),
			after(with(servicemodel.MasqueradeHost, externalLocal), from("outside1", asked))),
	}
}

// neighbourScenarios are about clients and endpoints on one link.
func neighbourScenarios() []Scenario {
	with := func(masquerade bool) servicemodel.State {
		n := thisNode()
		n.MasqueradeNeighbours = masquerade
		return state(n, web(masquerades(servicemodel.MasqueradeNever), externalCluster),
			eps("pod2", "pod3"))
	}
	from := func(pod string, want Want) []Check {
		return slices.Concat(ask(pod, cluster, want), ask(pod, nodePorts, want))
	}
	both, asked := masqueraded("pod2", "pod3"), reaches("pod2", "pod3")
	bridge := scenario("masquerade", "neighbours on a bridge are masqueraded if the node says so",
		after(with(false), from("pod1", asked)),
		after(with(true), from("pod1", both), from("outside1", asked), from("remote1", asked)),
		after(with(false), from("pod1", asked)))
	bridge.Options = Options{Bridge: "cni0"}
	routed := scenario("masquerade", "pods with links of their own are no neighbours",
		after(with(true), from("pod1", asked), from("outside1", asked)))
	return []Scenario{bridge, routed}
}

func externalCluster(s *servicemodel.Service) {
	s.ExternalTrafficPolicy = servicemodel.PolicyCluster
}

// hostIPScenarios are about ports published at single addresses of the node.
func hostIPScenarios() []Scenario {
	published := web(named("web", clusterIP), func(s *servicemodel.Service) {
		s.ClusterIPs, s.HostIPs = nil, nodeIP2[:]
	}, externalLocal)
	localhost := podCIDRs(thisNode())
	localhost.LocalhostNodePorts = true
	atLoopback := func(s *servicemodel.Service) {
		s.HostIPs = []netip.Addr{netip.MustParseAddr("127.0.0.2")}
		s.Masquerade = servicemodel.MasqueradeAt(servicemodel.MasqueradeNever)
	}
	both, own := masqueraded("pod2", "pod3"), at("127.0.0.2", "::1", servicePort)
	second, first := target{nodeIP2, servicePort}, target{nodeIP, servicePort}
	return []Scenario{
		scenario("published", "a port is published at one address of the node",
			after(state(podCIDRs(thisNode()), published, eps("pod2")),
				ask("outside1", second, reaches("pod2")), ask("outside1", first, untouched),
				ask("pod1", second, reaches("pod2")), ask("node", second, masqueraded("pod2")),
				ask("pod2", second, masqueraded("pod2")))),
		scenario("published", "a port is published at loopback addresses, to the node alone",
			after(state(localhost, web(atLoopback), eps("pod2", "pod3")),
				ipv4(ask("node", nodePortsLoopback, both)), ipv4(ask("node", own, both))),
			after(state(localhost, web(atLoopback), nil),
				ipv4(ask("node", nodePortsLoopback, rejected)),
				ipv4(ask("node", own, rejected))),
			after(withNode(), tcp(ipv4(ask("node", nodePortsLoopback, untouched))))),
	}
}

func quiesced(e *servicemodel.Endpoint) { e.Quiesced = true }

// quiescedScenarios are about endpoints that get no new connections.
func quiescedScenarios() []Scenario {
	return []Scenario{
		scenario("quiesced", "a quiesced endpoint takes nothing new, and is no fallback",
			after(state(thisNode(), web(), slices.Concat(eps("pod2"), each(eps("pod3"), quiesced))),
				ask("pod1", cluster, reaches("pod2"))),
			after(state(thisNode(), web(), each(eps("pod2", "pod3"), quiesced)),
				ask("pod1", cluster, rejected), ask("outside1", loadBalancer, rejected)),
			after(state(thisNode(), web(), eps("pod2", "pod3")),
				ask("pod1", cluster, reaches("pod2", "pod3")))),
	}
}
