package dataplane

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/servicemodel"
)

// Refusal is a service that an apply left out as a whole or in part, and the reason. It can also be
// an address family that an apply left out of all services because the kernel lacks it, or a part
// that [Parts.ApplyAll] did not change.
type Refusal struct {
	// Owner is the owner of a refused part. It is empty in results of an engine.
	Owner string
	// Service is the service's name. It is zero if a family or a part is left out.
	Service servicemodel.Name
	// Family is the address family that is left out, as if [servicemodel.Node.OnlyFamily] were the
	// other family. It is zero if a service is left out. The engine tries the family again after it
	// has read the kernel ([RunOptions.Resync]).
	Family servicemodel.Family
	// Err joins all problems ([Problems]): *servicemodel.FieldError values if the service or an
	// endpoint is invalid, otherwise *[backends.UnsupportedError] and *[backends.CollisionError]
	// values.
	Err error
	// Endpoints are the indices of the invalid endpoints that were left out, in the service's list.
	// It is set only with [Config.LeaveOutEndpoints], and only if the rest of the service is valid:
	// the service is then served without these endpoints. If Endpoints is empty, the service is
	// left out as a whole.
	Endpoints []int
	// Kept says that the service keeps an earlier definition, see [Config.KeepRefused].
	Kept bool
}

// String returns "default/web: " and the reason.
func (r Refusal) String() string {
	if r.Owner != "" {
		return r.Owner + ": " + r.Err.Error()
	}
	if r.Family != 0 {
		return r.Family.String() + ": " + r.Err.Error()
	}
	return r.Service.String() + ": " + r.Err.Error()
}

func compareRefusals(a, b Refusal) int { return a.Service.Compare(b.Service) }

// reducedState is a state without its refused services, during an apply.
type reducedState struct {
	state    servicemodel.State
	table    *servicemodel.Table
	cfg      *Config
	refused  []Refusal
	kept     int                 // number of times that a refused service was kept
	partly   []servicemodel.Name // kept with the accepted endpoints that still exist
	lacks    *Problem            // of a family that is left out
	accepted servicemodel.State  // the source of the old definitions of refused services
}

// resolve resolves the state into a table, and leaves out its invalid services.
func (d *reducedState) resolve(prev *servicemodel.Table) (err error) {
	for {
		if d.table, err = servicemodel.Resolve(prev, d.state); err == nil {
			return nil
		}
		if err = d.leaveOut(err); err != nil {
			return err
		}
	}
}

// withoutRefused leaves out the services that the backend refuses. err is the error of the backend
// for the changes to the table of d. Without a refused service, another service may get its
// address, so the backend must check the new changes, too. Each round leaves out at least one
// service.
func (e *Engine) withoutRefused(d *reducedState, err error) error {
	for err != nil {
		kept := d.kept
		if err := d.leaveOut(err); err != nil {
			return err
		}
		next, errInvalid := servicemodel.Resolve(d.table, d.state)
		if errInvalid != nil {
			return errInvalid
		}
		c := e.known.inKernel.Changes(servicemodel.Diff(d.table, next))
		if d.kept > kept {
			// The backend may refuse the previous definition of a service for the same reason,
			// although this definition is already in the kernel.
			c = servicemodel.Diff(e.known.inKernel, next)
		}

		d.table, err = next, e.backend.Check(c)
	}

	return nil
}

// leaveOut leaves out the services that err names, or a family that the kernel lacks. Each call
// leaves out at least one service or family. If err also concerns anything else, such as the node,
// leaveOut returns err.
func (d *reducedState) leaveOut(err error) error {
	if d.cfg.Strict {
		return refusedState{err}
	}
	problems := map[servicemodel.Name][]error{}
	for _, p := range Problems(err) {
		if d.leaveOutFamily(p) {
			continue
		}
		if d.state.Service(p.Service) == nil && d.state.Endpoints(p.Service) == nil {
			return refusedState{err}
		}
		problems[p.Service] = append(problems[p.Service], p.Err)
	}

	for name, errs := range problems {
		d.refuse(name, errors.Join(errs...))
	}
	slices.SortFunc(d.refused, compareRefusals)
	return nil
}

