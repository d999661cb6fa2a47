package kube

//lint:file-ignore SA1019 Endpoints are deprecated, yet all that some clusters have

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/kernlb/kernlb/servicemodel"
)

// The kinds, with their names in problems.
const (
	kindService       = "Service"
	kindEndpointSlice = "EndpointSlice"
	kindEndpoints     = "Endpoints"
	kindNode          = "Node"
	kindServiceCIDR   = "ServiceCIDR"
)

// set handles the newest version of an object. It translates the object, keeps and returns its
// problems, and puts the translation, or the zero T if the object cannot be used.
func set[T any](t *Tracker, k objectKey, translate func(*report) T,
	put func(servicemodel.Name, T)) []Problem {
	r := newReport(k, t.config.Strict)
	meaning := translate(r)
	if r.failed() {
		meaning = *new(T)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	put(k.name, meaning)
	all := r.all()
	if len(all) == 0 {
		delete(t.problems, k)
		return nil
	}

	t.problems[k] = all
	return slices.Clone(all)
}

// forget handles the deletion of an object: it puts the zero T.
func forget[T any](t *Tracker, k objectKey, put func(servicemodel.Name, T)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.problems, k)
	put(k.name, *new(T))
}

// SetService adds or updates a Service.
func (t *Tracker) SetService(s *corev1.Service) []Problem {
	n := servicemodel.Name{Namespace: s.Namespace, Name: s.Name}
	return set(t, objectKey{kindService, n}, func(r *report) *servicemodel.Service {
		service := translateService(s, r)
		annotate(service, serviceAnnotations, s.Annotations, t.config.Annotations, r)
		if r.strict && !ofOtherProxy(s) {
			r.refuseService(s)
			if !r.failed() {
				r.warnNoEffect(s)
			}
		}

		return service
	}, func(n servicemodel.Name, service *servicemodel.Service) {
		t.services[n] = service
		t.dirty[n] = struct{}{}
	})
}

// DeleteService tells the tracker that a Service was deleted.
func (t *Tracker) DeleteService(n servicemodel.Name) {
	forget(t, objectKey{kindService, n}, func(n servicemodel.Name, _ *servicemodel.Service) {
		delete(t.services, n)
		t.dirty[n] = struct{}{}
	})
}

// SetEndpointSlice adds or updates an EndpointSlice.
func (t *Tracker) SetEndpointSlice(s *discoveryv1.EndpointSlice) []Problem {
	n := servicemodel.Name{Namespace: s.Namespace, Name: s.Name}
	translate := func(r *report) *slice {
		meaning := translateSlice(s, r)
		annotate(meaning, sliceAnnotations, s.Annotations, t.config.Annotations, r)
		if r.strict {
			r.refuseSlice(s)
		}
		return meaning
	}

	return set(t, objectKey{kindEndpointSlice, n}, translate, t.putSlice)
}

// DeleteEndpointSlice tells the tracker that an EndpointSlice was deleted. n is the name of the
// EndpointSlice, not of its service.
func (t *Tracker) DeleteEndpointSlice(n servicemodel.Name) {
	forget(t, objectKey{kindEndpointSlice, n}, t.putSlice)
}

func (t *Tracker) putSlice(n servicemodel.Name, s *slice) {
	var old *slice
	if owner, known := t.owners[n]; known { // it may have belonged to another service
		delete(t.owners, n)
		b := t.backends[owner]
		old = b.slices[n.Name]
		delete(b.slices, n.Name)
		t.tidy(owner, b)
	}

	if s != nil {
		t.owners[n] = s.service
		t.backendsOf(s.service).slices[n.Name] = s
	}

	if t.config.Triggers {
		t.triggers.note(n, old, s)
	}
}

// SetEndpoints adds or updates an Endpoints object. It is used while its service has no valid
// EndpointSlice.
func (t *Tracker) SetEndpoints(e *corev1.Endpoints) []Problem {
	n := servicemodel.Name{Namespace: e.Namespace, Name: e.Name}
	translate := func(r *report) *slice {
		meaning := translateEndpoints(e, r)
		if r.strict {
			r.refuseEndpoints(e)
		}
		return meaning
	}

	return set(t, objectKey{kindEndpoints, n}, translate, t.putEndpoints)
}

// DeleteEndpoints tells the tracker that an Endpoints object was deleted.
func (t *Tracker) DeleteEndpoints(n servicemodel.Name) {
	forget(t, objectKey{kindEndpoints, n}, t.putEndpoints)
}

func (t *Tracker) putEndpoints(n servicemodel.Name, s *slice) {
	b := t.backendsOf(n)
	b.legacy = s
	t.tidy(n, b)
}

// backendsOf returns the backends of a service, which the caller may change.
func (t *Tracker) backendsOf(service servicemodel.Name) *backends {
	t.dirty[service] = struct{}{}
	b := t.backends[service]
	if b == nil {
		b = &backends{slices: map[string]*slice{}}
		t.backends[service] = b
	}

	return b
}

// tidy forgets the backends of a service if none of its objects is left.
func (t *Tracker) tidy(service servicemodel.Name, b *backends) {
	t.dirty[service] = struct{}{}
	if len(b.slices) == 0 && b.legacy == nil {
		delete(t.backends, service)
	}
}

// SetNode adds or updates a Node. Objects of other nodes are ignored.
func (t *Tracker) SetNode(n *corev1.Node) []Problem {
	if n.Name == "" || n.Name != t.config.Node.Name {
		return nil
	}
	return set(t, objectKey{kindNode, servicemodel.Name{Name: n.Name}},
		func(r *report) node { return translateNode(n, r) },
		func(_ servicemodel.Name, n node) {
			t.node = n
			t.dirtyNode = true
		})
}

// DeleteNode tells the tracker that a Node was deleted. This changes nothing, as in kube-proxy: the
// node still runs, and its services would suffer both when the object disappears and when it
// returns.
func (t *Tracker) DeleteNode(string) {}

// SetServiceCIDR adds or updates a ServiceCIDR.
func (t *Tracker) SetServiceCIDR(c *networkingv1.ServiceCIDR) []Problem {
	translate := func(r *report) []netip.Prefix { return translateServiceCIDR(c, r) }
	return set(t, objectKey{kindServiceCIDR, servicemodel.Name{Name: c.Name}}, translate,
		t.putServiceCIDR)
}

// DeleteServiceCIDR tells the tracker that a ServiceCIDR was deleted.
func (t *Tracker) DeleteServiceCIDR(name string) {
	forget(t, objectKey{kindServiceCIDR, servicemodel.Name{Name: name}}, t.putServiceCIDR)
}

func (t *Tracker) putServiceCIDR(n servicemodel.Name, cidrs []netip.Prefix) {
	if cidrs != nil {
		t.serviceCIDRs[n.Name] = cidrs
	} else {
		delete(t.serviceCIDRs, n.Name)
	}

	t.dirtyNode = true
}
