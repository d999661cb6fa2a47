package dataplane

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kernlb/kernlb/internal/wait"
	"github.com/kernlb/kernlb/servicemodel"
)

// Status is a snapshot of what an engine knows.
type Status struct {
	// Backend is the backend's name.
	Backend string `json:"backend"`
	// Running says that [Engine.Run] is running.
	Running bool `json:"running"`
	// Wanted is the newest request, and State is the requested state, which is empty after a
	// Cleanup. Zero means no request.
	Wanted Revision           `json:"wanted"`
	State  servicemodel.State `json:"-"`
	// Asked is the time of the last request. Zero means never.
	Asked time.Time `json:"asked,omitzero"`
	// Applied is the newest request that has reached the kernel. Zero means none.
	Applied Revision `json:"applied"`
	// PendingSince is the time since which the newest request has been waiting to reach the kernel.
	// Zero means that it is in the kernel. For a request during an apply, it is the end of that
	// apply.
	PendingSince time.Time `json:"pendingSince,omitzero"`
	// Held is the table in the kernel. Nil means that it is unknown, for example before the first
	// apply or after an error.
	Held *servicemodel.Table `json:"-"`
	// Refused, Conflicts and Warnings come from the last successful apply, see [Result].
	Refused   []Refusal               `json:"refused,omitempty"`
	Conflicts []servicemodel.Conflict `json:"conflicts,omitempty"`
	Warnings  servicemodel.Warnings   `json:"warnings,omitzero"`
	// Accepted contains the definitions and endpoints that [Config.KeepRefused] serves when newer
	// definitions are refused. A program can store it, and pass it to the next process as
	// [Config.Accepted]. Without KeepRefused it is empty.
	Accepted servicemodel.State `json:"-"`
	// Succeeded is the time of the last successful apply. Zero means that no apply succeeded.
	Succeeded time.Time `json:"succeeded,omitzero"`
	// Failed is the time of the last failure, however long ago, and Err its error ([PhaseError]).
	// Zero means no failure.
	Failed time.Time `json:"failed,omitzero"`
	Err    error     `json:"-"`
	// Settle is the time at which later work is due next. Zero means that no work is left. After a
	// failure, it is the time of the first failure, until a retry succeeds.
	Settle time.Time `json:"settle,omitzero"`
	// Unsettled is the error of the last attempt at later work, see [Result.Unsettled]. Nil means
	// that it succeeded.
	Unsettled error `json:"-"`
	// Undone describes repairs that another program keeps undoing: each of the last five or more
	// came within a minute of the previous one. Nil means that there are no such repairs, or that
	// the last repair is more than a minute old.
	Undone *Undone `json:"undone,omitempty"`
	// Totals counts the engine's work since New.
	Totals Totals `json:"totals"`
}

// Pending reports whether the newest request has not reached the kernel yet.
func (s Status) Pending() bool { return s.Wanted != s.Applied }

// Totals counts the work of an engine since [New].
type Totals struct {
	// Applies counts successful applies, including applies that found nothing to do.
	Applies int `json:"applies"`
	// Failures counts failed applies.
	Failures int `json:"failures"`
	// Repairs counts the applies that undid changes by other programs ([Result.IsRepair]).
	Repairs int `json:"repairs"`
	// Repaired counts the repaired objects, see [Result.Repaired].
	Repaired servicemodel.Counts `json:"repaired"`
}

// Status returns a snapshot at once, even during other calls.
func (e *Engine) Status() Status {
	e.progress.mu.Lock()
	defer e.progress.mu.Unlock()
	s := e.progress.status
	s.Undone = e.progress.undone.current(time.Now())
	s.Running = e.running.Load()
	s.Refused, s.Conflicts = slices.Clone(s.Refused), slices.Clone(s.Conflicts)
	return s
}

// succeeded completes the result of a successful apply, and reports it.
func (e *Engine) succeeded(ctx context.Context, r *Result) {
	e.enter(e.phase)
	r.Phases, r.Duration = e.elapsed, time.Since(e.callBegan)
	p, repair := &e.progress, r.IsRepair()
	e.update(func(s *Status) {
		s.Applied, p.tried, p.err = r.Revision, r.Revision, nil
		s.setServices(r)
		s.Succeeded = time.Now()
		s.Totals.Applies++
		if repair {
			p.undone.repaired(s.Succeeded)
			s.Totals.Repairs++
			s.Totals.Repaired = sum(s.Totals.Repaired, r.Repaired)
		}
	})

	e.tellRefused(ctx, r)
	if len(r.Drift) > 0 || repair {
		e.observers.emit(ctx, Repaired{r})
	}
	e.observers.emit(ctx, Applied{r})
	e.tellUnsettled(ctx, r)
}

