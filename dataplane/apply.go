package dataplane

import (
	"context"
	"errors"
	"slices"

	"github.com/kernlb/kernlb/servicemodel"
)

// apply makes the kernel hold the state. Where the last observation is Unread, the kernel may hold
// more than that afterwards.
func (e *Engine) apply(ctx context.Context, s servicemodel.State) (*Result, error) {
	p, err := e.compare(ctx, s, true)
	if err != nil {
		return nil, err
	}
	r := &Result{
		Backend: e.backend.Name(), State: s, Changes: p.changes, Refused: p.refused,
		Conflicts: p.conflicts(), Observed: p.observed, accepted: p.state,
		begun: e.resolved != nil && !e.torn,
	}
	e.count(r)
	return r, e.commit(ctx, r, p.changes)
}

// count tells what is wanted anew from what others did to the kernel since the last apply. The
// first apply takes what the kernel holds for what was wanted until then, and one after a commit
// that failed cannot tell its own from what others did.
func (e *Engine) count(r *Result) {
	if !r.begun || e.kernel == e.resolved {
		r.Counts = r.Changes.Counts()
		return
	}
	damage := servicemodel.Diff(e.kernel, e.resolved.Arrange(e.kernel))
	r.Repaired, r.damaged = damage.Counts(), !damage.Empty()
	r.Counts = servicemodel.Diff(e.resolved, r.Changes.New.Arrange(e.resolved)).Counts()
}

// applyRest reads what an observation with a hint has left unread, and removes it. The kernel holds
// the state by then.
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
		r.Repaired = r.Repaired.Plus(c.Counts())
	} else {
		r.Counts = r.Counts.Plus(c.Counts())
	}
	return nil
}

// commit writes the changes, repairs what the last observation reported as drift, and notes what
// the kernel holds then.
func (e *Engine) commit(ctx context.Context, r *Result, c *servicemodel.ChangeSet) error {
	e.phase.enter(PhaseCommit)
	if !c.Empty() || len(e.drift) > 0 {
		e.logPlan(ctx, c)
		stats, err := e.backend.Commit(ctx, c)
		if err != nil {
			e.known, e.torn = false, e.torn || !errors.Is(err, ErrConflict)
			return err
		}
		r.Stats = r.Stats.Plus(stats)
	}
	r.Drift = append(r.Drift, e.drift...)
	e.resolved, e.kernel, e.drift, e.torn = c.New, c.New, nil, false
	e.changed(r.accepted, c)
	return nil
}

// proposal is a state as far as it is accepted, and what changes in the kernel for it.
type proposal struct {
	draft
	changes  *servicemodel.ChangeSet
	observed bool // the kernel was read
}

func (p *proposal) conflicts() []servicemodel.Conflict {
	return slices.Collect(p.changes.New.Conflicts())
}

// compare resolves a state and compares it with what the kernel holds. With hint, a reading of the
// kernel may be confined to what is wanted.
func (e *Engine) compare(ctx context.Context, s servicemodel.State, hint bool) (*proposal, error) {
	e.phase.enter(PhaseResolve)
	s, err := e.completed(ctx, s)
	if err != nil {
		return nil, err
	}
	p := &proposal{draft: draft{state: s, strict: e.strict}}
	t, err := p.resolve(e.resolved)
	if err != nil {
		return nil, err
	}
	var want *servicemodel.Table
	if hint {
		want = t
	}
	e.phase.enter(PhaseObserve)
	if p.observed, err = e.ensureKnown(ctx, want); err != nil {
		return nil, err
	}
	e.phase.enter(PhaseCheck)
	t = e.arranged(t)
	p.changes = servicemodel.Diff(e.kernel, t)
	accepted, err := e.accepted(p, t)
	if err != nil {
		return nil, err
	}
	if accepted != t {
		p.changes = servicemodel.Diff(e.kernel, e.arranged(accepted))
	}
	return p, nil
}

// accepted returns t, the table of the proposal, without the services that the backend refuses. A
// service that is left out may have kept another one from an address, so the backend checks again
// what is new. Each round leaves out at least one service.
func (e *Engine) accepted(p *proposal, t *servicemodel.Table) (*servicemodel.Table, error) {
	for c := p.changes; ; {
		err := e.backend.Check(c)
		if err == nil {
			return t, nil
		}
		if err := p.leaveOut(err); err != nil {
			return nil, err
		}
		next, err := p.resolve(t)
		if err != nil {
			return nil, err
		}
		c, t = servicemodel.Diff(t, next).From(e.kernel), next
	}
}

// arranged returns t with endpoints in the slots that they have in the kernel. They are there
// already unless the kernel was read since the last apply.
func (e *Engine) arranged(t *servicemodel.Table) *servicemodel.Table {
	if e.kernel == e.resolved {
		return t
	}
	return t.Arrange(e.kernel)
}
