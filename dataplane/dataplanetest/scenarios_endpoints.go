package dataplanetest

import (
	"net/netip"

	"github.com/kernlb/kernlb/servicemodel"
)

// endpointScenarios are about which endpoints are used.
func endpointScenarios() []Scenario {
	all := func(s *servicemodel.Service) { s.ExternalTrafficPolicy, s.InternalTrafficPolicy = 1, 1 }
	mixed := append(eps("pod2"), each(eps("pod3"), terminating)...)
	mixed = append(mixed, each(eps("remote1"), notReady)...)
	return []Scenario{
		{Name: "terminating and unready endpoints are left alone while another is ready",
			Line: "1.6",
			Steps: []Step{{State: state(thisNode(), web(), mixed),
				Checks: ask("pod1", clusterIP, servicePort, to(OwnSource, "pod2"))}}},
		{Name: "the local list falls back to terminating endpoints on its own", Line: "1.6",
			Steps: []Step{
				{State: state(podCIDRs(thisNode()), web(externalLocal),
					append(eps("remote1"), each(eps("pod2"), terminating)...)), Checks: checks(
					ask("outside1", lbIP, servicePort, to(OwnSource, "pod2")),
					ask("pod1", lbIP, servicePort, to(OwnSource, "remote1")),
					ask("node", lbIP, servicePort, to(NodeSource, "remote1")))}}},
		{Name: "a ready endpoint that terminates is in use (publishNotReadyAddresses)", Line: "1.6",
			Steps: []Step{
				{State: state(thisNode(), web(), each(eps("pod2"), func(e *servicemodel.Endpoint) {
					e.Terminating = true
				})),
					Checks: ask("pod1", clusterIP, servicePort, to(OwnSource, "pod2"))}}},
		{Name: "node hints choose the endpoints for this node", Line: "1.6",
			Steps: []Step{
				{State: state(thisNode(), web(), hinted(forNode, "pod2", "this", "pod3", "other",
					"remote1", "this")),
					Checks: ask("pod1", clusterIP, servicePort,
						to(OwnSource, "pod2", "remote1"))}}},
		{Name: "node hints for other nodes only are ignored", Line: "1.6",
			Steps: []Step{
				{State: state(thisNode(), web(), hinted(forNode, "pod2", "other", "pod3", "third")),
					Checks: ask("pod1", clusterIP, servicePort, to(OwnSource, "pod2", "pod3"))}}},
		{Name: "zone hints choose the endpoints for this zone", Line: "1.6",
			Steps: []Step{
				{State: state(thisNode(), web(), hinted(forZone, "pod2", "zone-a", "pod3", "zone-b",
					"remote1", "zone-b")),
					Checks: ask("pod1", clusterIP, servicePort, to(OwnSource, "pod2"))}}},
		{Name: "one endpoint without a hint disables hints", Line: "1.6",
			Steps: []Step{
				{State: state(thisNode(), web(),
					append(hinted(forZone, "pod2", "zone-b", "remote1", "zone-a"), eps("pod3")...)),
					Checks: ask("pod1", clusterIP, servicePort,
						to(OwnSource, "pod2", "pod3", "remote1"))}}},
		{Name: "hints do not narrow a Local policy", Line: "1.6",
			Steps: []Step{
				{State: state(thisNode(), web(all), hinted(forZone, "pod2", "zone-b", "remote1",
					"zone-a")), Checks: checks(
					ask("pod1", clusterIP, servicePort, to(OwnSource, "pod2")),
					ask("outside1", lbIP, servicePort, to(OwnSource, "pod2")))}}},
		{Name: "one family can have endpoints and the other none", Line: "1.2",
			Steps: []Step{{State: state(thisNode(), web(), onlyFamily(0, eps("pod2"))),
				Checks: checks(
					askFamily(0, "pod1", clusterIP, servicePort, to(OwnSource, "pod2")),
					askFamily(1, "pod1", clusterIP, servicePort, rejected))}}},
		{Name: "a service with a cluster IP of one family does not exist in the other", Line: "1.2",
			Steps: []Step{{State: state(thisNode(), web(func(s *servicemodel.Service) {
				s.ClusterIPs = s.ClusterIPs[:1]
			}), eps("pod2")), Checks: checks(
				askFamily(0, "pod1", lbIP, servicePort, to(NodeSource, "pod2")),
				askFamily(1, "pod1", lbIP, servicePort, untouched),
				askFamily(1, "outside1", nodeIP, nodePort, untouched))}}},
		{Name: "each endpoint has its own port number", Line: "1.2",
			Steps: []Step{
				{State: state(thisNode(), web(),
					append(eps("pod2"), atPort(PortB, eps("pod3"))...)),
					Checks: ask("pod1", clusterIP, servicePort, Want{Outcome: servicemodel.Balanced,
						Servers: []string{serverName("pod2", PortA),
							serverName("pod3", PortB)}})}}},
		{Name: "an endpoint without a port of the name does not serve it", Line: "1.3",
			Steps: []Step{
				{State: state(thisNode(), web(),
					append(eps("pod2"), each(eps("pod3"), func(e *servicemodel.Endpoint) {
						e.Ports = e.Ports[:1]
					})...)), Checks: checks(
					askFamily(0, "pod1", clusterIP, servicePort, to(OwnSource, "pod2", "pod3"))[:1],
					askFamily(0, "pod1", clusterIP, servicePort, to(OwnSource, "pod2"))[1:])}}},
		{Name: "an endpoint in the host's network is reached", Line: "2.2",
			Steps: []Step{{State: state(podCIDRs(thisNode()), web(), eps("node")), Checks: checks(
				ask("pod1", clusterIP, servicePort, to(OwnSource, "node")),
				ask("outside1", nodeIP, nodePort, Want{Outcome: servicemodel.Balanced,
					Servers: []string{serverName("node", PortA)}, Masquerade: AnySource}))}}},
		{Name: "a pod that is given itself is masqueraded", Line: "2.9",
			Steps: []Step{{State: state(podCIDRs(thisNode()), web(externalLocal), eps("pod1")),
				Checks: checks(
					ask("pod1", clusterIP, servicePort, to(NodeSource, "pod1")),
					ask("pod1", lbIP, servicePort, to(NodeSource, "pod1")),
					ask("pod1", nodeIP, nodePort, to(NodeSource, "pod1")),
					ask("pod2", clusterIP, servicePort, to(OwnSource, "pod1")))}}},
	}
}

