package dataplane

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/servicemodel"
)

// PartsConfig tunes [Parts]. A nil *PartsConfig is the zero PartsConfig.
type PartsConfig struct {
	// Logger gets a record for each change. Nil disables logging.
	Logger *slog.Logger
	// Flows is notified of each change, and deletes the flows that the change made stale. If nil,
	// stale flows are not deleted.
	Flows Flows
}

// Parts lets many programs share one instance. Each program declares the services of its own
// owners, and does not affect the rest. Parts keeps no record outside the kernel. So a program can
// run once per change, like a CNI plugin, and needs neither a file nor a daemon.
//
// An owner is a namespace. Its part is everything in the kernel for the services of that namespace
// ([servicemodel.Name.Namespace]). The part stays until a program replaces or removes it. Choose
// owner names that identify the program and cannot collide with names of other programs;
// "network,container,interface" suits a CNI attachment. [servicemodel.Name] says which characters
// are allowed. Namespace, service and port together are limited to 189 bytes
// ([servicemodel.PortName], with two separators).
//
// Settings for the whole node ([servicemodel.Rules]) belong to the instance. The first part sets
// them from its node. Later parts adopt them, and a node in their states must agree with the
// settings, unless the part is empty. [Parts.Configure] changes the settings, and so does an Apply
// while no other owner has a part. Removing the last part removes the whole instance from the
// kernel.
//
// An instance has either one engine or parts, because [Engine.Apply] makes an instance match
// exactly one state and so removes parts. Backends with different tables, chains or marks are
// different instances.
//
// If a version of kernlb with a different layout created the instance, Apply fails with
// [backends.ErrOtherLayout] while another owner has a part, because that owner would lose its
// services. Remove and Keep can still remove parts, and with the last part the instance, unless the
// backend cannot tell which owner a frontend belongs to. [Engine.Apply] replaces such an instance,
// and [Engine.Cleanup] removes it.
//
// The methods of Parts are safe for concurrent use. They run one after another. If a method's
// context ends while it waits, the method returns the context's error. Programs that change one
// instance take turns ([backends.Locker]). If the backend is a [backends.PartReader], the cost
// depends on the owner's part, otherwise on the whole instance.
type Parts struct {
	engine Engine // provides backend, calls and observers; knows nothing between two calls

	// Only the call that has the engine's turn may use the fields below. notified is the table of
	// the last notification of the flows, as far as this process knows. state is the state from
	// which that table was resolved.
	notified *servicemodel.Table
	state    servicemodel.State
}

// NewParts returns the parts of a backend's instance. Nothing else may use the backend at the same
// time. The caller closes the backend. Without a backend, as in the zero Parts, all methods with a
// context fail.
func NewParts(b backends.Backend, cfg *PartsConfig) *Parts {
	p := &Parts{}
	if p.engine.unusable = unusable(b); p.engine.unusable != nil {
		return p
	}
	cfg = cmp.Or(cfg, &PartsConfig{})
	p.engine.open(b, Config{Logger: cfg.Logger, Flows: cfg.Flows})
	return p
}

// Subscribe registers an observer for future calls. Each Apply, ApplyAll, Remove, Keep and
// Configure ends with [Applied], [PartRefused] or [Failed]. These events name the owners, the phase
// that failed, and the time of each phase. [Warned], [Repaired] and the PartRefused of ApplyAll
// precede Applied. Failed follows Applied if later work failed ([Result.Unsettled]). A call of
// Settle ends with [Settled] or Failed. Each time the kernel is read again, a [WriteConflict]
// precedes these events. Calling unsubscribe removes the observer, but does not stop a call in
// progress.
func (p *Parts) Subscribe(o Observer) (unsubscribe func()) { return p.engine.observers.add(o) }

