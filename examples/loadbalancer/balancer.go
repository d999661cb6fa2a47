package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/checks"
	"github.com/kernlb/kernlb/dataplane/node"
	"github.com/kernlb/kernlb/dataplane/silence"
	"github.com/kernlb/kernlb/examples/loadbalancer/config"
	"github.com/kernlb/kernlb/ipvs"
	"github.com/kernlb/kernlb/servicemodel"
)

// balancer makes states from a file and the verdicts of checks, and gives them to an engine.
type balancer struct {
	engine  *dataplane.Engine
	monitor *checks.Monitor
	node    *node.Checker
	log     *slog.Logger
	give    func(servicemodel.State) // takes states on their way to the engine
	silent  func() []silence.Change  // the backends that are out because they do not answer clients

	mu      sync.Mutex
	file    *config.File
	users   map[checks.Target][]*config.Service
	state   servicemodel.State
	sorry   map[string]bool // services whose sorry servers stand in
	reloads map[bool]int    // by whether the file was accepted
	broken  []string        // what is wrong with the file since it was last read

	deviceErr string // the last logged error of devices
}

// newBalancer returns a balancer without services. Its monitor must be run.
func newBalancer(e *dataplane.Engine, log *slog.Logger) (b *balancer, err error) {
	b = &balancer{engine: e, node: newChecker(e), log: log, file: &config.File{},
		sorry: map[string]bool{}, reloads: map[bool]int{},
		give:   func(s servicemodel.State) { e.Set(s) },
		silent: func() []silence.Change { return nil }}
	b.monitor, err = checks.New(&checks.Config{Changed: b.heard})
	return b, err
}

// start loads the first file. Backends that the kernel already balances over count as up.
func (b *balancer) start(ctx context.Context, f *config.File) error {
	held, err := b.engine.Observe(ctx)
	if err != nil {
		return err
	}
	before := map[backendKey]checks.State{}
	for f := range held.Table.Frontends() {
		internal, external := held.Table.PoolsOf(f)
		for _, p := range []*servicemodel.Pool{internal, external} {
			if p == nil {
				continue
			}
			for _, slot := range p.Slots {
				at := slot.Endpoint
				if at.Port() == 0 { // packets keep their ports: the file has the first one
					at = netip.AddrPortFrom(at.Addr(), f.Key.Port)
				}
				before[backendKey{f.Service.Name.Name, at}] = checks.Up
			}
		}
	}

	return b.take(ctx, f, before)
}

// reload reads the file again. If the file has an error, the previous one stays in force.
func (b *balancer) reload(ctx context.Context, name string) {
	f, err := config.Load(name)
	if err == nil {
		err = b.take(ctx, f, b.backendStates())
	}
	var broken []string
	if err != nil {
		broken = strings.Split(err.Error(), "\n")
	}
	b.mu.Lock()
	b.reloads[err == nil]++
	b.broken = broken
	b.mu.Unlock()
	if err == nil {
		b.log.Info("the file was read again", "file", name, "services", len(f.Services))
	}
	for _, line := range broken {
		b.log.Error("the file is broken, what was before goes on", "error", line)
	}
}

// problems returns what is wrong with the file, if it was refused when it was last read.
func (b *balancer) problems() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.broken
}

