package dataplane

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/kernlb/kernlb/internal/ration"
	"github.com/kernlb/kernlb/internal/sleep"
	"github.com/kernlb/kernlb/servicemodel"
)

// Config tunes an [Engine]. A nil *Config is the zero Config.
type Config struct {
	// Strict refuses a state as a whole if one of its services is refused. By default that service
	// is left out, and everything else is applied; see [Engine.Apply].
	Strict bool
	// Logger gets a record for each apply that changed something, for drift, and for each service
	// that is refused. Nil means silence.
	Logger *slog.Logger
	// Flows is notified of each change and deletes the flows that the change leaves stale. Nil
	// means that stale flows stay.
	Flows Flows
}

// Engine makes the kernel hold desired states, through one backend. Its methods may be called by
// several goroutines at a time; they run one after the other.
type Engine struct {
	log      *slog.Logger
	flows    Flows
	strict   bool
	switched chan struct{} // Run is told of another backend

	mu sync.Mutex
	held
	totals Totals
	// state is what was applied last, if anything was.
	state   servicemodel.State
	applied bool
	// notified is the table that the flows were last notified of.
	notified *servicemodel.Table
}

// held is a backend and what is known of the kernel through it.
type held struct {
	backend Backend
	// resolved is the table of the last state, from which the next is resolved.
	resolved *servicemodel.Table
	// kernel is the table that the kernel holds, and drift what it holds besides; valid if known.
	// This is the one place that keeps the table: a backend keeps what a table does not say, such
	// as handles, sizes of sets and versions.
	kernel *servicemodel.Table
	drift  []string
	known  bool
	unread bool // the kernel holds more that nobody wants
	torn   bool // an apply failed half way: what the kernel holds may be what it left
	// suspect says that somebody committed since the kernel was read, and readings how often it is
	// read for that.
	suspect  bool
	readings ration.Ration
	// refused are the services that the last apply left out.
	refused []Refusal
}

// newHeld returns what is known of the kernel before it was read.
func newHeld(b Backend) held { return held{backend: b, readings: ration.New(readBurst, readShare)} }

// New returns an engine on a backend. Closing the backend stays with the caller.
func New(b Backend, cfg *Config) *Engine {
	e := &Engine{held: newHeld(b), log: slog.New(slog.DiscardHandler),
		switched: make(chan struct{}, 1)}
	if cfg == nil {
		return e
	}
	e.strict, e.flows = cfg.Strict, cfg.Flows
	if cfg.Logger != nil {
		e.log = cfg.Logger
	}
	return e
}

// tries bounds how often something begins again because others changed the kernel meanwhile. The
// waits in between add up to 1.2 s.
const tries = 16

// retry does something again for as long as that fails with ErrConflict. It is the only retry of
// reading and committing: a backend returns the conflict.
func retry(ctx context.Context, doing string, f func() error) error {
	var err error
	for try := range tries {
		if try > 0 {
			if err := sleep.For(ctx, time.Duration(try*try)*time.Millisecond); err != nil {
				return err
			}
		}
		if err = f(); !errors.Is(err, ErrConflict) {
			return err
		}
	}
	return fmt.Errorf("%s: tried %d times: %w", doing, tries, err)
}

// Apply makes the kernel hold exactly the state. It returns when the kernel has it. If nothing
// differs, nothing is written. After an error the kernel holds what it held before, unless the
// backend says otherwise; the next Apply starts from what is really there.
//
// A service that is invalid, that the backend cannot express, or that something foreign in the
// kernel is in the way of, is refused: it is left out as a whole, with all its ports and addresses,
// and [Result.Refused] says why. Everything else is applied. So what the kernel holds depends on
// the state alone, and is the same after a restart. (To leave such a service as it was would send
// connections to endpoints that nobody updates, whose addresses may belong to somebody else by
// now.) Each apply begins with the whole state again, so a service comes in by itself as soon as it
// can.
//
// What is wrong with the node, or with any service if [Config.Strict] is set, refuses the state:
// the kernel is not touched, and the error joins a *servicemodel.FieldError, *[UnsupportedError] or
// *[CollisionError] for each problem.
//
// [ErrUnsettled] is the one error that comes with a result: the kernel holds the state then.
func (e *Engine) Apply(ctx context.Context, s servicemodel.State) (*Result, error) {
	start := time.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	r, err := e.applyInTurn(ctx, s)
	if err != nil {
		e.totals.Failures++
		return nil, err
	}
	e.state, e.applied = s, true
	r.Settle, err = e.settle(ctx)
	r.Duration = time.Since(start)
	e.report(ctx, r)
	return r, err
}

