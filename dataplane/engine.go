package dataplane

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/kernlb/kernlb/servicemodel"
)

// Config tunes an [Engine]. A nil *Config is the zero Config.
type Config struct {
	// Logger gets a record for each apply that changed something, and for drift. Nil means silence.
	Logger *slog.Logger
	// Flows is told of each change and looks after the flows that it leaves stale. Nil means nobody does.
	Flows Flows
}

// Engine makes the kernel hold desired states, through one backend. Its methods may be called by many goroutines; they take turns.
type Engine struct {
	backend Backend
	log     *slog.Logger
	flows   Flows

	mu sync.Mutex
	// resolved is the table of the last state, from which the next is resolved.
	resolved *servicemodel.Table
	// kernel is the table that the kernel holds; valid only if known.
	kernel *servicemodel.Table
	known  bool
	drift  []string
	look   look
	// told is the table that the flows were last told of.
	told *servicemodel.Table
}

// look is when and at what cost the kernel was last read.
type look struct {
	at      time.Time
	took    time.Duration
	suspect bool // somebody committed since
}

// readShare bounds the time spent on reading the kernel again and again while others keep committing: after a reading that took t,
// the next comes after readShare times t, unless ours was visibly damaged.
const readShare = 20

// New returns an engine on a backend. Closing the backend stays with the caller.
func New(b Backend, cfg *Config) *Engine {
	e := &Engine{backend: b, log: slog.New(slog.DiscardHandler)}
	if cfg == nil {
		return e
	}
	if e.flows = cfg.Flows; cfg.Logger != nil {
		e.log = cfg.Logger
	}
	return e
}

// Result says what an apply did.
type Result struct {
	// Backend is the backend's name.
	Backend string
	// Counts counts what was added, changed and removed.
	servicemodel.Counts
	// Changes is what was applied.
	Changes *servicemodel.ChangeSet
	// Drift is what was found in the kernel that did not belong, and was put right.
	Drift []string
	// Observed says that the kernel was read.
	Observed bool
	// Settle is how long until there is work to be done with [Engine.Settle]; 0: none is left.
	Settle time.Duration
	// Stats is what was sent to the kernel by the commit; the duration is that of the whole apply.
	Stats
}

// tries bounds how often something begins again because somebody else committed.
const tries = 8

// retry does something again while somebody else changes the kernel meanwhile.
func retry(ctx context.Context, doing string, f func() error) error {
	var err error
	for try := range tries {
		if try > 0 {
			if err := sleep(ctx, time.Duration(try)*time.Millisecond); err != nil {
				return err
			}
		}
		if err = f(); !errors.Is(err, ErrConflict) {
			return err
		}
	}
	return fmt.Errorf("%s: tried %d times: %w", doing, tries, err)
}

// Apply makes the kernel hold exactly the state. It returns when the kernel has it. If nothing differs, nothing is written. After an error the
// kernel holds what it held before, unless the backend says otherwise; the next Apply starts from what is really there.
//
// One error comes with a result: [ErrUnsettled]. Then the kernel holds the state.
//
// Invalid states give an error that joins a *servicemodel.FieldError for each problem, states that the backend cannot express one that joins
// *UnsupportedError values; in both cases the kernel is not touched.
func (e *Engine) Apply(ctx context.Context, s servicemodel.State) (*Result, error) {
	start := time.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	unlock, err := e.lock(ctx)
	if err != nil {
		return nil, err
	}
	var r *Result
	err = retry(ctx, "apply", func() (err error) {
		r, err = e.apply(ctx, s)
		return err
	})
	unlock()
	if err != nil {
		return nil, err
	}
	r.Settle, err = e.settle(ctx)
	r.Duration = time.Since(start)
	e.report(ctx, r)
	return r, err
}

// lock keeps other writers of the instance waiting until unlock is called, where the backend can.
func (e *Engine) lock(ctx context.Context) (unlock func(), err error) {
	if l, ok := e.backend.(Locker); ok {
		return l.Lock(ctx)
	}
	return func() {}, nil
}