// take replaces the previous file, unless the kernel cannot hold the new file's services. before
// has the known states of backends, for new checks.
func (b *balancer) take(ctx context.Context, f *config.File,
	before map[backendKey]checks.State) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	targets, users := map[checks.Target]checks.State{}, map[checks.Target][]*config.Service{}
	for i := range f.Services {
		s := &f.Services[i]
		for j := range s.Backends {
			e := &s.Backends[j]
			for _, t := range s.Targets(e) {
				if l := users[t]; len(l) == 0 || l[len(l)-1] != s {
					users[t] = append(users[t], s)
				}
				if targets[t] != checks.Up { // it is up if it is up for one service
					targets[t] = before[backendKey{s.Name, e.Address}]
				}
			}
		}
	}

	verdict := func(t checks.Target) checks.State {
		if _, watched := b.users[t]; watched {
			return b.monitor.State(t)
		}
		return targets[t]
	}

	state, err := f.State(func(s *config.Service, e *config.Backend) bool {
		return usable(s, e, verdict)
	})
	if err != nil {
		return err
	}
	if err := b.possible(ctx, f, state); err != nil {
		return err
	}
	if err := errors.Join(b.monitor.Set(targets),
		b.monitor.SetConcurrency(f.Concurrency)); err != nil {
		return err
	}

	b.file, b.users = f, users
	b.apply(state)
	stood := b.sorry
	b.sorry = map[string]bool{}
	for i := range f.Services {
		s := &f.Services[i]
		b.sorry[s.Name] = stood[s.Name]
		b.tellSorry(s, verdict)
	}

	return nil
}

// possible returns the reasons why the kernel cannot hold a state of the file, or a state that can
// result from the checks, with the lines of the file.
func (b *balancer) possible(ctx context.Context, f *config.File, s servicemodel.State) error {
	if err := haveDevices(f); err != nil {
		return err
	}
	if len(b.file.Services) > 0 && f.Timeouts != b.file.Timeouts {
		return f.At("timeouts", errors.New("cannot change while the program runs; start it "+
			"again: no connection is lost"))
	}

	name := b.engine.Status().Backend
	return refusals(f, name, []servicemodel.State{s}, func(s servicemodel.State) error {
		var errs []error
		if check := mechanismChecks[name]; check != nil { // a plan has the weights of slow starts
			errs = append(errs, inEmpty(check)(s))
		}
		preview, err := b.engine.Plan(ctx, s)
		if err != nil {
			return err
		}
		for _, r := range preview.Refused {
			errs = append(errs, r.Err)
		}
		return errors.Join(errs...)
	})
}

// refusals returns the reasons why a kernel mechanism cannot hold states of a file, with the lines
// of the file. It tries the given states and all states that can result from the checks.
func refusals(f *config.File, mechanism string, states []servicemodel.State,
	try func(servicemodel.State) error) error {
	var errs []error
	if f.Timeouts != (config.Timeouts{}) && mechanism != ipvs.Name {
		errs = append(errs, f.At("timeouts", fmt.Errorf("%s has none: they are those of ipvs",
			mechanism)))
	}

	extremes, err := f.Extremes()
	if err != nil {
		return err
	}
	told := map[string]bool{}
	for _, s := range append(extremes, states...) {
		for _, p := range dataplane.Problems(try(s)) {
			if p.Service != (servicemodel.Name{}) {
				p.Err = f.InService(p.Service.Name, p.Field, p.Err)
			}
			if text := p.Err.Error(); !told[text] {
				told[text] = true
				errs = append(errs, p.Err)
			}
		}
	}

	return errors.Join(errs...)
}

// haveDevices returns an error for each service whose device does not exist.
func haveDevices(f *config.File) error {
	var errs []error
	for _, s := range f.Services {
		if s.Device == "" {
			continue
		}
		if err := haveDevice(s.Device); err != nil {
			errs = append(errs, f.InService(s.Name, "device", err))
		}
	}

	return errors.Join(errs...)
}

// backendState returns the verdict about a backend. It is up if all its checks pass.
func backendState(s *config.Service, e *config.Backend,
	verdict func(checks.Target) checks.State) checks.State {
	return checks.All(s.Targets(e), verdict)
}

// usable reports whether a backend counts as ready. A drained backend does until a check fails: it
// gets no new connections, and the kernel cannot tell a new program whether it was up.
func usable(s *config.Service, e *config.Backend, verdict func(checks.Target) checks.State) bool {
	state := backendState(s, e, verdict)
	return state == checks.Up || state == checks.Unknown && e.Drained()
}

