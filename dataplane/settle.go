package dataplane

import (
	"context"
	"errors"
	"time"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/internal/wait"
	"github.com/kernlb/kernlb/servicemodel"
)

// Flows deletes the flows that a change of services makes stale. Conntrack translates all packets
// of a flow like the first packet, so flows to an endpoint outlive the endpoint. Package
// dataplane/flows has an implementation that works with every backend.
//
// An [Engine] calls the methods of Flows one at a time, and never during a commit.
type Flows interface {
	// Changed records that the table in the kernel changed from c.Old to c.New, the table of the
	// state s. The engine calls it after each apply, even if the kernel did not change. If the
	// engine does not know how far an earlier commit got, it calls Changed twice with the same New.
	// Changed does no work that can fail. For such work, the engine calls Settle directly
	// afterwards.
	Changed(s servicemodel.State, c *servicemodel.ChangeSet)
	backends.Settler
}

// Settle does the work of earlier applies that is due: it removes drained endpoints, takes the next
// step of slow starts (servicemodel.Service.SlowStart), and retries failed work. It returns the
// time until the next call is needed; 0 means that no work is left. [Engine.Run] calls it when work
// is due. Programs without Run call it themselves, or leave the work to the next Apply. Some work
// waits 10 to 25 ms for packets that the kernel is still processing. Settle and Apply include that
// wait; Run commits new states during the wait.
func (e *Engine) Settle(ctx context.Context) (next time.Duration, err error) {
	ctx, err = e.begin(ctx, "settle", PhaseSettle)
	if err != nil {
		return 0, err
	}
	defer e.end()
	if s, rev, due := e.stepDue(); due {
		return e.step(ctx, s, rev)
	}
	if next, err = e.settle(ctx); err != nil {
		return next, e.failed(ctx, Failed{Doing: "settle", Err: err})
	}
	e.enter(PhaseSettle)
	if p := wait.PacketsOf(ctx); p != nil && p.More {
		return next, nil // a piece of the work
	}
	e.observers.emit(ctx, Settled{Next: next, Duration: e.elapsed[PhaseSettle]})
	return next, nil
}

// settle does the work that is due, and returns the time until more work is due. If the kernel's
// contents are unknown, for example after a conflict, it reads the kernel first. Run's next check
// repairs the damage that this reading finds.
func (e *Engine) settle(ctx context.Context) (next time.Duration, err error) {
	err = e.leaveFormer(ctx)
	if s, ok := as[backends.Settler](e.backend); ok {
		errSettler := e.retry(ctx, "settle", e.backend, func() (err error) {
			if e.known.inKernel == nil {
				if err := e.observe(ctx, nil); err != nil {
					return err
				}
			}

			if next, err = s.Settle(e.observers.noticing(ctx, e.known.inKernel)); err != nil {
				e.known.inKernel = nil
			}
			return err
		})
		err = errors.Join(err, errSettler)
	}

	if f := e.cfg.Flows; f != nil {
		n, errFlows := f.Settle(e.observers.noticing(ctx, e.known.inKernel))
		next, err = earlier(next, n), errors.Join(err, errFlows)
	}

	if at := e.known.applied.NextStep(); !at.IsZero() {
		n := time.Until(at)
		if n <= 0 {
			n = lateStep
		}
		next = earlier(next, n)
	}

	e.update(func(s *Status) {
		e.progress.settles++
		if err != nil {
			s.overdue(err)
			return
		}

		s.Unsettled, s.Settle = nil, time.Time{}
		if next > 0 {
			s.Settle = time.Now().Add(next)
		}
	})

	return next, err
}

// overdue records that later work failed. The work counts as due since its first failure, even
// after many retries.
func (s *Status) overdue(err error) {
	if now := time.Now(); s.Unsettled == nil || s.Settle.IsZero() || s.Settle.After(now) {
		s.Settle = now
	}
	s.Unsettled = err
}

// earlier returns the shorter of two waits. 0 means that nothing is due.
func earlier(a, b time.Duration) time.Duration {
	if a == 0 || b > 0 && b < a {
		return b
	}
	return a
}

// lateStep is the time until a step is tried again while a newer state waits to be applied. The
// apply of that state also takes the step.
const lateStep = time.Second

// stepDue returns the state whose next step is due, and its revision. A step never applies a state
// that was not applied before.
func (e *Engine) stepDue() (s servicemodel.State, rev Revision, due bool) {
	if at := e.known.applied.NextStep(); at.IsZero() || time.Now().Before(at) {
		return s, 0, false
	}
	if _, _, pending := e.progress.todo(false); pending {
		return s, 0, false
	}
	return e.progress.todo(true)
}

// step applies the state again for its next step of slow starts. A failed step is retried like
// other later work, and does not delay that work.
func (e *Engine) step(ctx context.Context, s servicemodel.State, rev Revision) (time.Duration,
	error) {
	r, err := e.applyRevision(ctx, s, rev, true, nil)
	if err != nil {
		if _, errRest := e.settle(ctx); errRest != nil {
			err = errors.Join(err, e.failed(ctx, Failed{Doing: "settle", Err: errRest}))
		}
		e.update(func(s *Status) {
			e.progress.settles++
			s.overdue(err)
		})

		return 0, err
	}

	if r.Unsettled != nil {
		err = e.fail(r.Unsettled)
	}
	return r.Settle, err
}
