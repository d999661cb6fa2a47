package kube

import (
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/kernlb/kernlb/servicemodel"
)

// Config says what a [Tracker] cannot learn from Kubernetes.
type Config struct {
	// Node is the node as the program describes it. Its name selects the Node object; without a
	// name none counts. What is empty is filled in from that object: Zone from the label
	// topology.kubernetes.io/zone, Addresses from status.addresses, first the internal, then the
	// external ones, each in their order. To ServiceCIDRs, those of the ServiceCIDR objects are
	// added.
	Node servicemodel.Node

	// NodeCIDRs tells local pods by the pod CIDRs of the Node object, in place of Node.LocalPods
	// (detectLocalMode NodeCIDR of kube-proxy). Until the object is known, or if it has none, no
	// pod is told by its address.
	NodeCIDRs bool

	// Annotations is the prefix of the annotations of Services that say what Kubernetes has no
	// field for; see the package documentation. Empty, the default, means that annotations mean
	// nothing. A service that asks for what the backend cannot do is refused: an engine leaves it
	// out, or refuses the whole state if it is strict.
	Annotations string

	// Strict is for objects that no API server has validated, such as those in files: what an API
	// server of Kubernetes 1.36 would have refused of a Service, EndpointSlice or Endpoints object
	// is then an error too, whether kube-proxy skips it (an external IP that is not an address) or
	// heeds it (a node port of a service of type ClusterIP). What of a Service has no effect where
	// there is no cluster, such as spec.loadBalancerIP, is a warning.
	Strict bool

	// Triggers notes when changes were triggered, for [Tracker.Triggers]: a program that sets it
	// takes them from there, or they become ever more.
	Triggers bool
}

// Tracker follows Kubernetes objects and yields the state they describe. Its methods may be called
// from several goroutines, those about one object from one at a time, in the order of its versions.
// A tracker does not keep the objects it is given, though it shares their strings.
//
// Each Set method takes the newest version of an object and returns what is wrong with it, which
// [Tracker.Problems] returns too for as long as the object is there. Each Delete method is told
// that an object is gone; one that is not known is no problem.
type Tracker struct {
	config Config

	mu           sync.Mutex
	services     map[servicemodel.Name]*servicemodel.Service // nil if it is not proxied
	backends     map[servicemodel.Name]*backends             // by the service they are of
	owners       map[servicemodel.Name]servicemodel.Name     // the service of each EndpointSlice
	node         node
	serviceCIDRs map[string][]netip.Prefix // by the name of the ServiceCIDR
	problems     map[objectKey][]Problem
	triggers     triggers

	// state is the state last asked for, dirty what may have changed since.
	state     servicemodel.State
	dirty     map[servicemodel.Name]struct{}
	dirtyNode bool
}

// NewTracker returns a tracker that knows of no object.
func NewTracker(c Config) *Tracker {
	return &Tracker{
		config:       c,
		services:     map[servicemodel.Name]*servicemodel.Service{},
		backends:     map[servicemodel.Name]*backends{},
		owners:       map[servicemodel.Name]servicemodel.Name{},
		serviceCIDRs: map[string][]netip.Prefix{},
		problems:     map[objectKey][]Problem{},
		triggers: triggers{began: time.Now(),
			waiting: map[servicemodel.Name]time.Time{}},
		dirty:     map[servicemodel.Name]struct{}{},
		dirtyNode: true,
	}
}

// State returns the state that the objects known now describe. It is valid:
// [servicemodel.State.Validate] finds nothing, as long as the node it was configured with is valid.
// If nothing that matters changed since the last call, it is the same state. The cost is that of
// the services whose objects were set or deleted since.
func (t *Tracker) State() servicemodel.State {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, n := range slices.SortedFunc(maps.Keys(t.dirty), servicemodel.Name.Compare) {
		t.state = t.refresh(t.state, n)
	}
	clear(t.dirty)
	t.triggers.give()
	if t.dirtyNode {
		t.state = t.state.WithNode(t.view())
		t.dirtyNode = false
	}
	return t.state
}

// refresh brings one service and its endpoints in s up to date. Endpoints of services that are
// not proxied stay out. Those of services that are not known are in the state: they may tell why a
// service of a similar name has none.
func (t *Tracker) refresh(s servicemodel.State, n servicemodel.Name) servicemodel.State {
	service, known := t.services[n]
	if service == nil {
		if known || s.Service(n) != nil {
			s = s.WithoutService(n)
		}
		if known {
			return s
		}
		return s.WithEndpoints(n, t.backends[n].merged())
	}
	return s.WithService(service).WithEndpoints(n, t.backends[n].merged())
}

// Problems returns all that is wrong with the objects known now, in the order of their kinds and
// names, and for each object in the order of its fields' checks.
func (t *Tracker) Problems() []Problem {
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []Problem
	for _, k := range slices.SortedFunc(maps.Keys(t.problems), objectKey.compare) {
		all = append(all, t.problems[k]...)
	}
	return all
}

// conclude keeps and returns the problems of an object.
func (t *Tracker) conclude(k objectKey, r *report) []Problem {
	if len(r.problems) == 0 {
		delete(t.problems, k)
		return nil
	}
	t.problems[k] = r.problems
	return slices.Clone(r.problems)
}
