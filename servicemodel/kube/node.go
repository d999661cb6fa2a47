package kube

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/kernlb/kernlb/servicemodel"
)

// node is the translation of a Node object.
type node struct {
	zone      string
	addresses []netip.Addr
	podCIDRs  []netip.Prefix
}

func translateNode(n *corev1.Node, r *report) node {
	out := node{zone: n.Labels[corev1.LabelTopologyZone]}
	for _, kind := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP} {
		for i, na := range n.Status.Addresses {
			if na.Type != kind {
				continue
			}
			field := fmt.Sprintf("status.addresses[%d].address", i)
			switch a, err := parseUsable(na.Address); {
			case errors.Is(err, errAddr):
				r.skip(field, na.Address, "%v", err)
			case err != nil:
				r.warn(field, na.Address, "%v", err)
			case !slices.Contains(out.addresses, a):
				out.addresses = append(out.addresses, a)
			}
		}
	}

	cidrs := n.Spec.PodCIDRs
	if len(cidrs) == 0 && n.Spec.PodCIDR != "" {
		cidrs = []string{n.Spec.PodCIDR}
	}
	for i, s := range cidrs {
		p, err := parsePrefix(s)
		if err != nil {
			r.skip(fmt.Sprintf("spec.podCIDRs[%d]", i), s, "%v", err)
			continue
		}

		out.podCIDRs = append(out.podCIDRs, p)
	}

	return out
}

func translateServiceCIDR(c *networkingv1.ServiceCIDR, r *report) []netip.Prefix {
	var out []netip.Prefix
	for i, s := range c.Spec.CIDRs {
		p, err := parsePrefix(s)
		if err != nil {
			r.invalid(fmt.Sprintf("spec.cidrs[%d]", i), s, "%v", err)
			continue
		}

		out = append(out, p)
	}

	return out
}

// view returns the program's description of the node. Kubernetes fills in only the fields that the
// program left empty.
func (t *Tracker) view() servicemodel.Node {
	n := t.config.Node
	if n.Zone == "" {
		n.Zone = t.node.zone
	}
	if len(n.Addresses) == 0 {
		n.Addresses = t.node.addresses
	}
	if t.config.NodeCIDRs {
		n.LocalPods = servicemodel.PodDetector{CIDRs: t.node.podCIDRs}
	}

	// A CIDR stays while any object, or the program, names it.
	n.ServiceCIDRs = slices.Clone(n.ServiceCIDRs)
	for _, cidrs := range t.serviceCIDRs {
		n.ServiceCIDRs = append(n.ServiceCIDRs, cidrs...)
	}
	slices.SortFunc(n.ServiceCIDRs, netip.Prefix.Compare)
	n.ServiceCIDRs = slices.Compact(n.ServiceCIDRs)
	return n
}
