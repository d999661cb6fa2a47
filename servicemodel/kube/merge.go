package kube

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/kernlb/kernlb/servicemodel"
)

// backends has the endpoints of one service, from all its slices and Endpoints objects. There is at
// least one object.
type backends struct {
	slices map[string]*slice // by the name of the EndpointSlice
	legacy *slice            // from Endpoints, nil without Endpoints
}

// merged returns the endpoints of all slices, or of the Endpoints object if there is no slice. The
// result depends only on the objects.
func (b *backends) merged() []servicemodel.Endpoint {
	if b == nil {
		return nil
	}
	if len(b.slices) == 0 {
		return withoutDuplicates(b.legacy.endpoints)
	}
	var all []servicemodel.Endpoint
	for i, name := range slices.Sorted(maps.Keys(b.slices)) {
		if i == 0 { // most services have only one slice, which is shared
			all = slices.Clip(b.slices[name].endpoints)
			continue
		}

		all = append(all, b.slices[name].endpoints...)
	}

	return withoutDuplicates(all)
}

// target identifies an endpoint of a service port. name and protocol name the service port.
type target struct {
	addr netip.Addr
	port servicemodel.EndpointPort
}

// withoutDuplicates returns eps with each target in only one endpoint: the endpoint that [better]
// prefers, or the first of equal endpoints. It does not modify eps, and returns eps itself if no
// address occurs twice.
func withoutDuplicates(eps []servicemodel.Endpoint) []servicemodel.Endpoint {
	addrs := make(map[netip.Addr]struct{}, len(eps))
	for i := range eps {
		addrs[eps[i].Addr] = struct{}{}
	}
	if len(addrs) == len(eps) {
		return eps
	}
	winner := map[target]int{}
	for i := range eps {
		for _, p := range eps[i].Ports {
			t := target{eps[i].Addr, p}
			if j, ok := winner[t]; !ok || better(&eps[i], &eps[j]) {
				winner[t] = i
			}
		}
	}

	out := make([]servicemodel.Endpoint, 0, len(eps))
	for i, e := range eps {
		lost := func(p servicemodel.EndpointPort) bool { return winner[target{e.Addr, p}] != i }
		if slices.ContainsFunc(e.Ports, lost) {
			e.Ports = slices.DeleteFunc(slices.Clone(e.Ports), lost)
		}
		if len(e.Ports) > 0 {
			out = append(out, e)
		}
	}

	return out
}

// better reports whether a is a better endpoint for traffic than b.
func better(a, b *servicemodel.Endpoint) bool {
	order := []servicemodel.Condition{servicemodel.Ready, servicemodel.NotReady,
		servicemodel.Serving, servicemodel.Terminating, servicemodel.Quiesced}
	return slices.Index(order, a.Condition) < slices.Index(order, b.Condition)
}
