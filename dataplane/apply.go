package dataplane

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/kernlb/kernlb/internal/logkey"
	"github.com/kernlb/kernlb/internal/nocopy"
	"github.com/kernlb/kernlb/servicemodel"
)

// apply makes the kernel hold the state. If the last observation is Unread, the kernel may still
// hold more than that.
func (e *Engine) apply(ctx context.Context, s servicemodel.State) (*Result, error) {
	p, err := e.compare(ctx, s, true)
	if err != nil {
		return nil, err
	}
	r := &Result{
		Backend: e.backend.Name(), State: s, Changes: p.changes, Refused: p.refused,
		Conflicts: slices.Collect(p.changes.New.Conflicts()), Observed: p.observed,
		Accepted: p.state,
		begun:    e.resolved != nil,
	}
	e.count(r)
	return r, e.commit(ctx, r, p.changes)
}

// count tells new changes of the wanted state from repairs of what others did since the last apply.
// On the first apply, and after a failed commit, nothing tells them apart: everything counts as
// ours.
func (e *Engine) count(r *Result) {
	if !r.begun || e.kernel == e.resolved {
		r.Counts = r.Changes.Counts()
		return
	}
	damage := servicemodel.Diff(e.kernel, e.resolved.Arrange(e.kernel))
	r.Repaired, r.damaged = damage.Counts(), !damage.Empty()
	r.Counts = servicemodel.Diff(e.resolved, r.Changes.New.Arrange(e.resolved)).Counts()
}

// applyRest reads and removes the objects that an observation with a hint left unread. The kernel
// must already hold the state.
func (e *Engine) applyRest(ctx context.Context, r *Result) error {
	e.phase.enter(PhaseObserve)
	if err := e.observe(ctx, nil); err != nil {
		return err
	}
	e.phase.enter(PhaseCheck)
	c := servicemodel.Diff(e.kernel, e.resolved.Arrange(e.kernel))
	if err := e.commit(ctx, r, c); err != nil {
		return err
	}
	if r.Rest = c; r.begun {
		r.Repaired = sum(r.Repaired, c.Counts())
	} else {
		r.Counts = sum(r.Counts, c.Counts())
	}
	return nil
}

// commit writes the changes, repairs the drift of the last observation, and records what the kernel
// then holds.
func (e *Engine) commit(ctx context.Context, r *Result, c *servicemodel.ChangeSet) error {
	if !c.Empty() || len(c.Health) > 0 || len(e.drift) > 0 {
		if err := e.write(ctx, r, c); err != nil {
			return err
		}
	}
	e.phase.enter(PhaseCommit)
	r.Drift = append(r.Drift, e.drift...)
	e.resolved, e.kernel, e.drift = c.New, c.New, nil
	if f := e.cfg.Flows; f != nil {
		// The flows must learn of every step of the kernel. After a commit that failed half way, or
		// a change by another program, this commit does not begin where the last notification
		// ended. The flows then get both differences.
		if e.notified != nil && e.notified != c.Old {
			f.Changed(r.Accepted, servicemodel.Diff(e.notified, c.New))
		}
		f.Changed(r.Accepted, c)
		e.notified = c.New
	}
	if e.cfg.KeepRefused {
		r.Accepted = nocopy.Of(r.Accepted).Tried(e.served, c.New)
		e.served = r.Accepted
	}
	return nil
}