// apply makes the kernel hold the state.
func (e *Engine) apply(ctx context.Context, s servicemodel.State) (*Result, error) {
	c, observed, err := e.compare(ctx, s)
	if err != nil {
		return nil, err
	}
	r := &Result{Backend: e.backend.Name(), Counts: c.Counts(), Changes: c, Drift: e.drift, Observed: observed}
	if !c.Empty() || len(e.drift) > 0 {
		if r.Stats, err = e.backend.Commit(ctx, c); err != nil {
			e.known = false
			return nil, err
		}
	}
	e.resolved, e.kernel, e.drift = c.New, c.New, nil
	e.changed(s, c)
	return r, nil
}

// compare resolves a state and compares it with the kernel.
func (e *Engine) compare(ctx context.Context, s servicemodel.State) (c *servicemodel.ChangeSet, observed bool, err error) {
	t, err := servicemodel.Resolve(e.resolved, s)
	if err != nil {
		return nil, false, err
	}
	if observed, err = e.lookAt(ctx, t); err != nil {
		return nil, false, err
	}
	if e.kernel != e.resolved { // the kernel was read since the last apply
		t = t.Arrange(e.kernel)
	}
	c = servicemodel.Diff(e.kernel, t)
	return c, observed, e.backend.Check(c)
}

// lookAt makes sure that what the kernel holds is known, and reports whether it had to be read for that.
func (e *Engine) lookAt(ctx context.Context, want *servicemodel.Table) (bool, error) {
	if e.known {
		i, err := e.backend.Integrity(ctx)
		if err != nil {
			return false, err
		}
		e.look.suspect = e.look.suspect || i == Touched
		due := e.look.suspect && time.Since(e.look.at) > readShare*e.look.took
		if i != Broken && !due {
			return false, nil
		}
	}
	return true, e.observe(ctx, want)
}

// observe reads the kernel, given what it is about to hold, if that is known.
func (e *Engine) observe(ctx context.Context, want *servicemodel.Table) error {
	e.known = false
	start := time.Now()
	o, err := e.backend.Observe(ctx, want)
	if err != nil {
		return err
	}
	e.kernel, e.drift, e.known = o.Table, o.Drift, true
	e.look = look{at: time.Now(), took: time.Since(start)}
	return nil
}

func (e *Engine) report(ctx context.Context, r *Result) {
	if len(r.Drift) > 0 {
		e.log.WarnContext(ctx, "repaired drift", "backend", r.Backend, "objects", len(r.Drift), "first", r.Drift[0])
	}
	if r.Messages > 0 {
		e.log.InfoContext(ctx, "applied", "backend", r.Backend, "added", r.Added, "changed", r.Changed, "removed", r.Removed,
			"messages", r.Messages, "bytes", r.Bytes, "duration", r.Duration)
	}
}

// Preview is what an apply would do.
type Preview struct {
	// Changes is what would change, and Drift what would be put right.
	Changes *servicemodel.ChangeSet
	Drift   []string
	// Plan is what would be sent to the kernel.
	Plan Plan
}

// Plan returns what Apply would do with the state, and touches nothing. It fails as Apply would.
func (e *Engine) Plan(ctx context.Context, s servicemodel.State) (*Preview, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	var c *servicemodel.ChangeSet
	err := retry(ctx, "plan", func() (err error) {
		c, _, err = e.compare(ctx, s)
		return err
	})
	if err != nil {
		return nil, err
	}
	p, err := e.backend.Plan(c)
	if err != nil {
		return nil, err
	}
	return &Preview{Changes: c, Drift: e.drift, Plan: p}, nil
}

// Observe reads what the kernel holds.
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
	e.known, e.resolved, e.kernel, e.drift, e.told = false, nil, nil, nil, nil
	var stats Stats
	err = retry(ctx, "cleanup", func() (err error) {
		stats, err = e.backend.Cleanup(ctx)
		return err
	})
	return stats, err
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}
