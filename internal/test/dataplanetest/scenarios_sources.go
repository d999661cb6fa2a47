package dataplanetest

import (
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/servicemodel"
)

// sourceRanges restricts a service. The first client outside has the addresses in outside1Only,
// the second one those in outside2Only.
func sourceRanges(ranges ...string) func(*servicemodel.Service) {
	return func(s *servicemodel.Service) { s.LoadBalancerSourceRanges = prefixes(ranges...) }
}

var (
	outside1Only = sourceRanges("198.51.100.11/32", "2001:db8:51::b/128")
	outside2Only = sourceRanges("198.51.100.12/32", "2001:db8:51::c/128")
	clusterOnly  = sourceRanges(netnstest.Net.ClusterCIDRv4, netnstest.Net.ClusterCIDRv6,
		"192.0.2.0/24", "2001:db8:2::/64")
)

// restricted is a state with the service, edited, and one endpoint.
func restricted(edit ...func(*servicemodel.Service)) servicemodel.State {
	return state(podCIDRs(thisNode()), web(edit...), eps("pod2"))
}

// answerScenarios are about the answers to clients that are not served.
func answerScenarios() []Scenario {
	none := web(named("none", clusterIP2), atNodePort(nodePort+1))
	var steps []Step
	for _, a := range []struct {
		answer string
		want   Want
	}{
		{"reset", Want{Outcome: servicemodel.Rejected, Reset: true}},
		{"drop", dropped}, {"reject", rejected},
	} {
		node := podCIDRs(thisNode())
		node.NoEndpoints, node.Forbidden = a.answer, a.answer
		var checks [][]Check
		for _, from := range []string{"outside1", "node", "pod1"} {
			for _, to := range []target{cluster2, {nodeIP, nodePort + 1}} {
				checks = append(checks, ask(from, to, a.want))
			}
			checks = append(checks, ask(from, loadBalancer, a.want),
				ask(from, external, masqueraded("pod2")), ask(from, cluster2.on(99), rejected))
		}
		s := and(state(node, web(outside2Only), eps("pod2")), none, nil)
		steps = append(steps, after(s, checks...))
	}
	return []Scenario{scenario("answers",
		"clients that are not served are answered as the node says", steps...)}
}

// rangeScenarios are about the clients that the ranges let in.
func rangeScenarios() []Scenario {
	yes := masqueraded("pod2")
	return []Scenario{
		scenario("2.4", "source ranges let in whom they name",
			after(restricted(outside1Only),
				ask("outside1", loadBalancer, yes), ask("outside2", loadBalancer, dropped))),
		scenario("2.4", "source ranges hold for load-balancer IPs only",
			after(restricted(outside1Only),
				ask("outside2", external, yes), ask("outside2", nodePorts, yes),
				ask("outside2", cluster, yes))),
		scenario("2.4", "source ranges hold for pods and the host, too",
			after(restricted(outside1Only),
				ask("pod1", loadBalancer, dropped), ask("node", loadBalancer, dropped))),
		scenario("2.4", "source ranges may name pods and the host",
			after(restricted(clusterOnly),
				ask("pod1", loadBalancer, yes), ask("node", loadBalancer, yes),
				ask("outside1", loadBalancer, dropped))),
		scenario("2.4", "ranges of one family leave the other unrestricted",
			after(restricted(sourceRanges("198.51.100.11/32")),
				ipv4(ask("outside2", loadBalancer, dropped)),
				ipv6(ask("outside2", loadBalancer, yes)))),
		scenario("2.4", "a range of everything is no restriction",
			after(restricted(sourceRanges("0.0.0.0/0", "198.51.100.11/32", "2001:db8:51::b/128")),
				ipv4(ask("outside2", loadBalancer, yes)),
				ipv6(ask("outside2", loadBalancer, dropped)))),
		scenario("2.4", "ranges inside ranges",
			after(restricted(sourceRanges("198.51.100.11/32", "198.51.100.0/28", "198.51.100.0/30",
				"2001:db8:51::/120", "2001:db8:51::b/128")),
				ask("outside1", loadBalancer, yes), ask("outside2", loadBalancer, yes),
				ask("pod1", loadBalancer, dropped))),
	}
}

// rangeUseScenarios are about ranges together with other rules for a packet.
func rangeUseScenarios() []Scenario {
	yes, n := masqueraded("pod2"), podCIDRs(thisNode())
	return []Scenario{
		scenario("2.4", "without endpoints the blocked are dropped and the others rejected",
			after(state(n, web(outside1Only), nil),
				ask("outside1", loadBalancer, rejected),
				ask("outside2", loadBalancer, dropped))),
		scenario("2.4", "source ranges and policy Local",
			after(state(n, web(outside1Only, externalLocal), eps("pod2", "remote1")),
				ask("outside1", loadBalancer, reaches("pod2")),
				ask("outside2", loadBalancer, dropped),
				ask("pod1", loadBalancer, dropped))),
		scenario("2.4", "source ranges change",
			after(restricted(outside1Only), ask("outside2", loadBalancer, dropped)),
			after(restricted(outside2Only),
				ask("outside2", loadBalancer, yes), ask("outside1", loadBalancer, dropped)),
			after(restricted(),
				ask("outside2", loadBalancer, yes), ask("outside1", loadBalancer, yes))),
	}
}
