package dataplanetest

import (
	"fmt"
	"strings"

	"github.com/kernlb/kernlb/servicemodel"
)

// The matrix restates sections 2.2 and 2.3 of kube-proxy's behaviour in its nftables mode: which
// endpoints a packet may reach and whether it is masqueraded. This depends on the kind of
// destination, the traffic policy, the source, the way in which pods are recognised, and the places
// of endpoints. The matrix was written independently of package servicemodel, which makes the same
// decisions. It uses the words of scenarios.txt.

// layouts are the places of a service's endpoints.
var layouts = []struct{ name, endpoints string }{
	{"endpoints here and elsewhere", "pod2 pod3 remote1"},
	{"endpoints elsewhere only", "remote1 remote2"},
	{"no endpoints", ""},
	{"endpoints not ready", "pod2+notReady remote1+notReady"},
	{"endpoints terminating but serving", "pod2+terminating remote1+terminating"},
}

// detectors are the ways in which the node recognizes pods.
var detectors = []struct{ name, network, node string }{
	{name: "pods not told"},
	{name: "pods by CIDR", node: "podCIDRs"},
	{name: "pods by bridge", network: "bridge cni0", node: "podBridge=cni0"},
	{name: "pods by interface prefix", network: "prefix cali", node: "podPrefix=cali"},
}

// destinations are the kinds of addresses of a service.
var destinations = []struct {
	kind   servicemodel.Kind
	target string
}{
	{servicemodel.ClusterIP, "cluster"}, {servicemodel.LoadBalancer, "loadBalancer"},
	{servicemodel.ExternalIP, "external"}, {servicemodel.NodePort, "nodePorts"},
}

// expect returns the entry of the matrix for a packet.
func expect(kind servicemodel.Kind, local bool, endpoints string, podsTold bool,
	from string) string {
	var cluster, here []string // usable hosts: all, and those on this node
	for _, e := range strings.Fields(endpoints) {
		host, option, _ := strings.Cut(e, "+")
		if option == "notReady" {
			continue
		}
		cluster = append(cluster, host)
		if nodeOf(host) == "this" {
			here = append(here, host)
		}
	}

	reaches := func(masquerade bool, hosts []string) string {
		outcome := "reaches "
		if masquerade {
			outcome = "masqueraded "
		}
		return outcome + strings.Join(hosts, " ")
	}

	fromPod := from == "pod1" && podsTold
	if len(cluster) == 0 {
		return "reset"
	}
	if kind == servicemodel.ClusterIP {
		masquerade := podsTold && !fromPod
		switch {
		case !local:
			return reaches(masquerade, cluster)
		case len(here) == 0:
			return "dropped"
		}

		return reaches(masquerade, here)
	}

	switch {
	case !local, from == "node":
		return reaches(true, cluster)
	case fromPod:
		return reaches(false, cluster)
	case len(here) == 0:
		return "dropped"
	}

	return reaches(false, here)
}

// matrix returns a scenario for each combination of destination, policy, layout and detector. Each
// scenario sends from a pod, the node and outside, for every protocol and family.
func matrix() string {
	var b strings.Builder
	for _, d := range destinations {
		for _, local := range []bool{false, true} {
			policy, option := "Cluster", ""
			if local {
				policy, option = "Local", "externalLocal"
				if d.kind == servicemodel.ClusterIP {
					option = "internalLocal"
				}
			}

			for _, l := range layouts {
				for _, det := range detectors {
					fmt.Fprintf(&b, "[matrix] %s, policy %s, %s, %s\n", d.kind, policy, l.name,
						det.name)
					fmt.Fprintf(&b, "  %s\n  node %s\n  service %s: %s\n", det.network, det.node,
						option, l.endpoints)
					for _, from := range []string{"pod1", "node", "outside1"} {
						fmt.Fprintf(&b, "    %s %s: %s\n", from, d.target,
							expect(d.kind, local, l.endpoints, det.node != "", from))
					}
				}
			}
		}
	}

	return b.String()
}
