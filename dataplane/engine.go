package dataplane

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/kernlb/kernlb/internal/wait"
	"github.com/kernlb/kernlb/servicemodel"
)

// Config tunes an [Engine]. A nil *Config is the zero Config.
type Config struct {
	// Strict refuses a whole state if one of its services is refused. By default only that service
	// is left out, and everything else is applied; see [Engine.Apply].
	Strict bool
	// LeaveOutEndpoints leaves out only invalid endpoints, and serves the service's other
	// endpoints. By default the whole service is left out. Result.Refused names both, see
	// [Refusal.Endpoints].
	LeaveOutEndpoints bool
	// Approve is called before each commit of [Engine.Apply], [Engine.Run], [Engine.ApplyChanges]
	// and [Engine.Switch], repairs included ([Preview.Repaired], [Preview.Drift]). If nothing
	// differs, it is not called. If Approve returns an error, the kernel stays as it is, and the
	// call fails with that error ([ErrNotApproved]). [Engine.Cleanup] does not call Approve, and
	// [Engine.Settle] only for a step of slow starts. The engine and other writers of the instance
	// wait for it, so it must return soon, and may call only those methods of the engine that an
	// [Observer] may call. Each call costs a plan. Nil approves everything.
	//
	// After an error Run calls Approve again when a program sets another state, when the objects
	// that Run watches change, when another program changes what the kernel holds, and otherwise
	// after [RunOptions.RetryMax]. Until then [Status.Err] has the error, and [Status.PendingSince]
	// is set if a new state waits. Each error is an event [Failed]. Changes of services by other
	// programs are not repaired meanwhile.
	Approve func(context.Context, *Preview) error
	// Span is for tracing. It is called when a call of the engine begins, with the name "apply",
	// "apply changes", "plan", "observe", "settle", "switch" or "cleanup". Within that call it is
	// called for each [Phase] with the phase's name and the context that it returned for the call.
	// The engine calls the returned function at the end, with the error, if any. Nil means no
	// spans.
	Span func(ctx context.Context, name string) (context.Context, func(error))
	// KeepRefused serves a refused service by its last accepted definition, and by its present
	// endpoints if they are valid. By default, and if there is no such definition, the service is
	// left out. Result.Refused names it in either case ([Refusal.Kept]).
	KeepRefused bool
	// Accepted has the accepted definitions of an earlier process ([Result.Accepted]), which
	// KeepRefused uses until this engine has accepted others. A restarted program that does not
	// know them leaves refused services out.
	Accepted servicemodel.State
	// Logger gets a record for each apply that changed something, for drift, for each refused
	// service, and for each failure. At debug level it also gets the plan of each commit, which
	// costs as much as making the plan. docs/logs.md lists the records. Nil means no log.
	Logger *slog.Logger
	// Node fills in what states leave unset about their node. Nil means that states are complete.
	Node NodeSource
	// Flows is notified of each change, and deletes the flows that the change leaves stale. If nil,
	// stale flows stay.
	Flows Flows
}

// Engine makes the kernel hold desired states, through one backend. Several goroutines may call its
// methods at the same time. Methods with a context take turns in the order of the calls. If the
// context ends before a method's turn, the method returns the context's error. The other methods
// return at once.
type Engine struct {
	cfg      Config
	switched chan struct{}               // tells Run that the backend has changed
	grace    func(context.Context) error // wait.GracePeriod, except in tests

	progress  progress
	observers observers

	resync atomic.Bool // read the kernel before anything else
	turn   turn        // its holder may use the fields below
	held
	phase stopwatch
	// notified is the table of the last notification of the flows.
	notified *servicemodel.Table
}

// held is a backend, and the engine's knowledge of the kernel through it.
type held struct {
	backend Backend
	// resolved is the table of the last state, from which the next one is resolved. It is nil after
	// a commit that may have failed half way, because then nothing tells our changes from other
	// programs'.
	resolved *servicemodel.Table
	// kernel is the table that the kernel holds, and drift describes what it holds besides. kernel
	// is the same pointer as resolved if the two are equal. It is nil while the kernel's contents
	// are unknown: before the first reading and after any failure. The next operation then reads
	// the kernel, whether an apply or a check by Run. The table is kept only here. A backend keeps
	// only what a table does not contain, such as handles, sizes of sets and versions.
	kernel *servicemodel.Table
	// read is the table of the last reading. It lacks pools for which the kernel has no place.
	read   *servicemodel.Table
	drift  []string
	unread bool // the kernel holds more objects than any wanted state
	// suspect says that another program committed since the last reading. readings limits how much
	// time the readings for this reason may take.
	suspect  bool
	readings wait.Budget
	// refused are the services that the last apply left out, and conflicts the claims that lost.
	refused   []Refusal
	conflicts []servicemodel.Conflict
	// lacks says which family the kernel lacks, so that not each apply begins with that family. It
	// is nil if that is unknown, as after a reading.
	lacks *Problem
	// served is the last accepted state. It is kept only if refused services are kept.
	served servicemodel.State
}

