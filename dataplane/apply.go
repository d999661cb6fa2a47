package dataplane

import (
	"context"
	"errors"
	"slices"

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
		Conflicts: p.conflicts(), Observed: p.observed, Accepted: p.state,
		begun: e.resolved != nil,
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
	todo := !c.Empty() || len(c.Health) > 0 || len(e.drift) > 0
	if todo {
		if err := e.approve(ctx, r, c); err != nil {
			return err
		}
	}
	e.phase.enter(PhaseCommit)
	if todo {
		e.logPlan(ctx, c)
		stats, err := e.backend.Commit(ctx, c)
		if err != nil {
			e.failedCommit(err)
			return err
		}
		r.Stats = r.Stats.Plus(stats)
	}
	r.Drift = append(r.Drift, e.drift...)
	e.resolved, e.kernel, e.drift = c.New, c.New, nil
	e.changed(r.Accepted, c)
	if e.cfg.KeepRefused {
		r.Accepted = nocopy.Of(r.Accepted).Tried(e.served, c.New)
		e.served = r.Accepted
	}
	return nil
}

// failedCommit records that the kernel's contents are unknown after a failed commit. Unless it
// failed because of another writer, the kernel may hold a part of the commit.
func (h *held) failedCommit(err error) {
	if h.kernel = nil; !errors.Is(err, ErrConflict) {
		h.resolved = nil
	}
}

// proposal is the accepted part of a state, with the changes in the kernel that lead to it.
type proposal struct {
	draft
	changes  *servicemodel.ChangeSet
	observed bool // the kernel was read
}

func (p *proposal) conflicts() []servicemodel.Conflict {
	return slices.Collect(p.changes.New.Conflicts())
}

// compare resolves a state and compares it with what the kernel holds. With hint set, a reading of
// the kernel may be confined to the wanted objects.
func (e *Engine) compare(ctx context.Context, s servicemodel.State, hint bool) (*proposal, error) {
	e.phase.enter(PhaseResolve)
	s, err := e.completed(ctx, s)
	if err != nil {
		return nil, err
	}
	p := &proposal{draft: newDraft(s, &e.cfg)}
	p.before = e.served
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
	t = e.arranged(t)
	p.changes = e.difference(t)
	accepted, err := e.accepted(p, t)
	if err != nil {
		return nil, err
	}
	e.lacks = p.lacks()
	if accepted != t {
		p.changes = e.difference(e.arranged(accepted))
	}
	return p, nil
}

// difference returns the changes that lead to t. If only pools are missing for which the kernel has
// no place, it returns no changes. Otherwise it includes these pools: a stored change set must
// begin from what another process can read.
func (e *Engine) difference(t *servicemodel.Table) *servicemodel.ChangeSet {
	c := servicemodel.Diff(e.kernel, t)
	if k := nocopy.Of(t).AssumedIn(e.kernel); k != e.kernel {
		if assumed := servicemodel.Diff(k, t); assumed.Empty() {
			return assumed
		}
	}
	return c
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

// arranged returns t with endpoints in the slots that they have in the kernel. They differ only if
// the kernel was read since the last apply.
func (e *Engine) arranged(t *servicemodel.Table) *servicemodel.Table {
	if e.kernel == e.resolved {
		return t
	}
	return t.Arrange(e.kernel)
}
