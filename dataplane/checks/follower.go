package checks

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/kernlb/kernlb/servicemodel"
)

// Follower passes states to an engine, with endpoints that are ready only while their checks pass.
// Its methods are safe for concurrent use.
type Follower struct {
	monitor *Monitor
	set     func(servicemodel.State)
	changed func(Report)

	mu       sync.Mutex
	state    servicemodel.State
	services map[servicemodel.Name]*checked
	users    map[Target][]servicemodel.Name // the services that use a target
}

// NewFollower returns a follower without a state. It passes each new state to set, usually the Set
// method of an engine: one state at a time, in order. set must not block, and must not call the
// follower. Config.Changed is called after set. The errors are those of [New].
func NewFollower(set func(servicemodel.State), cfg *Config) (*Follower, error) {
	f := &Follower{set: set, changed: func(Report) {}}
	own := Config{}
	if cfg != nil {
		own = *cfg
	}
	if own.Changed != nil {
		f.changed = own.Changed
	}
	own.Changed = f.heard
	var err error
	f.monitor, err = New(&own)
	return f, err
}

// Run checks endpoints until the context ends, like [Monitor.Run].
func (f *Follower) Run(ctx context.Context) error { return f.monitor.Run(ctx) }

// Reports returns a report about each target, in no order.
func (f *Follower) Reports() []Report { return f.monitor.Reports() }

// Set makes the follower check the endpoints of a state, and passes a first state to the engine
// before it returns. To wait until this state is in the kernel, call Engine.Wait with the engine's
// Status.Wanted. An endpoint of a service with checks is ready, or serving, only while all its
// checks are up. A check uses the first port of the endpoint, unless it names a port. Endpoints of
// services without checks are passed on unchanged. The checks may name services that are not in the
// state.
//
// Endpoints that were checked before keep their state, even if their checks have changed. If the
// table balances connections over a new endpoint, the endpoint is up until its checks fail.
// Otherwise, it waits for its first check. So a program passes the kernel's table (Engine.Observe)
// when it starts, and nil later.
//
// If a check is invalid, the error joins a *[servicemodel.FieldError] for each wrong field, with
// the service and a field such as "checks[0].interval", and nothing changes. The cost of Set grows
// with the number of endpoints.
func (f *Follower) Set(s servicemodel.State, checks map[servicemodel.Name][]Check,
	held *servicemodel.Table) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	services, users := map[servicemodel.Name]*checked{}, map[Target][]servicemodel.Name{}
	before, used := map[Target]State{}, balanced(held)
	var faults []*servicemodel.FieldError
	for name, list := range checks {
		svc, wrong := newChecked(name, named(s, name), list)
		services[name], faults = svc, append(faults, wrong...)
		known := f.services[name].states(f.monitor.State)
		for i, ep := range svc.endpoints {
			state := known[addrOf(ep)]
			if state == Unknown && slices.ContainsFunc(ep.Ports,
				func(p servicemodel.EndpointPort) bool {
					return used[place{name, netip.AddrPortFrom(ep.Addr, p.Port)}]
				}) {
				state = Up
			}

			for _, t := range svc.targets[i] {
				if before[t] != Up { // up if any service says so
					before[t] = state
				}
				if !slices.Contains(users[t], name) {
					users[t] = append(users[t], name)
				}
			}
		}
	}

	if len(faults) > 0 {
		return joined(faults)
	}
	if err := f.monitor.Set(before); err != nil {
		return err
	}

	f.services, f.users = services, users
	for name, svc := range services {
		s = s.WithEndpoints(name, svc.marked(f.monitor.State))
	}
	f.state = s
	f.set(s)
	return nil
}

// heard sets the next state after a change. Its time does not grow with the number of services.
func (f *Follower) heard(r Report) {
	f.mu.Lock()
	users := f.users[r.Target]
	for _, name := range users {
		f.state = f.state.WithEndpoints(name, f.services[name].marked(f.monitor.State))
	}
	if len(users) > 0 { // otherwise the target has been removed
		f.set(f.state)
	}
	f.mu.Unlock()
	f.changed(r)
}

// named returns the endpoints of a service, with the ports that packets are sent to.
func named(s servicemodel.State, name servicemodel.Name) []servicemodel.Endpoint {
	svc, _ := s.Peek(name)
	eps := s.Endpoints(name)
	for i := range eps {
		for j := range eps[i].Ports {
			p := &eps[i].Ports[j]
			p.Port = svc.TargetPort(*p)
		}
	}

	return eps
}

// checked is a service with checks.
type checked struct {
	endpoints []servicemodel.Endpoint // as the program wants them
	targets   [][]Target              // of each endpoint
}

// newChecked returns the service with its targets, and the faults of the checks.
func newChecked(name servicemodel.Name, eps []servicemodel.Endpoint, list []Check) (*checked,
	[]*servicemodel.FieldError) {
	c := &checked{eps, make([][]Target, len(eps))}
	var faults []*servicemodel.FieldError
	for i, check := range list {
		seen, told := map[Check]bool{}, map[string]bool{}
		wrong := check.faults()
		seen[check.Target(netip.AddrPort{}).check] = true
		for j, ep := range eps {
			t := check.Target(addrOf(ep))
			c.targets[j] = append(c.targets[j], t)
			wrong = append(wrong, t.faults(seen)...)
		}

		for _, fault := range wrong {
			if told[fault.Error()] {
				continue // of another endpoint
			}
			told[fault.Error()] = true
			fault.Service, fault.Object = name, "service "+name.String()
			fault.Field = fmt.Sprintf("checks[%d].%s", i, fault.Field)
			faults = append(faults, fault)
		}
	}

	return c, faults
}

// addrOf returns the address and port at which an endpoint is checked.
func addrOf(ep servicemodel.Endpoint) netip.AddrPort {
	if len(ep.Ports) == 0 {
		return netip.AddrPortFrom(ep.Addr, 0)
	}
	return netip.AddrPortFrom(ep.Addr, ep.Ports[0].Port)
}

// states returns the states of the endpoints. It returns no states for a nil service.
func (c *checked) states(of func(Target) State) map[netip.AddrPort]State {
	out := map[netip.AddrPort]State{}
	if c != nil {
		for i, ep := range c.endpoints {
			out[addrOf(ep)] = All(c.targets[i], of)
		}
	}

	return out
}

// marked returns the endpoints, with those that are not up marked so that they take no connections.
// A quiesced endpoint takes no connections anyway, and does not change until a check has failed.
func (c *checked) marked(of func(Target) State) []servicemodel.Endpoint {
	out := slices.Clone(c.endpoints)
	for i := range out {
		is := &out[i].Condition
		state := All(c.targets[i], of)
		if state != Up && (state != Unknown || *is != servicemodel.Quiesced) {
			*is = is.Unready()
		}
	}

	return out
}

// All returns [Up] if all targets are up, [Down] if any is down, and otherwise [Unknown]. state is
// usually [Monitor.State].
func All(targets []Target, state func(Target) State) State {
	all := Up
	for _, t := range targets {
		switch state(t) {
		case Down:
			return Down
		case Unknown:
			all = Unknown
		case Up:
		}
	}

	return all
}

// place is an endpoint of a service.
type place struct {
	service  servicemodel.Name
	endpoint netip.AddrPort
}

// balanced returns the endpoints over which a table balances connections.
func balanced(t *servicemodel.Table) map[place]bool {
	out := map[place]bool{}
	for p := range t.Pools() {
		for _, slot := range p.Slots {
			out[place{p.ID.Service.Name, slot.Endpoint}] = true
		}
	}

	return out
}
