package dataplane

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/internal/logkey"
	"github.com/kernlb/kernlb/internal/wait"
	"github.com/kernlb/kernlb/servicemodel"
)

// Apply makes the kernel match the state exactly, and returns when it does. If nothing differs,
// Apply writes nothing. An error leaves the kernel's contents unchanged, unless the backend
// documents otherwise. If only the removal of obsolete objects failed or was not approved, the new
// state is in the kernel. The next Apply starts from the kernel's true contents.
//
// A service is refused if it is invalid, if the backend cannot express it, or if it collides with a
// foreign object in the kernel. By default a refused service is left out as a whole, with all its
// ports and addresses, and [Result.Refused] says why. Everything else is applied. So the kernel's
// contents depend only on the state, and are the same after a restart. With [Config.KeepRefused], a
// refused service is served by its last accepted definition instead, so the contents also depend on
// earlier states. Each apply starts again from the whole state, so a refused service is programmed
// as soon as the reason is gone.
//
// A problem of the node refuses the whole state, and so does a problem of any service if
// [Config.Strict] is set. In that case, the kernel is not touched, and the error joins a
// *servicemodel.FieldError, *[backends.UnsupportedError] or *[backends.CollisionError] for each
// problem.
//
// If the context ends before Apply's turn, Apply returns the context's error and changes neither
// the kernel nor the desired state. All other errors are *[PhaseError] values. A failure of later
// work is not an error of Apply, because the kernel already has the state: see [Result.Unsettled].
//
// Apply supersedes earlier requests like [Engine.Set], but does the work itself. While [Engine.Run]
// is running, the state replaces Run's state when Apply's turn comes, and Run retries if Apply
// fails.
func (e *Engine) Apply(ctx context.Context, s servicemodel.State) (*Result, error) {
	ctx, err := e.begin(ctx, "apply", PhaseLock)
	if err != nil {
		return nil, err
	}
	defer e.end()
	return e.applyRevision(ctx, s, e.progress.ask(s, true), false, nil)
}

// applyWanted applies the newest desired state. The result is nil if no state is desired, or if the
// newest state is already applied and again is not set. Work that must wait for packets is left to
// Settle.
func (e *Engine) applyWanted(ctx context.Context, again bool, p *wait.Packets) (*Result, error) {
	if _, _, todo := e.progress.todo(again); !todo {
		return nil, nil
	}
	ctx, err := e.begin(ctx, "apply", PhaseLock)
	if err != nil {
		return nil, err
	}
	defer e.end()
	s, r, todo := e.progress.todo(again) // another call may have had the turn before
	if !todo {
		return nil, nil
	}
	return e.applyRevision(ctx, s, r, false, p)
}

// applyRevision applies the state that was requested as revision rev, and reports the outcome. step
// says that the state was applied before.
func (e *Engine) applyRevision(ctx context.Context, s servicemodel.State, rev Revision, step bool,
	p *wait.Packets) (*Result, error) {
	r, err := e.applyState(ctx, s, rev)
	if err != nil {
		err = e.failed(ctx, Failed{Doing: "apply", Revision: rev, Err: err})
		e.update(func(s *Status) {
			s.Totals.Failures++
			e.progress.tried, e.progress.err = rev, err
		})

		return nil, err
	}

	r.Step = step || onlyShares(r.Changes)
	e.enter(PhaseSettle)
	r.Settle, r.Unsettled = e.settle(p.In(ctx))
	e.succeeded(ctx, r)
	return r, nil
}

// onlyShares reports whether c changes only shares that are fed back.
func onlyShares(c *servicemodel.ChangeSet) bool {
	if c.Rules != nil || len(c.Frontends)+len(c.ClusterIPs)+len(c.Hairpins)+len(c.Health) > 0 {
		return false
	}
	for _, p := range c.Pools {
		if p.Old == nil || p.New.UnitCounts() == nil || !slices.Equal(p.Old.Slots, p.New.Slots) {
			return false
		}
	}

	return len(c.Pools) > 0
}