// tellUnsettled reports failed later work of a call that succeeded. An event has already reported
// the result.
func (e *Engine) tellUnsettled(ctx context.Context, r *Result) {
	if r.Unsettled != nil {
		e.elapsed = Phases{} // that event has reported them
		e.tellFailed(ctx, Failed{Doing: "settle", Revision: r.Revision, Err: r.Unsettled})
	}
}

// setServices copies the refusals, conflicts and warnings of a result.
func (s *Status) setServices(r *Result) {
	s.Refused, s.Conflicts = slices.Clone(r.Refused), slices.Clone(r.Conflicts)
	s.Warnings = r.Warnings
}

// tellRefused emits the refusals, conflicts and warnings that are new since the previous apply.
func (e *Engine) tellRefused(ctx context.Context, r *Result) {
	for _, f := range r.Refused {
		i, found := slices.BinarySearchFunc(e.reported.refused, f, compareRefusals)
		if !found || e.reported.refused[i].Err.Error() != f.Err.Error() {
			e.observers.emit(ctx, Refused{Backend: r.Backend, Refusal: f})
		}
	}

	for _, c := range r.Conflicts {
		if !slices.Contains(e.reported.conflicts, c) {
			e.observers.emit(ctx, ClaimConflict{c})
		}
	}

	for w := range r.Warnings.Since(e.reported.warnings) {
		e.observers.emit(ctx, Warned{w})
	}
	e.reported.refused, e.reported.conflicts = r.Refused, r.Conflicts
	e.reported.warnings = r.Warnings
}

// update changes the progress during a turn, and publishes the knowledge of the kernel in the same
// step. So if a status shows a request as applied, it also shows the table of that request.
func (e *Engine) update(f func(*Status)) {
	e.progress.update(func(s *Status) {
		s.Backend, s.Held = e.backend.Name(), e.known.inKernel
		s.Accepted = e.known.accepted
		f(s)
	})
}

// Revision numbers the requests to an engine in their order, from 1: each [Engine.Set],
// [Engine.Apply] and [Engine.Cleanup]. A later request replaces all earlier requests.
type Revision uint64

// progress records the requests to an engine and their outcome. Its mutex is held only briefly and
// never during a request to the kernel, so that Set and Status do not wait for an apply.
type progress struct {
	mu     sync.Mutex
	status Status
	undone Undone
	wants  bool // a state is wanted: false before the first request, and after Cleanup
	// tried is the revision of the last try, and err is the error of that try, or nil.
	tried   Revision
	err     error
	settles int           // number of calls of Settle
	changed chan struct{} // closed when any of this changes; nil if no goroutine waits
	wake    chan struct{} // tells Run that some of this changed
}

// update changes the progress, and wakes the waiting goroutines.
func (p *progress) update(f func(*Status)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	st, applied := &p.status, p.status.Applied
	f(st)
	switch {
	case st.Wanted == st.Applied:
		st.PendingSince = time.Time{}
	case st.PendingSince.IsZero() || st.Applied != applied:
		st.PendingSince = time.Now()
	}

	if p.changed != nil {
		close(p.changed)
		p.changed = nil
	}

	signal(p.wake)
}

// signal fills c, a channel of capacity 1: signals that were not read yet are merged.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// ask makes s the desired state, or no state if wants is false.
func (p *progress) ask(s servicemodel.State, wants bool) (r Revision) {
	p.update(func(st *Status) {
		st.Wanted++
		st.State, st.Asked, p.wants, r = s, time.Now(), wants, st.Wanted
	})

	return r
}

// todo returns the newest desired state, and whether it must be applied. If again is set, it must
// be applied even if it is already in the kernel.
func (p *progress) todo(again bool) (s servicemodel.State, r Revision, todo bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	st := &p.status
	return st.State, st.Wanted, p.wants && (again || st.Applied != st.Wanted)
}

// Set makes s the desired state, which replaces the previous one, and returns at once. [Engine.Run]
// applies it, now or when it starts. If several states are set in the meantime, Run applies only
// the newest. [Engine.Wait] waits until s is applied, and [Engine.Status] reports the progress.
func (e *Engine) Set(s servicemodel.State) Revision { return e.progress.ask(s, true) }

