package kube

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/kernlb/kernlb/internal/spell"
	"github.com/kernlb/kernlb/servicemodel"
)

// warnNoEffect reports what a Service may say, but nobody heeds where there is no cluster.
func (r *report) warnNoEffect(s *corev1.Service) {
	spec := &s.Spec
	balanced := func(in corev1.LoadBalancerIngress) bool {
		return in.IP != "" && deref(in.IPMode, corev1.LoadBalancerIPModeVIP) ==
			corev1.LoadBalancerIPModeVIP
	}
	wanted := func(in corev1.LoadBalancerIngress) bool { return in.IP == spec.LoadBalancerIP }
	ingress := s.Status.LoadBalancer.Ingress
	if spec.LoadBalancerIP != "" && !slices.ContainsFunc(ingress, wanted) {
		r.warn("spec.loadBalancerIP", spec.LoadBalancerIP,
			"has no effect: the addresses of load balancers are read from "+
				"status.loadBalancer.ingress")
	}
	if len(spec.LoadBalancerSourceRanges) > 0 && !slices.ContainsFunc(ingress, balanced) {
		r.warn("spec.loadBalancerSourceRanges", "",
			"restrict nobody: they are for the addresses in status.loadBalancer.ingress, and "+
				"there are none")
	}
	if v, ok := s.Annotations[corev1.AnnotationLoadBalancerSourceRangesKey]; ok {
		r.warn("metadata.annotations["+corev1.AnnotationLoadBalancerSourceRangesKey+"]", v,
			"has no effect; use spec.loadBalancerSourceRanges")
	}
	if spec.SessionAffinityConfig != nil && spec.SessionAffinity != corev1.ServiceAffinityClientIP {
		r.warn("spec.sessionAffinityConfig", "",
			"has no effect where spec.sessionAffinity is not ClientIP")
	}
}

// Unmatched returns warnings about EndpointSlices and Endpoints that are of no use to any Service
// known now: their service is not known, or it has neither their ports nor their address family.
// They are in the order of the objects' kinds and names. While objects are still coming in, that is
// nothing to worry about. The cost is that of looking at all of them.
func (t *Tracker) Unmatched() []Problem {
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []Problem
	for _, owner := range slices.SortedFunc(maps.Keys(t.backends), servicemodel.Name.Compare) {
		b := t.backends[owner]
		for _, name := range slices.Sorted(maps.Keys(b.slices)) {
			key := objectKey{kindEndpointSlice, servicemodel.Name{Namespace: owner.Namespace,
				Name: name}}
			all = append(all, t.unmatched(key, "metadata.labels[kubernetes.io/service-name]",
				b.slices[name])...)
		}
		if b.legacy != nil && len(b.slices) == 0 {
			all = append(all, t.unmatched(objectKey{kindEndpoints, owner}, "metadata.name",
				b.legacy)...)
		}
	}
	slices.SortStableFunc(all, func(a, b Problem) int {
		return strings.Compare(a.Object, b.Object)
	})
	return all
}

// unmatched says what of s, an object that names its service in a field, finds no counterpart.
func (t *Tracker) unmatched(key objectKey, field string, s *slice) []Problem {
	r := newReport(key, false)
	service, known := t.services[s.service]
	switch {
	case !known:
		hint := ""
		names := func(yield func(string) bool) {
			for _, n := range slices.SortedFunc(maps.Keys(t.services), servicemodel.Name.Compare) {
				if n.Namespace == s.service.Namespace && !yield(n.Name) {
					return
				}
			}
		}
		if n, ok := spell.Nearest(s.service.Name, names); ok {
			hint = "; did you mean " + n + "?"
		}
		r.warn(field, s.service.Name, "there is no Service %v%s", s.service, hint)
	case service == nil: // not proxied, or invalid
	default:
		r.unmatchedPorts(service, s)
		for _, f := range s.families {
			if !slices.ContainsFunc(service.ClusterIPs, ofFamily(f)) {
				r.warn("addressType", f.String(), "Service %v has no %s cluster IP", s.service, f)
			}
		}
	}
	return r.problems
}

// unmatchedPorts reports the ports of s that are of no port of the service.
func (r *report) unmatchedPorts(service *servicemodel.Service, s *slice) {
	seen := map[servicemodel.EndpointPort]bool{}
	for _, p := range s.ports {
		same := func(o servicemodel.ServicePort) bool {
			return o.Name == p.Name && o.Protocol == p.Protocol
		}
		if slices.ContainsFunc(service.Ports, same) || seen[p] {
			continue
		}
		seen[p] = true
		var has []string
		for _, o := range service.Ports {
			has = append(has, portText(o.Name, o.Protocol))
		}
		r.warn("ports", portText(p.Name, p.Protocol),
			"Service %v has no port of that name and protocol, it has %s", s.service,
			shorten(strings.Join(has, ", "), 4*maxShown))
	}
}

// portText is how a port is selected, such as "http/tcp".
func portText(name string, p servicemodel.Protocol) string {
	if name == "" {
		name = `""`
	}
	return fmt.Sprintf("%s/%s", name, p)
}
