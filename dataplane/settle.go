package dataplane

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kernlb/kernlb/servicemodel"
)

// Settler does the work that commits leave to a later time, such as removing an endpoint once it
// has drained. A [Backend] may be one.
type Settler interface {
	// Settle does the work that is due, and returns after what time to call it again; 0 means that
	// no work is left. The engine calls it after each apply, so it must be cheap when nothing is
	// due. A backend's Settle is called only while the engine knows what the kernel holds; after an
	// error, the kernel is observed again. Work that failed stays due.
	Settle(ctx context.Context) (next time.Duration, err error)
}

// Flows deletes the flows that a change of services leaves stale: conntrack decides once where a
// flow goes, so flows to an endpoint outlive the endpoint. Package conntrack/flows has an
// implementation that works with every backend.
//
// An [Engine] calls the methods of Flows one at a time, and none while it commits.
type Flows interface {
	// Changed notes that the kernel has come to hold c.New, the table of the state s, and held
	// c.Old before. The engine calls it after each apply, also if nothing differs in the kernel,
	// and twice for the same New if it does not know how far an earlier commit got. Changed does no
	// work that can fail: Settle does, which the engine calls right after.
	Changed(s servicemodel.State, c *servicemodel.ChangeSet)
	Settler
}

// Settle does the work that earlier applies left to a later time and that is due: removing drained
// endpoints, and whatever failed before. It returns after what time to call it again; 0 means that
// no work is left. [Engine.Run] calls it when work is due; programs without Run call it themselves,
// or leave the work to the next Apply. Errors match [ErrUnsettled].
func (e *Engine) Settle(ctx context.Context) (next time.Duration, err error) {
	if err := e.take(ctx); err != nil {
		return 0, fmt.Errorf("settle: %w", err)
	}
	defer e.give()
	e.phase.begin(PhaseSettle)
	if next, err = e.settle(ctx); err != nil {
		return next, e.failed(ctx, "settle", 0, err)
	}
	if e.observers.any() {
		e.phase.enter(PhaseSettle)
		e.observers.emit(ctx, Settled{Next: next, Duration: e.phase.elapsed[PhaseSettle]})
	}
	return next, nil
}

func (e *Engine) settle(ctx context.Context) (next time.Duration, err error) {
	var errs []error
	take := func(n time.Duration, err error) {
		if err != nil {
			errs = append(errs, err)
		}
		if n > 0 && (next == 0 || n < next) {
			next = n
		}
	}
	if s, ok := e.backend.(Settler); ok {
		take(e.settleBackend(ctx, s))
	}
	if e.flows != nil {
		take(e.flows.Settle(ctx))
	}
	if len(errs) > 0 {
		err = fmt.Errorf("%w: %w", ErrUnsettled, errors.Join(errs...))
	}
	e.progress.settled(next, err)
	return next, err
}

// settled notes what a call of Settle returned.
func (p *progress) settled(next time.Duration, err error) {
	p.update(func(s *Status) {
		p.settles, p.unsettled = p.settles+1, err != nil
		switch s.Settle = time.Now(); {
		case err != nil:
		case next > 0:
			s.Settle = s.Settle.Add(next)
		default:
			s.Settle = time.Time{}
		}
	})
}

// settleBackend calls Settle of the backend, with the kernel read before if that must be: also if
// others come between. What such a reading finds, the next look of Run repairs.
func (e *Engine) settleBackend(ctx context.Context, s Settler) (next time.Duration, err error) {
	unlock, err := lock(ctx, e.backend)
	if err != nil {
		return 0, err
	}
	defer unlock()
	err = e.observers.retry(ctx, "settle", func() (err error) {
		if !e.known {
			if err := e.observe(ctx, nil); err != nil {
				return err
			}
		}
		if next, err = s.Settle(ctx); err != nil {
			e.known = false
		}
		return err
	})
	return next, err
}

// changed notifies the flows of what the kernel holds now. They must learn of every step that the
// kernel took. If a commit failed half way, or somebody else changed the kernel, this commit does
// not begin where the last notification ended: then they get both differences.
func (e *Engine) changed(s servicemodel.State, c *servicemodel.ChangeSet) {
	if e.flows == nil {
		return
	}
	if e.notified != nil && e.notified != c.Old {
		e.flows.Changed(s, servicemodel.Diff(e.notified, c.New))
	}
	e.flows.Changed(s, c)
	e.notified = c.New
}
