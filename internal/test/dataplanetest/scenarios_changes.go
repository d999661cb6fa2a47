package dataplanetest

import "github.com/kernlb/kernlb/servicemodel"

// editScenarios are about changes of endpoints, services and the node.
func editScenarios() []Scenario {
	n := podCIDRs(thisNode())
	base := state(n, web(), eps("pod2"))
	with := func(hosts ...string) servicemodel.State { return and(base, web(), eps(hosts...)) }
	two, local := with("pod2", "remote1"), state(n, web(externalLocal), eps("pod2", "remote1"))
	plain, all := thisNode(), thisNode()
	masqueradeAll(&all)
	return []Scenario{
		scenario("changes", "endpoints come and go",
			after(base, ask("pod1", cluster, reaches("pod2"))),
			after(with("pod2", "pod3", "remote1"),
				ask("pod1", cluster, reaches("pod2", "pod3", "remote1"))),
			after(with("remote1"), ask("pod1", cluster, reaches("remote1"))),
			after(with(), ask("pod1", cluster, rejected)),
			after(base, ask("pod1", cluster, reaches("pod2")))),
		scenario("changes", "a service is added beside another, and removed",
			after(and(base, web(named("other", clusterIP2)), eps("pod3")),
				ask("pod1", cluster, reaches("pod2")), ask("pod1", cluster2, reaches("pod3"))),
			after(base,
				ask("pod1", cluster, reaches("pod2")), ask("pod1", cluster2, untouched)),
			after(base.WithoutService(web().Name),
				ask("pod1", cluster, untouched), ask("outside1", nodePorts, untouched))),
		scenario("changes", "the policy changes under a running service",
			after(two, ask("outside1", loadBalancer, masqueraded("pod2", "remote1"))),
			after(local, ask("outside1", loadBalancer, reaches("pod2"))),
			after(two, ask("outside1", loadBalancer, masqueraded("pod2", "remote1")))),
		scenario("changes", "the node's view changes",
			after(base, ask("outside1", cluster, masqueraded("pod2"))),
			after(base.WithNode(plain), ask("outside1", cluster, reaches("pod2"))),
			after(base.WithNode(all), ask("pod1", cluster, masqueraded("pod2")))),
	}
}

// claimScenarios are about services that claim the same address.
func claimScenarios() []Scenario {
	n := podCIDRs(thisNode())
	first, second := web(named("a", clusterIP), claims), web(named("b", clusterIP2), claims)
	alone := state(n, second, eps("pod3"))
	thief := and(state(n, web(named("z", clusterIP)), eps("pod2")),
		web(named("a", clusterIP2), claimsClusterIP), eps("pod3"))
	return []Scenario{
		scenario("2.12", "two services claim an external IP: the first by name has it, and the "+
			"other takes over",
			after(and(alone, first, eps("pod2")), ask("outside1", external, masqueraded("pod2"))),
			after(alone, ask("outside1", external, masqueraded("pod3")))),
		scenario("2.12", "nobody takes a cluster IP by claiming it as an external IP",
			after(thief, ask("pod1", cluster, reaches("pod2")))),
	}
}

func claims(s *servicemodel.Service)          { s.ExternalIPs = externalIP[:] }
func claimsClusterIP(s *servicemodel.Service) { s.ExternalIPs = clusterIP[:] }