func forNode(e *servicemodel.Endpoint, v string) { e.ForNodes = []string{v} }
func forZone(e *servicemodel.Endpoint, v string) { e.ForZones = []string{v} }

// hinted makes endpoints with hints: host, hint, host, hint and so on.
func hinted(hint func(*servicemodel.Endpoint, string),
	hostsAndHints ...string) []servicemodel.Endpoint {
	var l []servicemodel.Endpoint
	for i := 0; i < len(hostsAndHints); i += 2 {
		l = append(l, each(eps(hostsAndHints[i]), func(e *servicemodel.Endpoint) {
			hint(e, hostsAndHints[i+1])
		})...)
	}
	return l
}

func onlyFamily(f int, l []servicemodel.Endpoint) []servicemodel.Endpoint {
	var out []servicemodel.Endpoint
	for _, e := range l {
		if e.Addr.Is4() == (f == 0) {
			out = append(out, e)
		}
	}
	return out
}

func atPort(port uint16, l []servicemodel.Endpoint) []servicemodel.Endpoint {
	return each(l, func(e *servicemodel.Endpoint) {
		for i := range e.Ports {
			e.Ports[i].Port = port
		}
	})
}

// changeScenarios are about what one state after the other does.
func changeScenarios() []Scenario {
	n := podCIDRs(thisNode())
	base := state(n, web(), eps("pod2"))
	other := and(base, web(named("other", clusterIP2)), eps("pod3"))
	return []Scenario{
		{Name: "endpoints come and go", Line: "changes", Steps: []Step{
			{State: base, Checks: ask("pod1", clusterIP, servicePort, to(OwnSource, "pod2"))},
			{State: and(base, web(), eps("pod2", "pod3", "remote1")),
				Checks: ask("pod1", clusterIP, servicePort,
					to(OwnSource, "pod2", "pod3", "remote1"))},
			{State: and(base, web(), eps("remote1")), Checks: ask("pod1", clusterIP, servicePort,
				to(OwnSource, "remote1"))},
			{State: and(base, web(), nil), Checks: ask("pod1", clusterIP, servicePort, rejected)},
			{State: base, Checks: ask("pod1", clusterIP, servicePort, to(OwnSource, "pod2"))},
		}},
		{Name: "a service is added beside another, and removed", Line: "changes", Steps: []Step{
			{State: other,
				Checks: checks(ask("pod1", clusterIP, servicePort, to(OwnSource, "pod2")),
					ask("pod1", clusterIP2, servicePort, to(OwnSource, "pod3")))},
			{State: base, Checks: checks(ask("pod1", clusterIP, servicePort, to(OwnSource, "pod2")),
				ask("pod1", clusterIP2, servicePort, untouched))},
			{State: base.WithoutService(web().Name),
				Checks: checks(ask("pod1", clusterIP, servicePort, untouched),
					ask("outside1", nodeIP, nodePort, untouched))},
		}},
		{Name: "the policy changes under a running service", Line: "changes", Steps: []Step{
			{State: state(n, web(), eps("pod2", "remote1")),
				Checks: ask("outside1", lbIP, servicePort, to(NodeSource, "pod2", "remote1"))},
			{State: state(n, web(externalLocal), eps("pod2", "remote1")),
				Checks: ask("outside1", lbIP, servicePort, to(OwnSource, "pod2"))},
			{State: state(n, web(), eps("pod2", "remote1")),
				Checks: ask("outside1", lbIP, servicePort, to(NodeSource, "pod2", "remote1"))},
		}},
		{Name: "the node's view changes", Line: "changes", Steps: []Step{
			{State: base, Checks: ask("outside1", clusterIP, servicePort, to(NodeSource, "pod2"))},
			{State: base.WithNode(thisNode()), Checks: ask("outside1", clusterIP, servicePort,
				to(OwnSource, "pod2"))},
			{State: base.WithNode(masqueradeAll(thisNode())),
				Checks: ask("pod1", clusterIP, servicePort, to(NodeSource, "pod2"))},
		}},
		{Name: "two services claim an external IP: the first by name has it, and the other takes " +
			"over", Line: "2.12", Steps: []Step{
			{State: and(state(n, web(named("a", clusterIP), claims), eps("pod2")),
				web(named("b", clusterIP2), claims), eps("pod3")),
				Checks: ask("outside1", externalIP, servicePort, to(NodeSource, "pod2"))},
			{State: state(n, web(named("b", clusterIP2), claims), eps("pod3")),
				Checks: ask("outside1", externalIP, servicePort, to(NodeSource, "pod3"))},
		}},
		{Name: "nobody takes a cluster IP by claiming it as an external IP", Line: "2.12",
			Steps: []Step{
				{State: and(state(n, web(named("z", clusterIP)), eps("pod2")),
					web(named("a", clusterIP2), func(s *servicemodel.Service) {
						s.ExternalIPs = clusterIP[:]
					}), eps("pod3")),
					Checks: ask("pod1", clusterIP, servicePort, to(OwnSource, "pod2"))},
			}},
	}
}

func claims(s *servicemodel.Service) { s.ExternalIPs = externalIP[:] }

func masqueradeAll(n servicemodel.Node) servicemodel.Node {
	n.MasqueradeAll = true
	return n
}

// weighted gives endpoints weights, in their order.
func weighted(l []servicemodel.Endpoint, weights map[netip.Addr]uint16) []servicemodel.Endpoint {
	return each(l, func(e *servicemodel.Endpoint) { e.Weight = weights[e.Addr] })
}