// newHeld returns the knowledge of the kernel before the first reading.
func newHeld(b Backend) held {
	return held{backend: b, readings: wait.NewBudget(readBurst, readShare)}
}

// New returns an engine on a backend. The caller closes the backend. Without a backend, as in the
// zero Engine, all methods with a context fail, except Wait and Finish.
func New(b Backend, cfg *Config) *Engine {
	if b == nil {
		return &Engine{}
	}
	if cfg == nil {
		cfg = &Config{}
	}
	e := &Engine{
		held: newHeld(b), cfg: *cfg, phase: stopwatch{span: cfg.Span},
		switched: make(chan struct{}, 1), grace: wait.GracePeriod, turn: newTurn(),
		progress: progress{wake: make(chan struct{}, 1), status: Status{Backend: b.Name()}},
	}
	e.served = cfg.Accepted
	if cfg.Logger != nil {
		e.Subscribe(logTo(cfg.Logger))
	}
	return e
}

// take waits for the turn. give ends it.
func (e *Engine) take(ctx context.Context) error {
	if err := e.turn.take(ctx); err != nil {
		return err
	}
	if e.resync.Swap(false) {
		e.kernel = nil
	}
	return nil
}

// give ends the turn, and publishes the knowledge of the kernel.
func (e *Engine) give() {
	e.update(func(*Status) {})
	e.phase.end()
	e.turn.give()
}

// update changes the progress during a turn, and publishes what is known of the kernel with it. So
// a status that shows a request as applied also shows the table of that request.
func (e *Engine) update(f func(*Status)) {
	e.progress.update(func(s *Status) {
		s.Backend, s.Held = e.backend.Name(), e.kernel
		f(s)
	})
}

// Apply makes the kernel hold exactly the state, and returns when it does. If nothing differs, it
// writes nothing. After an error the kernel holds what it held before, unless the backend documents
// otherwise. The next Apply starts from the kernel's true contents.
//
// A service is refused if it is invalid, if the backend cannot express it, or if a foreign object
// in the kernel is in its way. By default a refused service is left out as a whole, with all its
// ports and addresses, and [Result.Refused] says why. Everything else is applied. So the kernel's
// contents depend only on the state, and are the same after a restart. [Config.KeepRefused] serves
// a refused service by its last accepted definition instead, so the contents depend on earlier
// states, too. Each apply begins with the whole state again, so a service comes in by itself as
// soon as it can.
//
// A problem of the node refuses the whole state, and so does a problem of any service if
// [Config.Strict] is set. The kernel is not touched then, and the error joins a
// *servicemodel.FieldError, *[UnsupportedError] or *[CollisionError] for each problem.
//
// Only [ErrUnsettled] comes with a result: the kernel then holds the state. If the context ends
// before Apply's turn, the error is the context's, the kernel stays as it is, and so does the
// wanted state. All other errors are *[PhaseError] values.
//
// Apply works like [Engine.Set] followed by waiting. While [Engine.Run] is running, the state
// replaces the one that Run holds, from Apply's turn on, and Run retries if Apply fails.
func (e *Engine) Apply(ctx context.Context, s servicemodel.State) (*Result, error) {
	if err := e.take(ctx); err != nil {
		return nil, fmt.Errorf("apply: %w", err)
	}
	defer e.give()
	return e.applyRevision(ctx, s, e.progress.ask(s, true), false, nil)
}

// applyWanted applies the newest wanted state. The result is nil if no state is wanted, or if the
// newest is already applied and again is not set. It leaves to Settle what must wait for packets.
func (e *Engine) applyWanted(ctx context.Context, again bool, p *wait.Packets) (*Result, error) {
	if err := e.take(ctx); err != nil {
		return nil, err
	}
	defer e.give()
	s, r, todo := e.progress.todo(again)
	if !todo {
		return nil, nil
	}
	return e.applyRevision(ctx, s, r, false, p)
}

