package kube

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/kernlb/kernlb/internal/suggest"
	"github.com/kernlb/kernlb/servicemodel"
)

// warnNoEffect reports fields of a Service that are allowed but have no effect without a cluster.
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

// Unmatched returns warnings about EndpointSlices and Endpoints that no known Service can use:
// their service is unknown, or has neither their ports nor their address family. The warnings are
// in the order of the objects' kinds and names. Such warnings are normal while objects are still
// being added. Each call examines all objects.
func (t *Tracker) Unmatched() []Problem {
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []Problem
	guess := t.guesser()
	for _, owner := range slices.SortedFunc(maps.Keys(t.backends), servicemodel.Name.Compare) {
		b := t.backends[owner]
		for _, name := range slices.Sorted(maps.Keys(b.slices)) {
			key := objectKey{kindEndpointSlice, servicemodel.Name{Namespace: owner.Namespace,
				Name: name}}
			all = append(all, t.unmatched(key, "metadata.labels[kubernetes.io/service-name]",
				b.slices[name], guess)...)
		}

		if b.legacy != nil && len(b.slices) == 0 {
			all = append(all, t.unmatched(objectKey{kindEndpoints, owner}, "metadata.name",
				b.legacy, guess)...)
		}
	}

	slices.SortStableFunc(all, func(a, b Problem) int {
		return strings.Compare(a.Object, b.Object)
	})
	return all
}

// maxGuesses limits the number of unknown services for which [Tracker.Unmatched] searches for
// similar names, because each search compares the name with the names of all services.
const maxGuesses = 16

// guesser returns a function that guesses the service that was meant.
func (t *Tracker) guesser() func(servicemodel.Name) string {
	guesses := map[servicemodel.Name]string{}
	return func(meant servicemodel.Name) string {
		if _, ok := guesses[meant]; !ok && len(guesses) < maxGuesses {
			names := func(yield func(string) bool) {
				for _, n := range slices.SortedFunc(maps.Keys(t.services),
					servicemodel.Name.Compare) {
					if n.Namespace == meant.Namespace && !yield(n.Name) {
						return
					}
				}
			}

			guesses[meant] = ""
			if n, ok := suggest.Nearest(meant.Name, names); ok {
				guesses[meant] = "; did you mean " + n + "?"
			}
		}

		return guesses[meant]
	}
}

// unmatched reports that s, or a part of it, has no counterpart. field is the field of the object
// that names the service.
func (t *Tracker) unmatched(key objectKey, field string, s *slice,
	guess func(servicemodel.Name) string) []Problem {
	r := newReport(key, false)
	service, known := t.services[s.service]
	switch {
	case !known:
		r.warn(field, s.service.Name, "there is no Service %v%s", s.service, guess(s.service))
	case service == nil: // not proxied, or invalid
	default:
		r.unmatchedPorts(service, s)
		for _, f := range s.families {
			if !slices.ContainsFunc(service.ClusterIPs, ofFamily(f)) {
				r.warn("addressType", f.String(), "Service %v has no %s cluster IP", s.service, f)
			}
		}
	}

	return r.all()
}

// unmatchedPorts reports the ports of s that match no port of the service.
func (r *report) unmatchedPorts(service *servicemodel.Service, s *slice) {
	known := map[string]bool{} // the ports of the service, and the reported ones
	var names []string
	for _, p := range service.Ports {
		name := portText(p.Name, p.Protocol)
		known[name], names = true, append(names, name)
	}

	has := shorten(strings.Join(names, ", "), 4*maxShown)
	for _, p := range s.ports {
		name := portText(p.Name, p.Protocol)
		if known[name] {
			continue
		}
		known[name] = true
		r.warn("ports", name, "Service %v has no port of that name and protocol, it has %s",
			s.service, has)
	}
}

// portText is the text of a port's name and protocol, such as "http/tcp".
func portText(name string, p servicemodel.Protocol) string {
	if name == "" {
		name = `""`
	}
	return fmt.Sprintf("%s/%s", name, p)
}