// Apply makes an owner's part match the services of a state exactly. All of them must be in the
// namespace of the owner's name. It returns when they are in the kernel. If nothing differs, Apply
// writes nothing.
//
// A part with any problem is refused as a whole ([ErrRefused]), and the kernel is not touched. The
// error joins a *[servicemodel.FieldError] for each field that is invalid or contradicts the
// instance's settings, a *[servicemodel.TakenError] for each frontend that belongs to another owner
// or that two services of the part claim, and an *[backends.UnsupportedError] or
// *[backends.CollisionError] for each refusal of the backend.
//
// If the context ends before Apply's turn, Apply returns the context's error. All other errors are
// *[PhaseError] values. A failure of later work is not an error of Apply, because the kernel
// already has the part: see [Result.Unsettled]. [Result.Settle] is the time until the next work is
// due, such as deleting the flows of late packets to a new UDP port. A program that is about to end
// may ignore Unsettled and Settle.
func (p *Parts) Apply(ctx context.Context, owner string, s servicemodel.State) (*Result, error) {
	states := map[string]servicemodel.State{owner: s}
	return p.change(ctx, task{"apply the part", []string{owner}, states, func() (*Result, error) {
		return p.compareOne(ctx, owner, s)
	}})
}

// ApplyAll makes each owner's part match its state exactly, in one commit. With ApplyAll, a program
// moves addresses from one owner to another without a gap, or restarts with many owners.
//
// The outcome for each owner is the same as with Apply, except that a refused owner is not an
// error: it keeps its part, [Result.Refused] names it with the reason ([Refusal.Owner]), and the
// parts of all other owners are applied. Observers get a [PartRefused] for each refused owner. If
// two owners claim an address, the owner whose name sorts first gets it, and the other is refused.
// But an owner that already has the address keeps it if it is not in states or is refused. An owner
// that wants the address of a refused owner is refused, too. The settings of the instance change
// only if no other owner has a part. They then come from the first owner with services.
//
// ApplyAll fails for the same reasons as Apply, except refusals. The error matches [ErrRefused]
// only if the backend refuses the instance itself.
func (p *Parts) ApplyAll(ctx context.Context, states map[string]servicemodel.State) (*Result,
	error) {
	t := task{doing: "apply the parts", owners: slices.Sorted(maps.Keys(states)), states: states}
	t.compare = func() (*Result, error) { return p.compare(ctx, states) }
	return p.change(ctx, t)
}

// Plan returns the changes that Apply would make, without making them. It fails as Apply would. The
// changes are to be read: [Engine.ApplyChanges] needs changes of a whole instance.
func (p *Parts) Plan(ctx context.Context, owner string, s servicemodel.State) (*Preview, error) {
	t := task{doing: "plan the part", owners: []string{owner}}
	return read(ctx, p, t, func() (*Preview, error) {
		r, err := p.compareOne(ctx, owner, s)
		if err != nil {
			return nil, err
		}
		p.engine.enter(PhaseCommit)
		plan, err := p.engine.backend.Plan(r.Changes)
		return &Preview{State: s, Changes: r.Changes, Drift: r.Drift, Plan: plan,
			Warnings: r.Warnings}, err
	})
}

// Remove removes the parts of owners. Removing an owner without a part is not an error. Without any
// part left, the instance is removed, like with [Engine.Cleanup].
func (p *Parts) Remove(ctx context.Context, owners ...string) (*Result, error) {
	owners = slices.Compact(slices.Sorted(slices.Values(owners))) // each once
	return p.change(ctx, task{doing: "remove the parts", owners: owners,
		compare: func() (*Result, error) { return p.without(ctx, owners) }})
}

// Keep removes the parts of all owners for which keep returns false. It is garbage collection in
// one call. keep must return true for owners of other programs, which it recognizes by their names.
// It must not call methods of p, because they wait until Keep returns.
func (p *Parts) Keep(ctx context.Context, keep func(owner string) bool) (*Result, error) {
	if keep == nil {
		return nil, errors.New("keep parts: there is no function that says which")
	}
	return p.change(ctx, task{doing: "keep parts", compare: func() (*Result, error) {
		p.engine.enter(PhaseObserve)
		owners, err := p.owners(ctx)
		if err != nil {
			return nil, err
		}
		return p.without(ctx, slices.DeleteFunc(owners, keep))
	}})
}

