package kube

//lint:file-ignore SA1019 Endpoints are deprecated, yet all that some clusters have

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/kernlb/kernlb/servicemodel"
)

// The kinds, as problems name them.
const (
	kindService       = "Service"
	kindEndpointSlice = "EndpointSlice"
	kindEndpoints     = "Endpoints"
	kindNode          = "Node"
	kindServiceCIDR   = "ServiceCIDR"
)

// SetService takes a Service.
func (t *Tracker) SetService(s *corev1.Service) []Problem {
	n := servicemodel.Name{Namespace: s.Namespace, Name: s.Name}
	k := objectKey{kindService, n}
	r := newReport(k, t.config.Strict)
	service := translateService(s, r)
	annotate(service, s.Annotations, t.config.Annotations, r)

	t.mu.Lock()
	defer t.mu.Unlock()
	problems, ok := t.conclude(k, r)
	t.putService(n, service, ok)
	return problems
}

// DeleteService says that a Service is gone.
func (t *Tracker) DeleteService(n servicemodel.Name) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.problems, objectKey{kindService, n})
	t.putService(n, nil, false)
}

func (t *Tracker) putService(n servicemodel.Name, service *servicemodel.Service, ok bool) {
	if service != nil && ok {
		t.services[n] = service
	} else {
		delete(t.services, n)
	}
	t.dirty[n] = struct{}{}
}

// SetEndpointSlice takes an EndpointSlice.
func (t *Tracker) SetEndpointSlice(s *discoveryv1.EndpointSlice) []Problem {
	n := servicemodel.Name{Namespace: s.Namespace, Name: s.Name}
	k := objectKey{kindEndpointSlice, n}
	r := newReport(k, t.config.Strict)
	translated := translateSlice(s, r)

	t.mu.Lock()
	defer t.mu.Unlock()
	problems, ok := t.conclude(k, r)
	t.putSlice(n, translated, ok)
	return problems
}

// DeleteEndpointSlice says that an EndpointSlice is gone. The name is its own, not that of its
// service.
func (t *Tracker) DeleteEndpointSlice(n servicemodel.Name) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.problems, objectKey{kindEndpointSlice, n})
	t.putSlice(n, nil, false)
}

func (t *Tracker) putSlice(n servicemodel.Name, s *slice, ok bool) {
	if owner, known := t.owners[n]; known { // it may have been of another service
		delete(t.owners, n)
		b := t.backends[owner]
		delete(b.slices, n.Name)
		t.tidy(owner, b)
	}
	if s == nil || !ok {
		return
	}
	t.owners[n] = s.service
	t.backendsOf(s.service).slices[n.Name] = s
}

// SetEndpoints takes an Endpoints object. It counts while its service has no valid EndpointSlice.
func (t *Tracker) SetEndpoints(e *corev1.Endpoints) []Problem {
	n := servicemodel.Name{Namespace: e.Namespace, Name: e.Name}
	k := objectKey{kindEndpoints, n}
	r := newReport(k, t.config.Strict)
	translated := translateEndpoints(e, r)

	t.mu.Lock()
	defer t.mu.Unlock()
	problems, ok := t.conclude(k, r)
	t.putEndpoints(n, translated, ok)
	return problems
}

// DeleteEndpoints says that an Endpoints object is gone.
func (t *Tracker) DeleteEndpoints(n servicemodel.Name) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.problems, objectKey{kindEndpoints, n})
	t.putEndpoints(n, nil, false)
}

func (t *Tracker) putEndpoints(n servicemodel.Name, s *slice, ok bool) {
	b := t.backendsOf(n)
	b.legacy = nil
	if ok {
		b.legacy = s
	}
	t.tidy(n, b)
}

// backendsOf returns the backends of a service, to be changed.
func (t *Tracker) backendsOf(service servicemodel.Name) *backends {
	t.dirty[service] = struct{}{}
	b := t.backends[service]
	if b == nil {
		b = &backends{slices: map[string]*slice{}}
		t.backends[service] = b
	}
	return b
}

// tidy forgets the backends of a service if nothing is left of them.
func (t *Tracker) tidy(service servicemodel.Name, b *backends) {
	t.dirty[service] = struct{}{}
	if len(b.slices) == 0 && b.legacy == nil {
		delete(t.backends, service)
	}
}

// SetNode takes a Node. Those of other nodes are ignored.
func (t *Tracker) SetNode(n *corev1.Node) []Problem {
	if n.Name == "" || n.Name != t.config.Node.Name {
		return nil
	}
	k := objectKey{kindNode, servicemodel.Name{Name: n.Name}}
	r := newReport(k, t.config.Strict)
	translated := translateNode(n, r)

	t.mu.Lock()
	defer t.mu.Unlock()
	problems, ok := t.conclude(k, r)
	if ok {
		t.node = *translated
	} else {
		t.node = node{}
	}
	t.dirtyNode = true
	return problems
}

// DeleteNode says that a Node is gone, which changes nothing: while the program runs, so does the
// node, and the object's return would disturb as much as its loss. Kube-proxy does the same.
func (t *Tracker) DeleteNode(string) {}

// SetServiceCIDR takes a ServiceCIDR.
func (t *Tracker) SetServiceCIDR(c *networkingv1.ServiceCIDR) []Problem {
	k := objectKey{kindServiceCIDR, servicemodel.Name{Name: c.Name}}
	r := newReport(k, t.config.Strict)
	cidrs := translateServiceCIDR(c, r)

	t.mu.Lock()
	defer t.mu.Unlock()
	problems, ok := t.conclude(k, r)
	if ok {
		t.serviceCIDRs[c.Name] = cidrs
	} else {
		delete(t.serviceCIDRs, c.Name)
	}
	t.dirtyNode = true
	return problems
}

// DeleteServiceCIDR says that a ServiceCIDR is gone.
func (t *Tracker) DeleteServiceCIDR(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.problems, objectKey{kindServiceCIDR, servicemodel.Name{Name: name}})
	delete(t.serviceCIDRs, name)
	t.dirtyNode = true
}
