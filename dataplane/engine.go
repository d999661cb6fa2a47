package dataplane

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/kernlb/kernlb/internal/ration"
	"github.com/kernlb/kernlb/servicemodel"
)

// Config tunes an [Engine]. A nil *Config is the zero Config.
type Config struct {
	// Strict refuses a state as a whole if one of its services is refused. By default that service
	// is left out, and everything else is applied; see [Engine.Apply].
	Strict bool
	// Logger gets a record for each apply that changed something, for drift, for each service that
	// is refused, and for what failed; at debug level also the plan of each commit, which costs as
	// much as making it. docs/logs.md lists the records. Nil means silence.
	Logger *slog.Logger
	// Node completes the node of each state with what it leaves open. Nil means that states say
	// all there is to say.
	Node NodeSource
	// Flows is notified of each change and deletes the flows that the change leaves stale. Nil
	// means that stale flows stay.
	Flows Flows
}

// Engine makes the kernel hold desired states, through one backend. Its methods may be called by
// several goroutines at a time. Those that are given a context take turns, in the order in which
// they were called, and return the context's error if it ends while they wait for theirs; the
// others return at once.
type Engine struct {
	flows    Flows
	node     NodeSource
	log      *slog.Logger // nil means silence
	strict   bool
	switched chan struct{} // Run is told of another backend

	progress  progress
	observers observers

	resync atomic.Bool // the kernel is to be read before anything else
	turn   turn        // who has it has what follows
	held
	phase stopwatch
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
	// refused are the services that the last apply left out, and conflicts what they claimed.
	refused   []Refusal
	conflicts []servicemodel.Conflict
}

// newHeld returns what is known of the kernel before it was read.
func newHeld(b Backend) held { return held{backend: b, readings: ration.New(readBurst, readShare)} }

// New returns an engine on a backend. Closing the backend stays with the caller.
func New(b Backend, cfg *Config) *Engine {
	if cfg == nil {
		cfg = &Config{}
	}
	e := &Engine{
		held: newHeld(b), strict: cfg.Strict, flows: cfg.Flows, node: cfg.Node, log: cfg.Logger,
		switched: make(chan struct{}, 1), turn: newTurn(),
		progress: progress{wake: make(chan struct{}, 1), status: Status{Backend: b.Name()}},
	}
	if cfg.Logger != nil {
		e.Subscribe(logTo(cfg.Logger))
	}
	return e
}

// take waits for the turn, which give ends.
func (e *Engine) take(ctx context.Context) error {
	if err := e.turn.take(ctx); err != nil {
		return err
	}
	if e.resync.Swap(false) {
		e.known = false
	}
	return nil
}