// Settle does the work that earlier changes left and that is due, see [Engine.Settle]. Each call
// that changes parts does this, too.
func (p *Parts) Settle(ctx context.Context) (next time.Duration, err error) {
	r, err := p.change(ctx, task{doing: doingSettleParts, compare: func() (*Result, error) {
		_, err := p.observeOwners(ctx, nil)
		return p.noChange(), err
	}})
	if err != nil {
		return 0, err
	}
	if r.Unsettled != nil {
		err = &PhaseError{PhaseSettle, task{doing: doingSettleParts}.error(r.Unsettled)}
	}
	return r.Settle, err
}

// Owners returns the owners that have a part, sorted.
func (p *Parts) Owners(ctx context.Context) ([]string, error) {
	return read(ctx, p, task{doing: "list the owners of parts"}, func() ([]string, error) {
		return p.owners(ctx)
	})
}

// read runs a task that changes nothing, and repeats it after conflicts.
func read[T any](ctx context.Context, p *Parts, t task, f func() (T, error)) (result T, err error) {
	e, none := &p.engine, result
	ctx, err = e.begin(ctx, t.String(), PhaseObserve)
	if err != nil {
		return none, err
	}
	defer e.end()
	err = e.retry(ctx, "read", nil, func() (err error) {
		result, err = f()
		return err
	})
	if err != nil {
		return none, e.fail(t.error(err))
	}
	return result, nil
}

// Get returns the part of an owner, with the settings of the instance. The table is empty if the
// owner has no part.
func (p *Parts) Get(ctx context.Context, owner string) (*servicemodel.Table, error) {
	t := task{doing: "get the part", owners: []string{owner}}
	o, err := read(ctx, p, t, func() (*backends.Observation, error) {
		return p.observeOwners(ctx, t.owners)
	})
	if err != nil {
		return nil, err
	}
	return o.Table.Part(owner), nil
}

// observeOwners reads the parts of owners in an instance with the layout of this version.
func (p *Parts) observeOwners(ctx context.Context, owners []string) (*backends.Observation, error) {
	o, err := p.observe(ctx, owners, nil)
	if err == nil && o.OtherLayout {
		err = otherLayout(o)
	}
	return o, err
}

// Configure gives the instance the settings of a node in one commit, even while owners have parts.
// A new version of a program uses it to change a setting. The same commit rewrites each part as an
// Apply of that part would. Later parts adopt the settings.
//
// Settings that exclude addresses (OnlyFamily, or LocalhostNodePorts switched off) remove the
// frontends at those addresses, and the result counts them. Settings that include the addresses
// again do not restore the frontends. The next Apply of the part restores them, or is refused if
// the backend cannot express them. A frontend that is masqueraded because of
// [servicemodel.Node.MasqueradeAll] stays masqueraded. If no owner has a part, Configure writes
// nothing, because the settings come with the first part.
func (p *Parts) Configure(ctx context.Context, n servicemodel.Node) (*Result, error) {
	return p.change(ctx, task{doing: "configure parts", compare: func() (*Result, error) {
		p.engine.enter(PhaseResolve)
		t, err := servicemodel.Resolve(nil, servicemodel.State{}.WithNode(n))
		if err != nil {
			return nil, refusedState{err}
		}
		p.engine.enter(PhaseObserve)
		owners, err := p.owners(ctx)
		if err != nil {
			return nil, err
		}
		o, err := p.observeOwners(ctx, owners)
		if err != nil {
			return nil, err
		}
		p.engine.enter(PhaseCheck)
		held, rules := o.Table.Rules(), t.Rules()
		if held.MasqueradeMark == 0 || held.Equal(rules) {
			return p.noChange(), nil
		}
		if !o.OnlyOwners { // another program has just published a part
			return nil, kernelerr.ErrConflict
		}
		next, err := o.Table.WithRules(rules)
		if err != nil {
			return nil, err
		}
		r := p.changeTo(o, next)
		if err := p.engine.backend.Check(r.Changes); err != nil {
			return nil, refusedState{err}
		}
		return r, nil
	}})
}