// tellSorry logs when sorry servers of a service begin or cease to stand in.
func (b *balancer) tellSorry(s *config.Service, verdict func(checks.Target) checks.State) {
	used := b.sorryInUse(s, verdict)
	switch stands := len(used) > 0; {
	case stands == b.sorry[s.Name]:
	case stands:
		b.log.Warn("no backend is up: sorry servers stand in", "service", s.Name, "servers", used)
	default:
		b.log.Info("backends are up again: sorry servers are not used", "service", s.Name)
	}

	b.sorry[s.Name] = len(used) > 0
}

// sorryInUse returns the sorry servers of a service that stand in.
func (b *balancer) sorryInUse(s *config.Service,
	verdict func(checks.Target) checks.State) []netip.AddrPort {
	return s.SorryInUse(func(e *config.Backend) bool { return usable(s, e, verdict) })
}

// apply gives a state to the engine, without the backends that are silent.
func (b *balancer) apply(s servicemodel.State) {
	b.state = s
	b.give(s)
}

// silentBackends returns the backends that are out because they do not answer clients.
func (b *balancer) silentBackends() map[backendKey]silence.Change {
	out := map[backendKey]silence.Change{}
	for _, c := range b.silent() {
		if !c.Out {
			continue // on trial
		}
		out[backendKey{c.Service.Name.Name, c.Endpoint}] = c
	}
	return out
}

// heard handles a changed verdict. It updates only the services that use the target.
func (b *balancer) heard(r checks.Report) {
	b.mu.Lock()
	defer b.mu.Unlock()
	users := b.users[r.Target]
	if len(users) == 0 {
		return // the target was removed meanwhile
	}
	state, names := b.state, []string(nil)
	for _, s := range users {
		names = append(names, s.Name)
	}
	attrs, level := []any{"target", r.Target, "state", r.State, "services", names}, slog.LevelInfo
	if r.Err != nil {
		attrs = append(attrs, "error", r.Err)
	}
	if r.State == checks.Down {
		level = slog.LevelWarn
	}
	b.log.Log(context.Background(), level, "check", attrs...)
	for _, s := range users {
		state = state.WithEndpoints(s.ModelName(), s.Endpoints(func(e *config.Backend) bool {
			return usable(s, e, b.monitor.State)
		}))
	}

	b.apply(state)
	for _, s := range users {
		b.tellSorry(s, b.monitor.State)
	}
}

// backendKey is a backend of a service.
type backendKey struct {
	service string
	backend netip.AddrPort
}

// backendStates returns the verdicts about all backends.
func (b *balancer) backendStates() map[backendKey]checks.State {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := map[backendKey]checks.State{}
	for i := range b.file.Services {
		s := &b.file.Services[i]
		for j := range s.Backends {
			e := &s.Backends[j]
			out[backendKey{s.Name, e.Address}] = backendState(s, e, b.monitor.State)
		}
	}

	return out
}

// bindAddresses gives devices their addresses, once the kernel balances the packets to these
// addresses.
func (b *balancer) bindAddresses(ctx context.Context) {
	b.mu.Lock()
	want, set := map[netip.Addr]string{}, b.engine.Status().Wanted
	for i := range b.file.Services {
		if s := &b.file.Services[i]; s.Device != "" {
			for _, a := range s.Addresses {
				want[a] = s.Device
			}
		}
	}

	b.mu.Unlock()
	wait, cancel := context.WithTimeout(ctx, deviceInterval)
	defer cancel()
	if b.engine.Wait(wait, set) != nil {
		return // the kernel does not hold the state yet
	}
	text := ""
	if err := syncDevices(want, b.log); err != nil {
		text = err.Error()
	}
	if text != b.deviceErr && text != "" {
		b.log.Error("addresses on devices; trying again", "error", text)
	}
	b.deviceErr = text
}