// applyInTurn makes the kernel hold the state, while other writers of the instance wait.
func (e *Engine) applyInTurn(ctx context.Context, s servicemodel.State) (*Result, error) {
	unlock, err := e.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	var r *Result
	err = retry(ctx, "apply", func() (err error) {
		r, err = e.apply(ctx, s)
		return err
	})
	if err == nil && e.unread {
		err = retry(ctx, "apply, remove what nobody wants", func() error {
			return e.applyRest(ctx, r)
		})
		e.torn = err != nil
	}
	if err != nil {
		return nil, err
	}
	return r, nil
}

// lock keeps other writers of the instance waiting until unlock is called, where the backend can.
func (e *Engine) lock(ctx context.Context) (unlock func(), err error) {
	if l, ok := e.backend.(Locker); ok {
		return l.Lock(ctx)
	}
	return func() {}, nil
}

func (e *Engine) report(ctx context.Context, r *Result) {
	for _, f := range r.Refused {
		i, found := slices.BinarySearchFunc(e.refused, f, compareRefusals)
		if !found || e.refused[i].Err.Error() != f.Err.Error() {
			e.log.WarnContext(ctx, "service refused", "backend", r.Backend,
				"service", f.Service.String(), "reason", f.Err)
		}
	}
	e.refused = r.Refused
	e.totals.Applies++
	if len(r.Drift) > 0 || r.IsRepair() {
		e.logRepair(ctx, r)
	}
	if r.Messages > 0 && (r.Counts != servicemodel.Counts{} || !r.IsRepair()) {
		e.log.InfoContext(ctx, "applied", "backend", r.Backend, "added", r.Added, "changed",
			r.Changed, "removed", r.Removed,
			"messages", r.Messages, "bytes", r.Bytes, "duration", r.Duration)
	}
}

// logRepair says what was put right, and counts it.
func (e *Engine) logRepair(ctx context.Context, r *Result) {
	if r.IsRepair() {
		e.totals.Repairs++
		e.totals.Repaired = e.totals.Repaired.Plus(r.Repaired)
	}
	attrs := []any{"backend", r.Backend, "added", r.Repaired.Added, "changed", r.Repaired.Changed,
		"removed", r.Repaired.Removed, "objects", len(r.Drift), "duration", r.Duration}
	if len(r.Drift) > 0 {
		attrs = append(attrs, "first", r.Drift[0])
	}
	e.log.WarnContext(ctx, "repaired", attrs...)
}

// Totals returns what the engine did since it was made.
func (e *Engine) Totals() Totals {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.totals
}

// Plan returns what Apply would do with the state, and touches nothing. It fails as Apply would.
func (e *Engine) Plan(ctx context.Context, s servicemodel.State) (*Preview, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	var p *proposal
	err := retry(ctx, "plan", func() (err error) {
		p, err = e.compare(ctx, s, false)
		return err
	})
	if err != nil {
		return nil, err
	}
	plan, err := e.backend.Plan(p.changes)
	if err != nil {
		return nil, err
	}
	return &Preview{
		Changes: p.changes, Drift: e.drift, Plan: plan,
		Refused: p.refused, Conflicts: p.conflicts(),
	}, nil
}

// Observe reads what the kernel holds, all of it.
func (e *Engine) Observe(ctx context.Context) (*Observation, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := retry(ctx, "observe", func() error { return e.observe(ctx, nil) }); err != nil {
		return nil, err
	}
	return &Observation{Table: e.kernel, Drift: e.drift}, nil
}

// Resync makes the next apply read the kernel, whatever its integrity.
func (e *Engine) Resync() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.known = false
}

// Cleanup removes every trace of the instance from the kernel. Flows that its services began go on.
func (e *Engine) Cleanup(ctx context.Context) (Stats, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	unlock, err := e.lock(ctx)
	if err != nil {
		return Stats{}, err
	}
	defer unlock()
	e.held, e.notified, e.applied = newHeld(e.backend), nil, false
	var stats Stats
	err = retry(ctx, "cleanup", func() (err error) {
		stats, err = e.backend.Cleanup(ctx)
		return err
	})
	return stats, err
}
