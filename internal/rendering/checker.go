package rendering

import (
	"errors"
	"strconv"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/servicemodel"
)

// Abilities describe the features that a backend can express. Hints name alternatives in errors.
type Abilities struct {
	// Scheduler reports whether the backend has a scheduler other than the default.
	Scheduler     func(servicemodel.Scheduler) bool
	SchedulerHint string
	// ForwardingHint is set if the backend has no direct routing and no tunnels.
	ForwardingHint string
	// Ranges allows frontends at ranges of ports, NodeRanges ranges of node ports, too, and Shifted
	// ranges that are mapped to ranges of endpoints. MasqueradeIPs allows configured sources of
	// masqueraded connections.
	Ranges, NodeRanges, Shifted, MasqueradeIPs bool
	// AnyOrigins allows combinations of masqueraded origins that [servicemodel.Resolve] never
	// returns. Answers allows dropping packets of services without endpoints, and all answers to
	// clients that may not connect. Neighbours allows masqueraded neighbours.
	AnyOrigins, Answers, Neighbours bool
	// Frontend and Pool, if not nil, refuse further features.
	Frontend func(*Refusals, *servicemodel.Frontend)
	Pool     func(*Refusals, *servicemodel.Pool)
}

// Refusals are the parts of a change set that a backend cannot express.
type Refusals struct {
	backend string
	errs    []error
	seen    map[backends.UnsupportedError]bool // a service may have many pools
}

// Refuse refuses a service because of the value of a field.
func (r *Refusals) Refuse(of servicemodel.PortName, field, value, hint string) {
	e := backends.UnsupportedError{Backend: r.backend, Service: of.Name,
		Object: "service " + of.String(), Field: field, Value: value, Hint: hint}
	if r.seen == nil {
		r.seen = map[backends.UnsupportedError]bool{}
	}
	if !r.seen[e] {
		r.seen[e] = true
		r.errs = append(r.errs, &e)
	}
}

// RefusedNode refuses a node-wide rule.
func RefusedNode(backend, field, value, hint string) error {
	return &backends.UnsupportedError{Backend: backend, Object: "node", Field: field,
		Value: value, Hint: hint}
}

// NoChanges is the error of a backend's Check for a nil change set.
func NoChanges(backend string) error {
	return errors.New(backend + ": check: no change set")
}

// Check returns the parts of a change set that a backend cannot express, as
// [backends.UnsupportedError] values: of services, of frontends, of pools, and of the node.
func Check(backend string, c *servicemodel.ChangeSet, can Abilities) error {
	r := &Refusals{backend: backend}
	for of, s := range c.Schedulers() {
		r.scheduler(of, s, &can)
	}
	for _, fc := range c.Frontends {
		if fc.New != nil {
			r.frontend(fc.New, &can)
		}
	}

	for _, pc := range c.Pools {
		if pc.New != nil {
			r.pool(pc.New, &can)
		}
	}

	if c.Rules != nil {
		r.node(c.Rules.New, &can)
	}
	return errors.Join(r.errs...)
}

func (r *Refusals) scheduler(of servicemodel.PortName, s servicemodel.Scheduler, can *Abilities) {
	if s != servicemodel.SchedulerDefault && !can.Scheduler(s) {
		r.Refuse(of, backends.FieldScheduler, string(s), can.SchedulerHint)
	}
}

func (r *Refusals) frontend(f *servicemodel.Frontend, can *Abilities) {
	if !can.AnyOrigins && !KnownOrigins(f.Masquerade) {
		r.Refuse(f.Service, backends.FieldMasquerade, f.Masquerade.String(), "")
	}
	if f.Sources != nil && f.Key.NodePort() {
		r.Refuse(f.Service, backends.FieldSources, "on a node port", "")
	}
	switch {
	case f.Key.EndPort != 0 && !can.Ranges:
		r.Refuse(f.Service, backends.FieldEndPort, strconv.Itoa(int(f.Key.EndPort)), "")
	case f.Key.EndPort != 0 && f.Key.NodePort() && !can.NodeRanges:
		r.Refuse(f.Service, backends.FieldEndPort, strconv.Itoa(int(f.Key.EndPort)),
			"a range with node ports: nftables can")
	case f.Shifted && !can.Shifted:
		r.Refuse(f.Service, backends.FieldTargetPort, "for "+f.Key.String(),
			"nftables and iptables can")
	}
	if f.MasqueradeIP.IsValid() && !can.MasqueradeIPs {
		r.Refuse(f.Service, backends.FieldMasqueradeIPs, f.MasqueradeIP.String(),
			"nftables and ipvs can")
	}
	if can.Frontend != nil {
		can.Frontend(r, f)
	}
}

func (r *Refusals) pool(p *servicemodel.Pool, can *Abilities) {
	r.scheduler(p.ID.Service, p.Scheduler, can)
	if can.ForwardingHint != "" && p.Forwarding != servicemodel.ForwardNAT {
		r.Refuse(p.ID.Service, backends.FieldForwarding, string(p.Forwarding), can.ForwardingHint)
	}
	if can.Pool != nil {
		can.Pool(r, p)
	}
}

func (r *Refusals) node(rules *servicemodel.Rules, can *Abilities) {
	for _, n := range []struct {
		expresses    bool
		field, value string
	}{
		{can.Neighbours || !rules.MasqueradeNeighbours, backends.FieldMasqueradeNeighbours, "true"},
		{can.Answers || rules.NoEndpoints != "drop", backends.FieldNoEndpoints, rules.NoEndpoints},
		{can.Answers || rules.Forbidden == "", backends.FieldForbidden, rules.Forbidden},
	} {
		if !n.expresses {
			r.errs = append(r.errs, RefusedNode(r.backend, n.field, n.value, "nftables can"))
		}
	}
}

// KnownOrigins reports whether [servicemodel.Resolve] returns a combination of origins.
func KnownOrigins(o servicemodel.Origins) bool {
	return o == 0 || o == servicemodel.FromAnywhere || o == servicemodel.FromHost ||
		o == servicemodel.FromHost|servicemodel.FromOutside
}