// write commits the changes, after it has logged them at debug level, and [Config.Approve] has
// approved them. After an error of the commit the kernel's contents are unknown. Unless it failed
// because of another writer, the kernel may hold a part of the commit.
func (e *Engine) write(ctx context.Context, r *Result, c *servicemodel.ChangeSet) error {
	log := e.cfg.Logger
	debug := log != nil && log.Enabled(ctx, slog.LevelDebug)
	if e.cfg.Approve != nil || debug {
		plan, err := e.backend.Plan(c)
		if e.cfg.Approve != nil && err == nil {
			err = e.cfg.Approve(ctx, &Preview{Changes: c, Repaired: r.Repaired,
				Drift: slices.Clone(e.drift), Plan: plan, Refused: slices.Clone(r.Refused),
				Conflicts: slices.Clone(r.Conflicts)})
			if err != nil {
				return fmt.Errorf("%w: %w", ErrNotApproved, err)
			}
		}
		switch name := e.backend.Name(); {
		case e.cfg.Approve != nil && err != nil:
			return err
		case debug && err != nil:
			log.DebugContext(ctx, "no plan", logkey.Backend, name, logkey.Error, err)
		case debug:
			log.DebugContext(ctx, "committing", logkey.Backend, name, logkey.Plan, plan.String())
		}
	}
	e.phase.enter(PhaseCommit)
	stats, err := e.backend.Commit(ctx, c)
	if err != nil {
		if e.kernel = nil; !errors.Is(err, ErrConflict) {
			e.resolved = nil
		}
		return err
	}
	r.Stats = r.Stats.Plus(stats)
	return nil
}

// proposal is the accepted part of a state, with the changes in the kernel that lead to it.
type proposal struct {
	draft
	changes  *servicemodel.ChangeSet
	observed bool // the kernel was read
}

// compare resolves a state and compares it with what the kernel holds. With hint set, a reading of
// the kernel may be confined to the wanted objects.
func (e *Engine) compare(ctx context.Context, s servicemodel.State, hint bool) (*proposal, error) {
	e.phase.enter(PhaseResolve)
	if e.cfg.Node != nil {
		n, err := e.cfg.Node.Complete(ctx, s.Node())
		if err != nil {
			return nil, err
		}
		s = s.WithNode(n)
	}
	p := &proposal{draft: draft{state: s, cfg: &e.cfg, before: e.served}}
	known := e.lacks != nil && p.leaveOutFamily(*e.lacks)
	t, err := p.resolve(e.resolved)
	if err != nil {
		return nil, err
	}
	t = e.atPresent(t)
	var want *servicemodel.Table
	if hint {
		want = t
	}
	e.phase.enter(PhaseObserve)
	if p.observed, err = e.ensureKnown(ctx, want); err != nil {
		return nil, err
	}
	if known && p.observed { // ask again what the kernel lacks
		e.lacks = nil
		again, err := e.compare(ctx, s, hint)
		if err == nil {
			again.observed = true
		}
		return again, err
	}
	e.phase.enter(PhaseCheck)
	if p.observed {
		t = e.atPresent(t)
	}
	p.changes = e.difference(t)
	t = p.changes.New
	accepted, err := e.accepted(p, t)
	if err != nil {
		return nil, err
	}
	e.lacks = p.lacks
	if accepted != t {
		p.changes = e.difference(accepted)
	}
	return p, nil
}

// difference returns the changes that lead to t. If the kernel was read since the last apply, its
// endpoints keep the slots that they have in the kernel. If only pools are missing for which the
// kernel has no place, it then returns no changes. Otherwise it includes these pools: a stored
// change set must begin from what another process can read.
func (e *Engine) difference(t *servicemodel.Table) *servicemodel.ChangeSet {
	if e.kernel == e.resolved {
		return servicemodel.Diff(e.kernel, t)
	}
	t = t.Arrange(e.kernel)
	if k := nocopy.Of(t).AssumedIn(e.kernel); k != e.kernel {
		if assumed := servicemodel.Diff(k, t); assumed.Empty() {
			return assumed
		}
	}
	return servicemodel.Diff(e.kernel, t)
}

