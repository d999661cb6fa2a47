package dataplane

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kernlb/kernlb/servicemodel"
)

// Settler does work that commits leave to time, such as draining an endpoint before it is removed.
// A [Backend] may be one.
type Settler interface {
	// Settle does what has become due of the work that earlier commits left to time, and returns
	// how long until it is worth calling again; 0: nothing is left. It is called after each apply,
	// so it must be cheap when nothing is due. A backend is asked only while the engine knows what
	// the kernel holds, and is observed again after an error. What failed stays due.
	Settle(ctx context.Context) (next time.Duration, err error)
}

// Flows looks after what the kernel remembers of connections: conntrack decides once where a flow
// goes, so a change of services can leave some that go to endpoints that are gone. Package
// conntrack/flows has one that works with every backend.
//
// An [Engine] calls its methods one at a time, and none while it commits.
type Flows interface {
	// Changed notes that the kernel has come to hold c.New, which is what s means, and held c.Old
	// before. It is called after each apply, also if nothing differs in the kernel; and a second
	// time for the same New after a commit of which it is not known how far it got. It does no work
	// that can fail: that is left to Settle, which the engine calls at once.
	Changed(s servicemodel.State, c *servicemodel.ChangeSet)
	Settler
}

// ErrUnsettled says that the kernel holds what it should, but that work left over by this or an
// earlier commit failed: stale flows are still there, or endpoints that should have been drained by
// now. [Engine.Apply] then returns a result and an error. The work is tried again by the next Apply
// or [Engine.Settle].
var ErrUnsettled = errors.New("applied, but not settled")

// Settle does what has become due of the work that earlier applies left to time: draining, and what
// failed then. It returns how long until it is worth calling again; 0: nothing is left.
// [Engine.Run] calls it when it is due; programs without Run call it themselves, or leave it to the
// next Apply. Errors match [ErrUnsettled].
func (e *Engine) Settle(ctx context.Context) (next time.Duration, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.settle(ctx)
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
		return next, fmt.Errorf("%w: %w", ErrUnsettled, errors.Join(errs...))
	}
	return next, nil
}

// settleBackend lets the backend settle what is due, from what the kernel is known to hold.
func (e *Engine) settleBackend(ctx context.Context, s Settler) (next time.Duration, err error) {
	unlock, err := e.lock(ctx)
	if err != nil {
		return 0, err
	}
	defer unlock()
	if !e.known {
		err := retry(ctx, "observe", func() error { return e.observe(ctx, nil) })
		if err != nil {
			return 0, err
		}
	}
	if next, err = s.Settle(ctx); err != nil {
		e.known = false
	}
	return next, err
}

// changed tells the flows of what the kernel holds now. They must learn of every step that the
// kernel took: what they were told last may not be where this commit began, if one in between
// failed half way or somebody else changed the kernel.
func (e *Engine) changed(s servicemodel.State, c *servicemodel.ChangeSet) {
	if e.flows == nil {
		return
	}
	if e.told != nil && e.told != c.Old {
		e.flows.Changed(s, servicemodel.Diff(e.told, c.New))
	}
	e.flows.Changed(s, c)
	e.told = c.New
}