// applyState makes the kernel match the state of revision rev, while other writers of the instance
// wait. A reading with a hint may leave obsolete objects unread; a second step removes them. After
// an error, the result is meaningless.
func (e *Engine) applyState(ctx context.Context, s servicemodel.State, rev Revision) (r *Result,
	err error) {
	unlock, err := lock(ctx, e.backend) // for both steps
	if err != nil {
		return nil, err
	}
	defer unlock()
	err = e.retry(ctx, "apply", nil, func() error {
		if r, err = e.compare(ctx, s, true); err != nil {
			return err
		}
		r.State, r.Revision = s, rev
		return e.commit(ctx, r, r.Changes)
	})
	if err == nil && e.known.partial {
		err = e.retry(ctx, "apply, remove what nobody wants", nil, func() error {
			return e.applyRest(ctx, r)
		})
		if err != nil && !errors.Is(err, ErrNotApproved) {
			e.known.applied = nil
		}
	}

	return r, err
}

// tries is the maximum number of tries after conflicts with other programs. The waits in between
// add up to 1.2 s.
const tries = 16

// retry repeats f as long as it fails with ErrConflict, up to tries times, and emits each conflict.
// Only retry repeats reading and committing: backends return conflicts to the engine. While f runs,
// other writers of b's instance wait; if b is nil, they do not.
func (e *Engine) retry(ctx context.Context, doing string, b backends.Backend,
	f func() error) error {
	unlock, err := lock(ctx, b)
	if err != nil {
		return err
	}
	defer unlock()
	for try := range tries {
		if try > 0 {
			if err := wait.For(ctx, time.Duration(try*try)*time.Millisecond); err != nil {
				return err
			}
		}

		if err = f(); !errors.Is(err, kernelerr.ErrConflict) {
			return err
		}
		e.observers.emit(ctx, WriteConflict{Doing: doing, Try: try + 1, Err: err})
	}

	return fmt.Errorf("%s: tried %d times: %w", doing, tries, err)
}

// lock keeps other writers of b's instance waiting until unlock, if b is a [backends.Locker].
func lock(ctx context.Context, b backends.Backend) (unlock func(), err error) {
	if l, ok := as[backends.Locker](b); ok {
		return l.Lock(ctx)
	}
	return func() {}, nil
}

// compare resolves a state, compares it with the kernel's contents, and leaves out the services
// that the backend refuses. The changes of the result give endpoints with a slow start their full
// weights or, if now is set, their current weights. If now is set, a reading of the kernel may be
// limited to the desired objects.
//
// The backend checks full weights, so it refuses a service at once and not in a later step.
func (e *Engine) compare(ctx context.Context, s servicemodel.State, now bool) (*Result, error) {
	var d *reducedState
	var observed bool
	for {
		var err error
		if d, err = e.resolve(ctx, s); err != nil {
			return nil, err
		}
		e.enter(PhaseObserve)
		read, err := e.ensureKnown(ctx, d.table, now)
		if err != nil {
			return nil, err
		}
		observed = observed || read
		if !read || e.known.lacks == nil {
			break
		}
		e.known.lacks = nil // the kernel may have that family by now
	}

	e.enter(PhaseCheck)
	changes := e.known.changes(d.table)
	if err := e.backend.Check(changes); err != nil {
		d.table = changes.New
		if err := e.withoutRefused(d, err); err != nil {
			return nil, err
		}
		if e.known.partial { // the hint was a different table: objects may be unread
			if err := e.observe(ctx, e.known.atPresent(d.table)); err != nil {
				return nil, err
			}
			observed = true
		}

		changes = e.known.changes(d.table)
	}

	if present := e.known.atPresent(d.table); now && present != d.table {
		changes = e.known.changes(present)
	}
	e.known.lacks = d.lacks
	r := &Result{Backend: e.backend.Name(), Changes: changes, Counts: changes.Counts(),
		Refused: d.refused, Conflicts: slices.Collect(changes.New.Conflicts()), Observed: observed,
		Warnings: changes.New.Warnings(), Accepted: d.state, partly: d.partly}
	e.countRepairs(r)
	return r, nil
}

