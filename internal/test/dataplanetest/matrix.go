package dataplanetest

import (
	"fmt"

	"github.com/kernlb/kernlb/servicemodel"
)

// The matrix restates sections 2.2 and 2.3 of kube-proxy's behaviour in its nftables mode: which
// endpoints a packet may reach and whether it is masqueraded. This depends on the kind of
// destination, the traffic policy, the source, the way in which pods are recognised, and the places
// of endpoints. The matrix was written without knowledge of package servicemodel, which decides the
// same.

// layout says where a service has endpoints.
type layout struct {
	name  string
	hosts []string
	edit  func(*servicemodel.Endpoint)
}

var layouts = []layout{
	{name: "endpoints here and elsewhere", hosts: []string{"pod2", "pod3", "remote1"}},
	{name: "endpoints elsewhere only", hosts: []string{"remote1", "remote2"}},
	{name: "no endpoints", hosts: nil},
	{name: "endpoints not ready", hosts: []string{"pod2", "remote1"}, edit: notReady},
	{name: "endpoints terminating but serving", hosts: []string{"pod2", "remote1"},
		edit: terminating},
}

// detector says how the node recognises pods.
type detector struct {
	name    string
	options Options
	edit    func(servicemodel.Node) servicemodel.Node
}

var detectors = []detector{
	{name: "pods not told", edit: func(n servicemodel.Node) servicemodel.Node { return n }},
	{name: "pods by CIDR", edit: podCIDRs},
	{name: "pods by bridge", options: Options{Bridge: "cni0"},
		edit: func(n servicemodel.Node) servicemodel.Node {
			n.LocalPods.Bridge = "cni0"
			return n
		}},
	{name: "pods by interface prefix", options: Options{PodInterfacePrefix: "cali"},
		edit: func(n servicemodel.Node) servicemodel.Node {
			n.LocalPods.InterfacePrefix = "cali"
			return n
		}},
}

// destination is one way to a service.
type destination struct {
	kind servicemodel.Kind
	target
}

var destinations = []destination{
	{servicemodel.ClusterIP, cluster},
	{servicemodel.LoadBalancer, loadBalancer},
	{servicemodel.ExternalIP, external},
	{servicemodel.NodePort, nodePorts},
}

// expect returns the entry of the matrix for a packet.
func expect(d destination, local bool, l *layout, det *detector, from string) Want {
	var cluster, here []string // usable hosts: all, and those on this node
	for _, h := range l.hosts {
		if l.name == "endpoints not ready" {
			continue
		}
		cluster = append(cluster, h)
		if nodeOf(h) == "this" {
			here = append(here, h)
		}
	}
	podsTold := det.name != "pods not told"
	fromPod, fromHost := from == "pod1" && podsTold, from == "node"
	if len(cluster) == 0 {
		return rejected
	}
	if d.kind == servicemodel.ClusterIP {
		m := OwnSource
		if podsTold && !fromPod {
			m = NodeSource
		}
		if !local {
			return to(m, cluster...)
		}
		if len(here) == 0 {
			return dropped
		}
		return to(m, here...)
	}
	switch {
	case !local:
		return to(NodeSource, cluster...)
	case fromPod:
		return to(OwnSource, cluster...)
	case fromHost:
		return to(NodeSource, cluster...)
	case len(here) == 0:
		return dropped
	}
	return to(OwnSource, here...)
}

// matrix makes a scenario for each combination of destination, policy, layout and detector; each
// asks from a pod, the node and outside, for every protocol and family.
func matrix() []Scenario {
	var out []Scenario
	for _, d := range destinations {
		for _, local := range []bool{false, true} {
			for i := range layouts {
				for k := range detectors {
					out = append(out, cell(d, local, &layouts[i], &detectors[k]))
				}
			}
		}
	}
	return out
}

func cell(d destination, local bool, l *layout, det *detector) Scenario {
	policy, edit := "Cluster", []func(*servicemodel.Service){}
	if local {
		policy = "Local"
		if d.kind == servicemodel.ClusterIP {
			edit = append(edit, internalLocal)
		} else {
			edit = append(edit, externalLocal)
		}
	}
	endpoints := eps(l.hosts...)
	if l.edit != nil {
		each(endpoints, l.edit)
	}
	var list []Check
	for _, from := range []string{"pod1", "node", "outside1"} {
		list = append(list, ask(from, d.target, expect(d, local, l, det, from))...)
	}
	return Scenario{
		Name:    fmt.Sprintf("%s, policy %s, %s, %s", d.kind, policy, l.name, det.name),
		Line:    "matrix",
		Options: det.options,
		Steps: []Step{{State: state(det.edit(thisNode()), web(edit...), endpoints),
			Checks: list}},
	}
}