// Wait waits until the kernel has revision r or a newer revision, and then returns nil. Meanwhile,
// [Engine.Run] retries after failures. Wait returns an error at once if there is no such revision
// yet, for example before the first Set. It also does so if the state was refused as a whole
// ([ErrRefused]) or not approved ([ErrNotApproved]), because a retry rarely helps; Run retries
// nevertheless. When ctx is done, Wait returns the context's error, joined with the error of the
// last try if that try failed. A nil error does not mean that each service is served: [Status]
// names the refused services, and the addresses that a service lost to another service (Conflicts).
func (e *Engine) Wait(ctx context.Context, r Revision) error {
	if e.isWithin(ctx) {
		return fmt.Errorf("wait for revision %d: %w", r, errWithin)
	}
	for {
		changed, err := e.progress.reached(r)
		switch {
		case changed == nil && err != nil:
			return fmt.Errorf("wait for revision %d: %w", r, err)
		case changed == nil:
			return nil
		}

		select {
		case <-changed:
			continue
		case <-ctx.Done():
		}

		cause := wait.Ended(ctx)
		if err != nil {
			return fmt.Errorf("wait for revision %d: %w; the last try: %w", r, cause, err)
		}
		return fmt.Errorf("wait for revision %d: %w", r, cause)
	}
}

// reached returns a nil channel if the wait is over; err is nil if revision r is in the kernel.
// Otherwise the channel is closed when something changes, and err is the last try's error.
func (p *progress) reached(r Revision) (changed <-chan struct{}, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.status.Applied >= r {
		return nil, nil
	}
	if r > p.status.Wanted {
		return nil, fmt.Errorf("there are only %d", p.status.Wanted)
	}
	if p.tried >= r {
		err = p.err
	}
	if errors.Is(err, ErrRefused) || errors.Is(err, ErrNotApproved) {
		return nil, err
	}
	if p.changed == nil {
		p.changed = make(chan struct{})
	}
	return p.changed, err
}

// Finish waits until the kernel has the newest state and no later work is left. It does this work
// itself when the work is due. Call Finish before you end Run, or after the last Apply. Finish
// returns an error in the same cases as [Engine.Wait], and if later work fails. It may take as long
// as endpoints drain. To limit the wait, use a context with a deadline; [Engine.Status] then says
// what is left.
func (e *Engine) Finish(ctx context.Context) error {
	for {
		r := e.Status().Wanted
		if err := e.Wait(ctx, r); err != nil {
			return err
		}
		next, err := e.Settle(ctx)
		if err != nil {
			return err
		}
		if next == 0 && e.Status().Wanted == r {
			return nil
		}
		if err := wait.For(ctx, next); err != nil {
			return err
		}
	}
}

// Trace explains the path of a packet through the kernel ([servicemodel.Table.Trace] of Held). It
// also names the refused services that would claim the packet, with the reasons. It costs as much
// as a table's Trace, plus one check of each refused service.
func (s Status) Trace(p servicemodel.Packet, here servicemodel.Locality) servicemodel.Trace {
	t := s.Held.Trace(p, here)
	var refused []servicemodel.Step
	lost := true
	for _, r := range s.Refused {
		if r.Family != 0 && r.Family == servicemodel.FamilyOf(p.Dst.Addr()) {
			refused = append(refused, servicemodel.Step{Kind: "refused", Text: r.String()})
			lost = false
			continue
		}

		svc := s.State.Service(r.Service)
		if svc == nil || len(r.Endpoints) > 0 || !answers(svc, p, here) {
			continue
		}
		for _, problem := range Problems(r.Err) {
			refused = append(refused, servicemodel.Step{Kind: "refused",
				Text: fmt.Sprintf("%v has %v, but is refused: %v", r.Service, p.Dst, problem.Err)})
		}
	}

	if len(refused) == 0 {
		return t
	}
	if lost && t.Decision.Frontend == nil {
		none := fmt.Sprintf("no service has %v", p.Dst.Addr())
		t.Steps = slices.DeleteFunc(t.Steps, func(s servicemodel.Step) bool {
			return s.Text == none
		})
		t.Steps[len(t.Steps)-1].Text = fmt.Sprintf("%v: the service that has %v is refused",
			t.Decision.Outcome, p.Dst)
	}

	at := slices.IndexFunc(t.Steps, func(s servicemodel.Step) bool {
		return s.Kind != "source" && s.Kind != "destination" && s.Kind != "conflict"
	})
	t.Steps = slices.Insert(t.Steps, at, refused...)
	return t
}

// answers reports whether a service claims the destination of a packet. The service may be invalid.
func answers(s *servicemodel.Service, p servicemodel.Packet, here servicemodel.Locality) bool {
	dst := p.Dst.Addr()
	has := slices.Contains(s.ClusterIPs, dst) || slices.Contains(s.ExternalIPs, dst) ||
		slices.Contains(s.HostIPs, dst) ||
		slices.Contains(s.LoadBalancerIPs, servicemodel.LoadBalancerIP{Addr: dst})
	return slices.ContainsFunc(s.Ports, func(port servicemodel.ServicePort) bool {
		width := max(port.Port, port.EndPort) - port.Port
		at := func(first uint16) bool { return p.Dst.Port()-first <= width }
		return port.Protocol == p.Protocol && (has && at(port.Port) ||
			port.NodePort != 0 && at(port.NodePort) && here.Local(dst))
	})
}
