package main

import "strings"

// difference is a known difference between a peer and kernlb.
type difference struct {
	peer string // the beginning of the peer's name
	// kind is a part of the kind of difference. scenarios are parts of the names of the scenarios
	// with this difference; an empty list means all
	kind      string
	scenarios []string
	why       string
}

// differences are the differences that kernlb documents (dataplane/dataplanetest/behaviour.md), and
// differences between kube-proxy's own modes. The first match counts.
var differences = []difference{
	{peer: "kube-proxy-iptables", kind: "an unused address of the service range",
		why: "only the nftables mode knows the service ranges, and kernlb"},
	{peer: "kube-proxy-iptables", kind: "another port of the cluster IP",
		why: "only the nftables mode rejects other ports of a cluster IP, and kernlb"},
	{peer: "kube-proxy-iptables", kind: "external IP from node: served by internet",
		scenarios: noEndpoints,
		why:       "host to an external IP without endpoints: not rejected by the iptables mode"},
	{peer: "kube-proxy-iptables", kind: "load-balancer IP from node: served by internet",
		scenarios: noEndpoints,
		why: "host to a load-balancer IP without endpoints: not rejected by the iptables " +
			"mode"},
	{peer: "kube-proxy-iptables", kind: "load-balancer IP from",
		scenarios: []string{"source ranges, no endpoints", "source ranges, endpoints not ready"},
		why:       "a blocked source, and no endpoints: rejected by the iptables mode"},

	{peer: "kube-proxy-ipvs", kind: "an unused address of the service range",
		why: "the ipvs mode does not know the service ranges"},
	{peer: "kube-proxy-ipvs", kind: "another port of the load-balancer IP",
		why: "the ipvs mode binds the address to the node, and rejects what is for no service"},
	{peer: "kube-proxy-ipvs", kind: "seeing another address",
		why: "over IPv6, the ipvs mode masquerades with addresses of services, which its dummy " +
			"device has"},
	{peer: "kube-proxy-ipvs", kind: "not dropped",
		scenarios: []string{"Local, endpoints elsewhere only"},
		why:       "without endpoints on this node, the ipvs mode falls back to the others"},
	{peer: "kube-proxy-ipvs", kind: "from pod",
		scenarios: []string{"external policy Local, endpoints here"},
		why: "one virtual server for an address: pods have the endpoints of outside clients " +
			"in the ipvs mode"},
	{peer: "kube-proxy-ipvs", kind: "from node",
		why: "the host has an address of the service as its source in the ipvs mode, and the " +
			"endpoints of outside clients"},
}

// noEndpoints are the layouts without usable endpoints.
var noEndpoints = []string{"no endpoints", "endpoints not ready"}

// reason returns the reason of a peer's difference, or "" if it is unknown. lines are all packets
// of one kind of difference.
func reason(peer, kind string, lines []string) string {
	for _, d := range differences {
		if strings.HasPrefix(peer, d.peer) && strings.Contains(kind, d.kind) && d.covers(lines) {
			return d.why
		}
	}

	return ""
}

// covers reports whether the difference is known in the scenarios of all packets.
func (d *difference) covers(lines []string) bool {
	for _, l := range lines {
		known := len(d.scenarios) == 0
		for _, s := range d.scenarios {
			known = known || strings.Contains(l, s)
		}
		if !known {
			return false
		}
	}

	return true
}
