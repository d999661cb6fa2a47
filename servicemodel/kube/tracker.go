package kube

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/kernlb/kernlb/servicemodel"
)

// Config has the settings that a [Tracker] cannot learn from Kubernetes.
type Config struct {
	// Node is the program's description of the node. Its name selects the Node object; without a
	// name, all Node objects are ignored. Empty fields are filled in from that object: Zone from
	// the label topology.kubernetes.io/zone, and Addresses from status.addresses, internal
	// addresses before external addresses. The CIDRs of the ServiceCIDR objects are added to
	// ServiceCIDRs.
	Node servicemodel.Node

	// NodeCIDRs detects local pods by the pod CIDRs of the Node object instead of by Node.LocalPods
	// (detectLocalMode NodeCIDR of kube-proxy). While the object is unknown or has no pod CIDRs, no
	// pod is detected by its address.
	NodeCIDRs bool

	// Annotations is the prefix of annotations of Services that set fields without a counterpart in
	// Kubernetes; see the package documentation. Empty, the default, means that annotations have no
	// effect. If a service requests a setting that the backend lacks, an engine leaves the service
	// out, or, if it is strict, refuses the whole state.
	Annotations string

	// Strict is for objects that no API server has validated, such as objects in files. A strict
	// tracker reports an error for a Service, EndpointSlice or Endpoints object that an API server
	// of Kubernetes 1.36 would refuse. It does so whether kube-proxy would skip the fault (an
	// external IP that is not an address) or accept it (a node port of a service of type
	// ClusterIP). Fields of a Service that have no effect without a cluster, such as
	// spec.loadBalancerIP, are warnings.
	Strict bool

	// Triggers makes the tracker collect the times at which changes were triggered, for
	// [Tracker.Triggers]. A program that sets it must call that method, or else the list of times
	// grows without limit.
	Triggers bool
}

// Tracker follows Kubernetes objects and returns the state that they describe. Its methods are safe
// for concurrent use. However, calls about one object must come one after another, in the order of
// the object's versions. A tracker does not keep the objects, but it shares their strings.
//
// Each Set method gets the newest version of an object and returns its problems. [Tracker.Problems]
// also returns them as long as the object exists. Each Delete method says that an object was
// deleted. Deleting an unknown object has no effect.
type Tracker struct {
	config Config

	mu           sync.Mutex
	services     map[servicemodel.Name]*servicemodel.Service // nil if the service is not proxied
	backends     map[servicemodel.Name]*backends             // by the name of the service
	owners       map[servicemodel.Name]servicemodel.Name     // the service of each EndpointSlice
	node         node
	serviceCIDRs map[string][]netip.Prefix // by the name of the ServiceCIDR
	problems     map[objectKey][]Problem
	triggers     triggers

	// state is the last state that was returned. dirty are the services that may have changed since
	// then.
	state     servicemodel.State
	dirty     map[servicemodel.Name]struct{}
	dirtyNode bool
}

// NewTracker returns a tracker without objects. A nil *Config is the zero Config.
func NewTracker(c *Config) *Tracker {
	return &Tracker{
		config:       *cmp.Or(c, &Config{}),
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

// State returns the state that the known objects describe. If the configured node is valid, the
// state is valid, too: [servicemodel.State.Validate] finds nothing. If nothing relevant changed
// since the last call, State returns the same state. The cost depends on the services whose objects
// were set or deleted since then.
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

// refresh updates one service and its endpoints in s. Endpoints of services that are not proxied
// stay out. Endpoints of unknown services are in the state, because they may explain why a service
// with a similar name has no endpoints.
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

	return s.WithService(service).WithEndpoints(n, keepPorts(service, t.backends[n].merged()))
}

// Problems returns all problems of the known objects, in the order of the objects' kinds and names.
func (t *Tracker) Problems() []Problem {
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []Problem
	for _, k := range slices.SortedFunc(maps.Keys(t.problems), objectKey.compare) {
		all = append(all, t.problems[k]...)
	}
	return all
}