// applyRevision applies the state that was requested as revision rev, and reports the outcome. step
// says that it was applied before.
func (e *Engine) applyRevision(ctx context.Context, s servicemodel.State, rev Revision, step bool,
	p *wait.Packets) (*Result, error) {
	start := time.Now()
	e.phase.begin(ctx, "apply", PhaseLock)
	r, err := e.applyInTurn(ctx, s)
	if err != nil {
		return nil, e.applyFailed(ctx, "apply", rev, err)
	}
	r.Revision, r.Step = rev, step
	e.phase.enter(PhaseSettle)
	r.Settle, err = e.settle(p.In(ctx))
	e.phase.enter(PhaseSettle)
	r.Phases, r.Duration = e.phase.elapsed, time.Since(start)
	e.succeeded(ctx, r)
	if err != nil {
		e.phase.restart(PhaseSettle)
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
		if err != nil && !errors.Is(err, ErrNotApproved) {
			e.resolved = nil
		}
	}
	if err != nil {
		return nil, err
	}
	return r, nil
}

// lock makes other writers wait until unlock is called, if the backend is a [Locker].
func lock(ctx context.Context, b Backend) (unlock func(), err error) {
	if l, ok := as[Locker](b); ok {
		return l.Lock(ctx)
	}
	return func() {}, nil
}

// Plan returns what Apply would do with the state, and changes nothing. It fails as Apply would.
// The changes begin from what any process can read of the kernel ([Engine.ApplyChanges]).
func (e *Engine) Plan(ctx context.Context, s servicemodel.State) (*Preview, error) {
	if err := e.take(ctx); err != nil {
		return nil, fmt.Errorf("plan: %w", err)
	}
	defer e.give()
	e.phase.begin(ctx, "plan", PhaseResolve)
	var p *proposal
	err := e.observers.retry(ctx, "plan", func() (err error) {
		if p, err = e.compare(ctx, s, false); err != nil || p.changes.Empty() {
			return err
		}
		return e.fromReading(ctx, p)
	})
	if err != nil {
		return nil, e.phase.fail(err)
	}
	e.phase.enter(PhaseCommit)
	plan, err := e.backend.Plan(p.changes)
	if err != nil {
		return nil, e.phase.fail(err)
	}
	r := &Result{Changes: p.changes, begun: e.resolved != nil}
	e.count(r)
	return &Preview{
		Changes: p.changes, Repaired: r.Repaired, Drift: slices.Clone(e.drift), Plan: plan,
		Refused: p.refused, Conflicts: slices.Collect(p.changes.New.Conflicts()),
	}, nil
}

// Observe reads everything that the kernel holds for the instance.
func (e *Engine) Observe(ctx context.Context) (*Observation, error) {
	if err := e.take(ctx); err != nil {
		return nil, fmt.Errorf("observe: %w", err)
	}
	defer e.give()
	e.phase.begin(ctx, "observe", PhaseObserve)
	err := e.observers.retry(ctx, "observe", func() error { return e.observe(ctx, nil) })
	if err != nil {
		return nil, e.phase.fail(err)
	}
	return &Observation{Table: e.kernel, Drift: slices.Clone(e.drift)}, nil
}

// Resync makes the engine read the kernel before the next apply, even if its integrity is intact.
// While [Engine.Run] is running, its next check reads the kernel and repairs what others did.
func (e *Engine) Resync() { e.resync.Store(true) }

// Cleanup removes every trace of the instance from the kernel. Flows that its services began go on.
// No state is wanted any more until the next Set or Apply, also for [Engine.Run].
func (e *Engine) Cleanup(ctx context.Context) (Stats, error) {
	if err := e.take(ctx); err != nil {
		return Stats{}, fmt.Errorf("cleanup: %w", err)
	}
	defer e.give()
	rev := e.progress.ask(servicemodel.State{}, false)
	e.phase.begin(ctx, "cleanup", PhaseCleanup)
	e.held, e.notified = newHeld(e.backend), nil
	stats, err := e.cleanup(ctx, e.backend)
	if err != nil {
		err = e.failed(ctx, "cleanup", rev, err)
		e.update(func(*Status) { e.progress.tried, e.progress.err = rev, err })
		return stats, err
	}
	e.update(func(s *Status) {
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

// cleanup removes everything that a backend holds.
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

// turn is a lock. A context can end the wait for it. Waiters get it in the order of their calls.
type turn chan struct{}

func newTurn() turn { return make(turn, 1) }

// errNoBackend says that an engine or parts have no backend.
var errNoBackend = errors.New("there is no backend")

// take waits for the turn. give ends it. It returns the context's error. A context that has ended
// gets no turn, not even a free one.
func (t turn) take(ctx context.Context) error {
	if t == nil {
		return errNoBackend
	}
	if err := wait.Ended(ctx); err != nil {
		return fmt.Errorf("wait for the turn: %w", err)
	}
	select {
	case t <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the turn: %w", wait.Ended(ctx))
	}
}

func (t turn) give() { <-t }