// give ends the turn, and tells what is known of the kernel now.
func (e *Engine) give() {
	e.progress.update(func(s *Status) {
		s.Backend, s.Held = e.backend.Name(), nil
		if e.known {
			s.Held = e.kernel
		}
	})
	e.turn.give()
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
// [ErrUnsettled] is the one error that comes with a result: the kernel holds the state then. All
// errors but that of a context that ended before it was Apply's turn are *[PhaseError] values.
//
// Apply is [Engine.Set] and waiting: beside a [Engine.Run] the state takes the place of the one
// that Run was to hold, from Apply's turn on, and Run tries again if Apply fails.
func (e *Engine) Apply(ctx context.Context, s servicemodel.State) (*Result, error) {
	if err := e.take(ctx); err != nil {
		return nil, fmt.Errorf("apply: %w", err)
	}
	defer e.give()
	return e.applyRevision(ctx, s, e.progress.ask(s, true))
}

// applyWanted applies the newest state that is wanted. Unless again is set, there is no result
// where it is applied already; nor is there if nothing is wanted.
func (e *Engine) applyWanted(ctx context.Context, again bool) (*Result, error) {
	if err := e.take(ctx); err != nil {
		return nil, err
	}
	defer e.give()
	s, r, todo := e.progress.todo(again)
	if !todo {
		return nil, nil
	}
	return e.applyRevision(ctx, s, r)
}

// applyRevision applies the state that was asked for as revision rev, and tells what became of it.
func (e *Engine) applyRevision(ctx context.Context, s servicemodel.State, rev Revision) (*Result,
	error) {
	start := time.Now()
	e.phase.begin(PhaseLock)
	r, err := e.applyInTurn(ctx, s)
	if err != nil {
		return nil, e.applyFailed(ctx, "apply", rev, err)
	}
	e.state, e.applied = s, true
	r.Revision = rev
	e.phase.enter(PhaseSettle)
	r.Settle, err = e.settle(ctx)
	e.phase.enter(PhaseSettle)
	r.Phases, r.Duration = e.phase.elapsed, time.Since(start)
	e.succeeded(ctx, r)
	if err != nil {
		e.phase.begin(PhaseSettle)
		err = e.failed(ctx, "settle", rev, err)
	}
	return r, err
}

// applyInTurn makes the kernel hold the state, while other writers of the instance wait.
func (e *Engine) applyInTurn(ctx context.Context, s servicemodel.State) (*Result, error) {
	unlock, err := lock(ctx, e.backend)
	if err != nil {
		return nil, err
	}
	defer unlock()
	var r *Result
	err = e.observers.retry(ctx, "apply", func() (err error) {
		r, err = e.apply(ctx, s)
		return err
	})
	if err == nil && e.unread {
		err = e.observers.retry(ctx, "apply, remove what nobody wants", func() error {
			return e.applyRest(ctx, r)
		})
		e.torn = err != nil
	}
	if err != nil {
		return nil, err
	}
	return r, nil
}

// lock keeps other writers waiting until unlock is called, where the backend can.
func lock(ctx context.Context, b Backend) (unlock func(), err error) {
	if l, ok := b.(Locker); ok {
		return l.Lock(ctx)
	}
	return func() {}, nil
}

// Plan returns what Apply would do with the state, and touches nothing. It fails as Apply would.
func (e *Engine) Plan(ctx context.Context, s servicemodel.State) (*Preview, error) {
	if err := e.take(ctx); err != nil {
		return nil, fmt.Errorf("plan: %w", err)
	}
	defer e.give()
	e.phase.begin(PhaseResolve)
	var p *proposal
	err := e.observers.retry(ctx, "plan", func() (err error) {
		p, err = e.compare(ctx, s, false)
		return err
	})
	if err != nil {
		return nil, e.phase.fail(err)
	}
	e.phase.enter(PhaseCommit)
	plan, err := e.backend.Plan(p.changes)
	if err != nil {
		return nil, e.phase.fail(err)
	}
	return &Preview{
		Changes: p.changes, Drift: slices.Clone(e.drift), Plan: plan,
		Refused: p.refused, Conflicts: p.conflicts(),
	}, nil
}

// Observe reads what the kernel holds, all of it.
func (e *Engine) Observe(ctx context.Context) (*Observation, error) {
	if err := e.take(ctx); err != nil {
		return nil, fmt.Errorf("observe: %w", err)
	}
	defer e.give()
	e.phase.begin(PhaseObserve)
	err := e.observers.retry(ctx, "observe", func() error { return e.observe(ctx, nil) })
	if err != nil {
		return nil, e.phase.fail(err)
	}
	return &Observation{Table: e.kernel, Drift: slices.Clone(e.drift)}, nil
}

// Resync makes the next apply read the kernel, whatever its integrity.
func (e *Engine) Resync() { e.resync.Store(true) }

// Cleanup removes every trace of the instance from the kernel. Flows that its services began go on.
// Beside a [Engine.Run], nothing is wanted any more until the next Set or Apply.
func (e *Engine) Cleanup(ctx context.Context) (Stats, error) {
	if err := e.take(ctx); err != nil {
		return Stats{}, fmt.Errorf("cleanup: %w", err)
	}
	defer e.give()
	rev := e.progress.ask(servicemodel.State{}, false)
	e.phase.begin(PhaseCleanup)
	e.held, e.notified, e.applied = newHeld(e.backend), nil, false
	stats, err := e.cleanup(ctx, e.backend)
	if err != nil {
		err = e.failed(ctx, "cleanup", rev, err)
		e.progress.update(func(*Status) { e.progress.tried, e.progress.err = rev, err })
		return stats, err
	}
	e.progress.update(func(s *Status) {
		s.Applied, e.progress.tried, e.progress.err = rev, rev, nil
		s.Refused, s.Conflicts = nil, nil
	})
	if e.observers.any() {
		e.phase.enter(PhaseCleanup)
		e.observers.emit(ctx, CleanedUp{Backend: e.backend.Name(), Phases: e.phase.elapsed,
			Stats: stats})
	}
	return stats, nil
}

// cleanup removes what a backend holds.
func (e *Engine) cleanup(ctx context.Context, b Backend) (stats Stats, err error) {
	unlock, err := lock(ctx, b)
	if err != nil {
		return Stats{}, err
	}
	defer unlock()
	err = e.observers.retry(ctx, "cleanup", func() (err error) {
		stats, err = b.Cleanup(ctx)
		return err
	})
	return stats, err
}