// accepted returns t, the table of the proposal, without the services that the backend refuses. A
// service that is left out may have taken an address from another one, so the backend must check
// the new changes again. Each round leaves out at least one service.
func (e *Engine) accepted(p *proposal, t *servicemodel.Table) (*servicemodel.Table, error) {
	for c := p.changes; ; {
		err := e.backend.Check(c)
		if err == nil {
			return t, nil
		}
		kept := p.kept()
		if err := p.leaveOut(err); err != nil {
			return nil, err
		}
		next, err := p.resolve(t)
		if err != nil {
			return nil, err
		}
		next = e.atPresent(next)
		if c = nocopy.Of(e.kernel).Changes(servicemodel.Diff(t, next)); p.kept() > kept {
			// The backend may refuse a service's previous definition for the same reason, although
			// the kernel does not change for it.
			c = servicemodel.Diff(e.kernel, next)
		}
		t = next
	}
}

// Result is the outcome of an apply. Its fields Changes and Refused print as text for people, with
// one change per line. A whole result can be written as JSON.
type Result struct {
	// Backend is the backend's name.
	Backend string `json:"backend"`
	// Revision is the number of the requested state, see [Engine.Set].
	Revision Revision `json:"revision,omitzero"`
	// Owners are the owners of changed parts, see [Parts]. It is nil in results of an engine.
	Owners []string `json:"owners,omitempty"`
	// State is the requested state, including refused services. It is empty for changes
	// ([Engine.ApplyChanges]) and parts.
	State servicemodel.State `json:"-"`
	// Counts counts what was added, changed and removed by new requests: since the last apply. At
	// the first apply, it counts the differences from the kernel.
	servicemodel.Counts
	// Repaired counts the changes that undo what others did to the services in the kernel since the
	// last apply. Objects that others removed count as Added. These changes are not in Counts,
	// because a flushed ruleset does not make new services. Damage that has no meaning as services
	// is in Drift.
	Repaired servicemodel.Counts `json:"repaired,omitzero"`
	// Changes are the changes that were applied.
	Changes *servicemodel.ChangeSet `json:"changes"`
	// Rest is the removal, in a second step, of objects that are in no wanted state. A backend that
	// reads with a hint finds such objects only after Changes were committed. Nil means no second
	// step.
	Rest *servicemodel.ChangeSet `json:"rest,omitempty"`
	// Drift describes foreign or damaged objects that were found in the kernel and repaired.
	Drift []string `json:"drift,omitempty"`
	// Refused are the services that were left out as a whole or in part, in the order of their
	// names.
	Refused []Refusal `json:"refused,omitempty"`
	// Accepted is State without its refused services, or with earlier definitions of them
	// ([Refusal.Kept]). With [Config.KeepRefused], a service without endpoints has its earlier
	// definition, too: its pools may still be refused.
	Accepted servicemodel.State `json:"-"`
	// Conflicts are the addresses and ports that several services claim, in order. A service that
	// loses one keeps its others.
	Conflicts []servicemodel.Conflict `json:"conflicts,omitempty"`
	// Observed says that the kernel was read.
	Observed bool `json:"observed"`
	// Settle is the time until [Engine.Settle] has work to do. 0 means that no work is left.
	Settle time.Duration `json:"-"`
	// Step says that the apply was a step of slow starts ([Engine.Settle]) and not a request.
	Step bool `json:"step,omitzero"`
	// Phases is how long each phase took.
	Phases Phases `json:"phases"`
	// Stats is what the commits sent to the kernel. Its Duration covers the whole apply, from its
	// turn on.
	Stats `json:"-"`

	begun bool // the state that was wanted before is known
	// damaged says that others had changed the table, even if Repaired does not count the change.
	damaged bool
}

// String returns one line for a log, such as "nftables: 2 added, 1 changed, 0 removed; 4 kernel
// messages, 628 bytes, 85µs", and the number of refused services, if any.
func (r *Result) String() string {
	s := fmt.Sprintf("%s: %v; %v", r.Backend, r.Counts, r.Stats)
	if n := len(r.Refused); n > 0 {
		s += fmt.Sprintf("; %d refused", n)
	}
	return s
}

// IsRepair reports whether the apply undid changes that others had made to the kernel.
func (r *Result) IsRepair() bool {
	return r.begun && (r.damaged || r.Repaired != servicemodel.Counts{} || len(r.Drift) > 0)
}