// resolve completes the node of a state and resolves the state into a table, without invalid
// services and without a family that the kernel is known to lack.
func (e *Engine) resolve(ctx context.Context, s servicemodel.State) (*reducedState, error) {
	e.enter(PhaseResolve)
	if e.cfg.Node != nil {
		n, err := e.cfg.Node.Complete(ctx, s.Node())
		if err != nil {
			return nil, err
		}
		s = s.WithNode(n)
	}

	d := &reducedState{state: s, cfg: &e.cfg, accepted: e.known.accepted}
	if e.known.lacks != nil {
		d.leaveOutFamily(*e.known.lacks)
	}
	return d, d.resolve(e.known.applied)
}

// countRepairs separates new changes of the desired state from repairs of what other programs
// changed since the last apply. On the first apply, and after a failed commit, the engine cannot
// tell the two apart: everything counts as a new change.
func (e *Engine) countRepairs(r *Result) {
	r.begun = e.known.applied != nil
	if !r.begun || !e.known.disturbed() {
		return
	}
	damage := e.known.repairs()
	r.Repaired, r.damaged = damage.Counts(), !damage.Empty()
	r.Counts = e.known.requested(r.Changes.New).Counts()
}

// commit writes the changes c of the result r, repairs the drift of the last observation, and
// records what is then in the kernel. After an error of the backend, the kernel's contents are
// unknown. Unless the commit failed because of another writer, some of its changes may be in the
// kernel.
func (e *Engine) commit(ctx context.Context, r *Result, c *servicemodel.ChangeSet) error {
	if !c.Empty() || len(c.Health) > 0 || len(e.known.drift) > 0 {
		if err := e.approve(ctx, r, c); err != nil {
			return err
		}
		e.enter(PhaseCommit)
		stats, err := e.backend.Commit(ctx, c)
		if err != nil {
			e.known.failed(err)
			return err
		}

		r.Stats = stats
	}

	e.enter(PhaseCommit)
	r.Drift = append(r.Drift, e.known.drift...)
	e.known.committed(c.New)
	if r.stored {
		return nil
	}
	if f := e.cfg.Flows; f != nil {
		// The flows must be notified of every change of the kernel. After a failed commit, or a
		// change by another program, this commit does not start from the table of the last
		// notification. The flows are then notified of both differences.
		if last := e.reported.table; last != nil && last != c.Old {
			f.Changed(r.Accepted, servicemodel.Diff(last, c.New))
		}
		f.Changed(r.Accepted, c)
		e.reported.table = c.New
	}

	if e.cfg.KeepRefused {
		before := e.known.accepted
		r.Accepted = r.Accepted.Tried(before, c.New)
		for _, n := range r.partly { // until the service is accepted again
			r.Accepted = r.Accepted.WithEndpoints(n, before.Endpoints(n))
		}
		e.known.accepted = r.Accepted
	}

	return nil
}

// approve calls [Config.Approve], and logs the plan at debug level.
func (e *Engine) approve(ctx context.Context, r *Result, c *servicemodel.ChangeSet) error {
	log, name := e.cfg.Logger, e.backend.Name()
	debug := log != nil && log.Enabled(ctx, slog.LevelDebug)
	if e.cfg.Approve == nil && !debug {
		return nil
	}
	p, err := e.preview(r, c)
	if e.cfg.Approve != nil {
		if err != nil {
			return err
		}
		if err := e.cfg.Approve(ctx, p); err != nil {
			return fmt.Errorf("%w: %w", ErrNotApproved, err)
		}
	}

	if debug && err != nil {
		log.DebugContext(ctx, "no plan", logkey.Backend, name, logkey.Error, err)
	} else if debug {
		log.DebugContext(ctx, "committing", logkey.Backend, name, logkey.Plan, p.Plan.String())
	}

	return nil
}

// applyRest reads and removes the objects that an observation with a hint did not read. The state
// must already be in the kernel.
func (e *Engine) applyRest(ctx context.Context, r *Result) error {
	e.enter(PhaseObserve)
	if err := e.observe(ctx, nil); err != nil {
		return err
	}
	e.enter(PhaseCheck)
	c := e.known.repairs()
	first := r.Stats
	r.Stats = backends.Stats{}
	err := e.commit(ctx, r, c)
	r.Stats = first.Plus(r.Stats)
	if err != nil {
		return err
	}
	r.Rest = c
	if r.begun {
		r.Repaired = sum(r.Repaired, c.Counts())
	} else {
		r.Counts = sum(r.Counts, c.Counts())
	}

	return nil
}
