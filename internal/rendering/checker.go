package rendering

import (
	"errors"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/nocopy"
	"github.com/kernlb/kernlb/servicemodel"
)

// Checker collects the parts of a change set that a backend cannot express, as
// [dataplane.UnsupportedError] values.
type Checker struct {
	backend string
	c       *servicemodel.ChangeSet
	errs    []error
	seen    map[dataplane.UnsupportedError]bool // a service may have many pools
}

// NewChecker returns a checker of a change set for a backend.
func NewChecker(backend string, c *servicemodel.ChangeSet) *Checker {
	return &Checker{backend: backend, c: c, seen: map[dataplane.UnsupportedError]bool{}}
}

// Err returns what was refused, in the order of the checks.
func (k *Checker) Err() error { return errors.Join(k.errs...) }

// Refuse refuses a service because of a value of a field.
func (k *Checker) Refuse(of servicemodel.PortName, field, value, hint string) {
	e := dataplane.UnsupportedError{Backend: k.backend, Service: of.Name,
		Object: "service " + of.String(), Field: field, Value: value, Hint: hint}
	if !k.seen[e] {
		k.seen[e] = true
		k.errs = append(k.errs, &e)
	}
}

// RefuseNode refuses a node-wide rule.
func (k *Checker) RefuseNode(field, value, hint string) {
	k.errs = append(k.errs, &dataplane.UnsupportedError{Backend: k.backend, Object: "node",
		Field: field, Value: value, Hint: hint})
}

// Answers refuses answers other than the defaults.
func (k *Checker) Answers() {
	if k.c.Rules == nil {
		return
	}
	if a := k.c.Rules.New.NoEndpoints; a != "" {
		k.RefuseNode(dataplane.FieldNoEndpoints, a, "nftables can")
	}
	if a := k.c.Rules.New.Forbidden; a != "" {
		k.RefuseNode(dataplane.FieldForbidden, a, "nftables can")
	}
}

// RefuseFamily refuses an address family that the node's kernel lacks.
func (k *Checker) RefuseFamily(f servicemodel.Family, hint string) {
	k.errs = append(k.errs, &dataplane.UnsupportedError{Backend: k.backend, Object: "node",
		Field: dataplane.FieldFamily, Value: f.String(), Hint: hint})
}

// Frontends calls fn with each new frontend.
func (k *Checker) Frontends(fn func(*servicemodel.Frontend)) {
	for _, fc := range k.c.Frontends {
		if fc.New != nil {
			fn(fc.New)
		}
	}
}

// Pools calls fn with each new pool.
func (k *Checker) Pools(fn func(*servicemodel.Pool)) {
	for _, pc := range k.c.Pools {
		if pc.New != nil {
			fn(pc.New)
		}
	}
}

// Schedulers refuses the schedulers that a backend does not have.
func (k *Checker) Schedulers(has func(servicemodel.Scheduler) bool, hint string) {
	check := func(of servicemodel.PortName, s servicemodel.Scheduler) {
		if s != servicemodel.SchedulerDefault && !has(s) {
			k.Refuse(of, dataplane.FieldScheduler, string(s), hint)
		}
	}
	k.Frontends(func(fe *servicemodel.Frontend) {
		check(fe.Service, nocopy.Of(k.c.New).IdleScheduler(fe))
	})
	k.Pools(func(p *servicemodel.Pool) { check(p.ID.Service, p.Scheduler) })
}

// Forwarding refuses direct routing and tunnels.
func (k *Checker) Forwarding(hint string) {
	k.Pools(func(p *servicemodel.Pool) {
		if p.Forwarding != servicemodel.ForwardNAT {
			k.Refuse(p.ID.Service, dataplane.FieldForwarding, string(p.Forwarding), hint)
		}
	})
}

// Sources refuses source ranges of node ports.
func (k *Checker) Sources() {
	k.Frontends(func(fe *servicemodel.Frontend) {
		if fe.Sources != nil && fe.Key.NodePort() {
			k.Refuse(fe.Service, dataplane.FieldSources, "on a node port", "")
		}
	})
}

// Masquerade refuses the combinations of origins that [servicemodel.Resolve] never makes.
func (k *Checker) Masquerade() {
	k.Frontends(func(fe *servicemodel.Frontend) {
		if !KnownOrigins(fe.Masquerade) {
			k.Refuse(fe.Service, dataplane.FieldMasquerade, fe.Masquerade.String(), "")
		}
	})
}

// KnownOrigins reports whether [servicemodel.Resolve] makes a combination of origins.
func KnownOrigins(o servicemodel.Origins) bool {
	return o == 0 || o == servicemodel.FromAnywhere || o == servicemodel.FromHost ||
		o == servicemodel.FromHost|servicemodel.FromOutside
}
