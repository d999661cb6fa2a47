package dataplane

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/servicemodel"
)

// Switch changes the backend. The new backend gets the newest desired state, and then the old
// backend is cleaned up. So at least one of them balances packets at any time, and no new
// connection is refused. With nftables and iptables, open connections continue, because conntrack
// translates their packets. Connections of IPVS end with the old backend, because IPVS has its own
// connection table. Session affinity starts over, so its clients may get a different endpoint. The
// new backend must belong to a different instance. If both belong to the same instance, the cleanup
// removes the new backend's services, and the engine restores them at once.
//
// If Switch would remove services, it fails with [ErrRefused]; see [Engine.ForceSwitch]. If the new
// backend refuses a service that is in the kernel, the error joins the reasons. Switch also fails
// if services are in the kernel but no state is desired, as after [Engine.ApplyChanges].
//
// If the new backend fails, it is cleaned up, and the engine keeps the old one. If [Config.Approve]
// returns an error, neither backend changes. The caller closes both backends. If the cleanup of the
// old backend failed, [Result.Unsettled] says why, and the old backend must stay open: the next
// Apply, Settle or Cleanup tries again, and so does Run. As soon as [Status.Unsettled] is nil, the
// old backend can be closed. Run may be running during a Switch.
func (e *Engine) Switch(ctx context.Context, b backends.Backend) (*Result, error) {
	return e.switchTo(ctx, b, false)
}

// ForceSwitch changes the backend as [Engine.Switch] does, even if this removes services: the
// services and families ([Refusal.Family]) that the new backend refuses or, if no state is desired,
// all services of the old backend. ForceSwitch does not read the old backend's contents, so it also
// works if the old backend fails.
func (e *Engine) ForceSwitch(ctx context.Context, b backends.Backend) (*Result, error) {
	return e.switchTo(ctx, b, true)
}

func (e *Engine) switchTo(ctx context.Context, b backends.Backend, force bool) (*Result, error) {
	if err := unusable(b); err != nil {
		return nil, fmt.Errorf("switch: %w", err)
	}
	ctx, err := e.begin(ctx, "switch", PhaseObserve)
	if err != nil {
		return nil, err
	}
	defer e.end()
	before := e.backend
	state, rev, wanted := e.progress.todo(true)
	r, err := e.hold(ctx, b, state, rev, wanted, force)
	if err != nil {
		return nil, e.failed(ctx, Failed{Doing: "switch", Revision: rev, Err: fmt.Errorf(
			"switch from %s to %s: %w", before.Name(), b.Name(), err)})
	}

	e.update(func(s *Status) {
		s.setServices(r)
		s.Applied, e.progress.tried, e.progress.err = rev, rev, nil
	})

	e.tellRefused(ctx, r)
	signal(e.switched)
	e.former = slices.DeleteFunc(append(e.former, before), func(f backends.Backend) bool {
		return reflect.ValueOf(f).Comparable() && f == b // the engine was switched back to it
	})
	e.enter(PhaseSettle)
	r.Settle, r.Unsettled = e.settle(ctx)
	e.enter(PhaseSettle)
	r.Phases, r.Duration = e.elapsed, time.Since(e.callBegan)
	e.observers.emit(ctx, Switched{From: before.Name(), To: b.Name(), Result: r})
	e.tellUnsettled(ctx, r)
	return r, nil
}

// leaveFormer cleans up the former backends once the current backend has the newest state in the
// kernel. Until then, a former backend may still balance packets.
func (e *Engine) leaveFormer(ctx context.Context) error {
	if len(e.former) == 0 {
		return nil
	}
	e.enter(PhaseCleanup)
	defer e.enter(PhaseSettle)
	if err := e.holdAgain(ctx); err != nil {
		return err
	}
	former := slices.Clone(e.former)
	err := e.cleanupFormer(ctx)
	if errAgain := e.holdAgain(context.WithoutCancel(ctx)); errAgain != nil {
		e.former, e.known.inKernel = former, nil // so that it is tried again
		err = errors.Join(err, errAgain)
	}

	return err
}

// cleanupFormer cleans up the former backends. Backends whose cleanup fails stay in the list.
func (e *Engine) cleanupFormer(ctx context.Context) error {
	var failed []error
	e.former = slices.DeleteFunc(e.former, func(b backends.Backend) bool {
		_, err := e.cleanup(ctx, b)
		if err != nil {
			failed = append(failed, fmt.Errorf("switched from %s to %s; clean up: %w", b.Name(),
				e.backend.Name(), err))
		}

		return err == nil
	})
	return errors.Join(failed...)
}

// hold makes b the engine's backend, and applies the state of revision rev if a state is desired.
// If this fails, nothing changes.
func (e *Engine) hold(ctx context.Context, b backends.Backend, s servicemodel.State, rev Revision,
	wanted, force bool) (*Result, error) {
	if e.known.inKernel == nil && !force {
		err := e.retry(ctx, "observe", nil, func() error { return e.observe(ctx, nil) })
		if err != nil {
			return nil, err
		}
	}

	served := e.known.inKernel
	if force {
		served = nil
	}
	if !wanted {
		if served.Len() > 0 {
			return nil, refusedState{errors.New("the kernel holds services, and none are wanted")}
		}
		e.backend, e.known = b, newKnowledge(e.known.accepted)
		return &Result{Backend: b.Name(), Revision: rev}, nil
	}

	before, known := e.backend, e.known
	e.backend, e.known = b, newKnowledge(known.accepted)
	if err := e.holdsAll(ctx, s, served); err != nil {
		e.backend, e.known = before, known
		return nil, err
	}

	r, err := e.applyState(ctx, s, rev)
	if err != nil {
		written := e.known.applied != nil || !errors.Is(err, ErrNotApproved)
		if written { // these services must not stay, even if the context ended
			_, errCleanup := e.cleanup(context.WithoutCancel(ctx), b)
			err = errors.Join(err, errCleanup)
		}

		e.backend, e.known = before, known
		return nil, err
	}

	r.Observed = true
	return r, nil
}

// holdsAll returns an error for each service and family of the table served that the new backend
// refuses.
func (e *Engine) holdsAll(ctx context.Context, s servicemodel.State,
	served *servicemodel.Table) error {
	var p *Result
	err := e.retry(ctx, "observe", nil, func() (err error) {
		p, err = e.compare(ctx, s, true)
		return err
	})
	if err != nil || len(p.Refused) == 0 {
		return err
	}
	services, families := map[servicemodel.Name]bool{}, map[servicemodel.Family]bool{}
	for f := range served.Frontends() {
		services[f.Service.Name], families[f.Key.Family()] = true, true
	}
	var lost []error
	for _, r := range p.Refused {
		what := "service " + r.Service.String()
		if r.Family != 0 {
			what = r.Family.String()
		}
		if families[r.Family] || services[r.Service] && len(r.Endpoints) == 0 && !r.Kept {
			lost = append(lost, fmt.Errorf("%s, which is served, would be lost: %w", what, r.Err))
		}
	}

	if len(lost) > 0 {
		return refusedState{errors.Join(lost...)}
	}
	return nil
}

// holdAgain applies the newest state again if the cleanup of a former backend of the same instance
// removed it from the kernel.
func (e *Engine) holdAgain(ctx context.Context) error {
	s, rev, wanted := e.progress.todo(true)
	if !wanted {
		return nil
	}
	i, err := e.integrity(ctx)
	if err == nil && i == backends.Broken {
		_, err = e.applyState(ctx, s, rev)
	}
	return err
}