// leaveOutFamily leaves out a family if the problem p says that the kernel lacks it. It returns
// false for other problems, and if the node serves only that family.
func (d *reducedState) leaveOutFamily(p Problem) bool {
	n := d.state.Node()
	if p.Field != backends.FieldFamily || n.OnlyFamily != 0 {
		return false
	}
	r := Refusal{Family: servicemodel.IPv4, Err: p.Err}
	n.OnlyFamily = servicemodel.IPv6
	if p.Value == n.OnlyFamily.String() {
		r.Family, n.OnlyFamily = n.OnlyFamily, r.Family
	}
	d.state, d.refused, d.lacks = d.state.WithNode(n), append(d.refused, r), &p
	return true
}

// refuse leaves out only the invalid endpoints of a service if LeaveOutEndpoints is set and the
// rest is valid. Otherwise it leaves out the service.
func (d *reducedState) refuse(name servicemodel.Name, err error) {
	r := Refusal{Service: name, Err: err}
	before := func(o Refusal) bool { return o.Service == name }
	i := slices.IndexFunc(d.refused, before)
	svc := d.state.Service(name)
	if d.cfg.LeaveOutEndpoints && i < 0 && svc != nil && svc.Validate() == nil {
		var valid []servicemodel.Endpoint
		for i, e := range d.state.Endpoints(name) {
			if e.Validate() == nil {
				valid = append(valid, e)
			} else {
				r.Endpoints = append(r.Endpoints, i)
			}
		}

		if len(r.Endpoints) > 0 {
			d.state = d.state.WithEndpoints(name, valid)
			d.refused = append(d.refused, r)
			return
		}
	}

	kept := false
	if i >= 0 {
		kept = d.refused[i].Kept
		r.Err = errors.Join(d.refused[i].Err, err)
		d.refused = slices.DeleteFunc(d.refused, before)
	}

	if was := d.accepted.Service(name); was != nil && d.keep(was, kept) {
		r.Kept = true
		d.kept++
	} else {
		d.state = d.state.WithoutService(name)
	}

	d.refused = append(d.refused, r)
}

// keep restores the old definition of a service, and its old endpoints if the current ones are
// invalid. If the service is already kept, the backend refuses its current endpoints, so keep
// restores only those old endpoints that still exist. If the backend also refuses these endpoints,
// because some were accepted but never used, the service gets no endpoints. keep returns false if
// this changes nothing.
func (d *reducedState) keep(was *servicemodel.Service, kept bool) bool {
	before, present := d.state, d.state.Endpoints(was.Name)
	d.state = d.state.WithService(was)
	switch {
	case kept:
		d.state = d.state.WithEndpoints(was.Name, common(d.accepted.Endpoints(was.Name), present))
		if d.state.Same(before) {
			d.state = d.state.WithEndpoints(was.Name, nil)
		}
	case slices.ContainsFunc(present, func(e servicemodel.Endpoint) bool {
		return e.Validate() != nil
	}):
		d.state = d.state.WithEndpoints(was.Name, d.accepted.Endpoints(was.Name))
	}

	if !kept || d.state.Same(before) {
		return !kept
	}
	d.partly = append(d.partly, was.Name)
	return true
}

// common returns the accepted endpoints that still exist. Endpoints of the same address but
// different ports are distinct. An endpoint takes traffic only if both its accepted condition and
// its current condition allow traffic.
func common(accepted, present []servicemodel.Endpoint) []servicemodel.Endpoint {
	type place struct {
		addr netip.Addr
		port servicemodel.EndpointPort
	}
	is := map[place]servicemodel.Endpoint{}
	for _, e := range present {
		for _, p := range e.Ports {
			at := place{e.Addr, p}
			if known, ok := is[at]; !ok || known.Condition != servicemodel.Ready {
				is[at] = e
			}
		}
	}

	// Each condition allows less traffic than the previous condition.
	order := []servicemodel.Condition{servicemodel.Ready, servicemodel.Serving,
		servicemodel.Quiesced, servicemodel.NotReady, servicemodel.Terminating}
	var both []servicemodel.Endpoint
	for _, e := range accepted {
		for _, p := range e.Ports {
			now, exists := is[place{e.Addr, p}]
			if !exists {
				continue
			}
			one := e
			one.Ports = []servicemodel.EndpointPort{p}
			one.Condition = order[max(slices.Index(order, e.Condition),
				slices.Index(order, now.Condition))]
			both = append(both, one)
		}
	}

	return both
}