// Preview is what an apply would do.
type Preview struct {
	// Changes are the changes that would be made. Repaired counts those that undo what others did,
	// see [Result.Repaired]. Drift describes what else would be repaired.
	Changes  *servicemodel.ChangeSet `json:"changes"`
	Repaired servicemodel.Counts     `json:"repaired,omitzero"`
	Drift    []string                `json:"drift,omitempty"`
	// Plan is what would be sent to the kernel.
	Plan Plan `json:"-"`
	// Refused and Conflicts have the same meaning as in [Result].
	Refused   []Refusal               `json:"refused,omitempty"`
	Conflicts []servicemodel.Conflict `json:"conflicts,omitempty"`
}

func sum(a, b servicemodel.Counts) servicemodel.Counts {
	return servicemodel.Counts{Added: a.Added + b.Added, Changed: a.Changed + b.Changed,
		Removed: a.Removed + b.Removed}
}

// ApplyChanges applies a change set that [Engine.Plan] made and that was stored as JSON, perhaps on
// another machine and after a review. It applies exactly these changes or nothing. The error is
// servicemodel.ErrOtherTable if the kernel does not hold the table that the changes begin from, and
// another one if the change set was edited.
//
// The engine does not know the state that the changes were made of, so it cannot find stale flows,
// and these stay. Once the kernel has the changes, no state is wanted until the next Set or Apply,
// as after [Engine.Cleanup]. Changes that fail leave the wanted state as it was.
func (e *Engine) ApplyChanges(ctx context.Context, c *servicemodel.ChangeSet) (*Result, error) {
	if c == nil {
		return nil, errors.New("apply changes: there are none")
	}
	if err := e.take(ctx); err != nil {
		return nil, fmt.Errorf("apply changes: %w", err)
	}
	defer e.give()
	start := time.Now()
	e.phase.begin(ctx, "apply changes", PhaseLock)
	r, err := e.applyChanges(ctx, c)
	if err != nil {
		e.update(func(s *Status) { s.Totals.Failures++ })
		return nil, e.failed(ctx, "apply changes", 0, err)
	}
	e.held, e.notified = newHeld(e.backend), nil
	r.Revision = e.progress.ask(servicemodel.State{}, false)
	e.phase.enter(PhaseSettle)
	r.Phases, r.Duration = e.phase.elapsed, time.Since(start)
	e.succeeded(ctx, r)
	return r, nil
}

// applyChanges reads the kernel and commits c, while other writers of the instance wait.
func (e *Engine) applyChanges(ctx context.Context, c *servicemodel.ChangeSet) (*Result, error) {
	unlock, err := lock(ctx, e.backend)
	if err != nil {
		return nil, err
	}
	defer unlock()
	var r *Result
	err = e.observers.retry(ctx, "apply changes", func() error {
		e.phase.enter(PhaseObserve)
		if err := e.observe(ctx, nil); err != nil {
			return err
		}
		e.phase.enter(PhaseCheck)
		on, err := c.On(e.read)
		if err != nil {
			return err
		}
		if err := e.backend.Check(on); err != nil {
			return err
		}
		r = &Result{Backend: e.backend.Name(), Counts: on.Counts(), Changes: on, Observed: true,
			Drift: slices.Clone(e.drift)}
		if on.Empty() && len(on.Health) == 0 && len(e.drift) == 0 {
			return nil
		}
		return e.write(ctx, r, on)
	})
	return r, err
}

// atPresent returns the table that the kernel is to hold now, of a resolved table: endpoints with a
// slow start have a part of their weight. Without slow starts it is the table itself. It goes on
// from the table of the last apply, or from the kernel's after a start or an error.
func (e *Engine) atPresent(t *servicemodel.Table) *servicemodel.Table {
	if e.resolved != nil {
		return nocopy.Of(t).At(time.Now, e.resolved)
	}
	return nocopy.Of(t).At(time.Now, e.kernel)
}
