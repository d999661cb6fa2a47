package dataplane

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/internal/wait"
	"github.com/kernlb/kernlb/servicemodel"
)

// Config tunes an [Engine]. A nil *Config is the zero Config.
type Config struct {
	// Strict refuses the whole state if one of its services is refused. By default only that
	// service is left out, and everything else is applied; see [Engine.Apply].
	Strict bool
	// LeaveOutEndpoints leaves out only invalid endpoints, and serves the other endpoints of their
	// service. By default the whole service is left out. In both cases, Result.Refused names the
	// service and the endpoints, see [Refusal.Endpoints].
	LeaveOutEndpoints bool
	// Approve is called before each commit of [Engine.Apply], [Engine.Run], [Engine.ApplyChanges]
	// and [Engine.Switch], including repairs ([Preview.Repaired], [Preview.Drift]). It is not
	// called if nothing differs. If Approve returns an error, the kernel does not change, and the
	// call fails with that error ([ErrNotApproved]). [Engine.Cleanup] does not call Approve.
	// [Engine.Settle] calls it only for a step of slow starts. The engine and other writers of the
	// instance wait for Approve, so it must return soon. It may call only those methods of the
	// engine that an [Observer] may call. Each call costs as much as planning a commit. Nil
	// approves everything.
	//
	// After an error, Run calls Approve again when a program sets a new state, when the objects
	// that Run watches change, when another program changes the kernel's contents, or after
	// [RunOptions.RetryMax]. Until then, [Status.Err] has the error, [Status.PendingSince] is set
	// if a new state is waiting, and changes of services by other programs are not repaired. Each
	// error is also reported as an event [Failed].
	Approve func(context.Context, *Preview) error
	// Span is a tracing hook. It is called when a call of the engine begins, with the name "apply",
	// "apply changes", "plan", "observe", "settle", "switch" or "cleanup". The context that Span
	// returns is passed to observers, Approve, Flows and the backend, so an observer of [Applied]
	// can add the outcome to the span. Within that call, Span is called with this context for each
	// [Phase], with the name of the phase. The engine calls the returned function when the call or
	// phase ends, with the error, if any. Nil means no spans.
	Span func(ctx context.Context, name string) (context.Context, func(error))
	// KeepRefused serves a refused service by its last accepted definition, and by its current
	// endpoints if they are valid. If the backend refuses these endpoints, too, for example because
	// of their weights, the service keeps those accepted endpoints that still exist, with their
	// accepted weights. By default, or if no definition was accepted, the service is left out. In
	// all cases, Result.Refused names the service ([Refusal.Kept]).
	KeepRefused bool
	// Accepted has the accepted definitions of an earlier process. KeepRefused uses them until this
	// engine has accepted newer definitions. They come from [Status.Accepted], not from
	// [Status.State], which includes refused definitions. Without them, a restarted program leaves
	// refused services out.
	Accepted servicemodel.State
	// Logger gets a record for each apply that changed something, for drift, for each refused
	// service, and for each failure. At debug level it also gets the plan of each commit, which
	// costs as much as planning. docs/logs.md lists the records. Nil disables logging.
	Logger *slog.Logger
	// Node fills in the fields of the node that states leave unset. Nil means that states are
	// complete.
	Node NodeSource
	// Flows is notified of each change, and deletes the flows that the change made stale. If nil,
	// stale flows are not deleted.
	Flows Flows
}

// Engine makes the kernel match desired states, through one backend. Its methods are safe for
// concurrent use. Methods with a context take turns in the order of the calls. If the context ends
// before a method's turn, the method returns the context's error. Methods without a context return
// at once.
type Engine struct {
	cfg       Config
	turn      chan struct{}               // full during a call; nil without a backend
	unusable  error                       // why there is no backend
	switched  chan struct{}               // tells Run that the backend has changed
	grace     func(context.Context) error // wait.GracePeriod, except in tests
	progress  progress
	running   atomic.Bool // Run is under way
	resync    atomic.Bool // read the kernel before anything else
	observers observers

	// Only the call that has the turn uses the fields below.
	backend  backends.Backend
	former   []backends.Backend // of earlier switches, still to be cleaned up
	known    knowledge
	reported reported

	phase                 Phase
	callBegan, phaseBegan time.Time
	elapsed               Phases
	span                  context.Context // of the call, if Config.Span is set
	endCall, endPhase     func(error)     // nil outside of calls with a span
	failure, phaseFailure error           // of the call, and of its last phase
}

// reported holds the last reports: the table that the flows know, and the refused services, lost
// claims and warnings that the observers know.
type reported struct {
	table     *servicemodel.Table
	refused   []Refusal
	conflicts []servicemodel.Conflict
	warnings  servicemodel.Warnings
}

// New returns an engine for a backend. The caller closes the backend. Without a backend, as in the
// zero Engine, all methods with a context fail, except Wait and Finish. The same is true for a
// backend that hides another backend ([backends.Backend]).
func New(b backends.Backend, cfg *Config) *Engine {
	e := &Engine{}
	if e.unusable = unusable(b); e.unusable != nil {
		return e
	}
	e.open(b, *cmp.Or(cfg, &Config{}))
	return e
}

func (e *Engine) open(b backends.Backend, cfg Config) {
	e.cfg, e.backend, e.known = cfg, b, newKnowledge(servicemodel.State{})
	if cfg.KeepRefused {
		e.known.accepted = cfg.Accepted
	}
	e.turn, e.switched, e.grace = make(chan struct{}, 1), make(chan struct{}, 1), wait.GracePeriod
	e.progress.wake, e.progress.status.Backend = make(chan struct{}, 1), b.Name()
	e.progress.status.Accepted = e.known.accepted
	if cfg.Logger != nil {
		e.observers.add(logTo(cfg.Logger))
	}
}

// Plan returns the changes that Apply would make for the state, without making them. It fails as
// Apply would. The changes start from what any process can read from the kernel, so that another
// process can apply them ([Engine.ApplyChanges]). They lead to the final state, in which endpoints
// in slow start have their full weights.
func (e *Engine) Plan(ctx context.Context, s servicemodel.State) (*Preview, error) {
	ctx, err := e.begin(ctx, "plan", PhaseResolve)
	if err != nil {
		return nil, err
	}
	defer e.end()
	var r *Result
	err = e.retry(ctx, "plan", nil, func() (err error) {
		if r, err = e.compare(ctx, s, false); err != nil {
			return err
		}
		r.State = s
		if r.Changes.Empty() {
			return nil
		}
		return e.fromReading(ctx, r)
	})
	if err != nil {
		return nil, e.fail(err)
	}
	e.enter(PhaseCommit)
	p, err := e.preview(r, r.Changes)
	if err != nil {
		return nil, e.fail(err)
	}
	return p, nil
}

// preview describes the commit of c, which contains all or some changes of the result r.
func (e *Engine) preview(r *Result, c *servicemodel.ChangeSet) (*Preview, error) {
	plan, err := e.backend.Plan(c)
	return &Preview{Revision: r.Revision, State: r.State, Changes: c, Plan: plan,
		Repaired: r.Repaired, Warnings: r.Warnings, Drift: slices.Clone(e.known.drift),
		Refused: slices.Clone(r.Refused), Conflicts: slices.Clone(r.Conflicts)}, err
}

// Observe reads everything in the kernel that belongs to the instance.
func (e *Engine) Observe(ctx context.Context) (*backends.Observation, error) {
	ctx, err := e.begin(ctx, "observe", PhaseObserve)
	if err != nil {
		return nil, err
	}
	defer e.end()
	err = e.retry(ctx, "observe", nil, func() error { return e.observe(ctx, nil) })
	if err != nil {
		return nil, e.fail(err)
	}
	return &backends.Observation{Table: e.known.inKernel, Drift: slices.Clone(e.known.drift)}, nil
}

// Resync makes the engine read the kernel before the next apply, even if nothing suggests that
// another program changed it. While [Engine.Run] is running, its next check reads the kernel and
// repairs changes by other programs.
func (e *Engine) Resync() { e.resync.Store(true) }

// Cleanup removes every trace of the instance from the kernel. Open connections of its services
// continue only while another program, or another instance, has NAT rules in the network namespace.
// Without any, the kernel stops translating packets, and the connections break. Applying an empty
// state keeps them. After Cleanup, no state is desired until the next Set or Apply, even while
// [Engine.Run] is running.
func (e *Engine) Cleanup(ctx context.Context) (backends.Stats, error) {
	ctx, err := e.begin(ctx, "cleanup", PhaseCleanup)
	if err != nil {
		return backends.Stats{}, err
	}
	defer e.end()
	rev := e.progress.ask(servicemodel.State{}, false)
	e.forget()
	stats, err := e.cleanup(ctx, e.backend)
	if err = errors.Join(err, e.cleanupFormer(ctx)); err != nil {
		err = e.failed(ctx, Failed{Doing: "cleanup", Revision: rev, Err: err})
	}
	e.update(func(s *Status) {
		e.progress.tried, e.progress.err = rev, err
		if err == nil {
			s.Applied = rev
			s.setServices(&Result{})
			s.Unsettled = nil
			if e.cfg.Flows == nil { // otherwise flows may still drain
				s.Settle = time.Time{}
			}
		}
	})

	if err == nil {
		e.enter(PhaseCleanup)
		e.observers.emit(ctx, CleanedUp{Backend: e.backend.Name(), Phases: e.elapsed, Stats: stats})
	}

	return stats, err
}

// forget drops what the engine knows about the kernel. The next apply reads it, and reports
// everything.
func (e *Engine) forget() { e.known, e.reported = newKnowledge(e.known.accepted), reported{} }

// cleanup removes everything of a backend from the kernel.
func (e *Engine) cleanup(ctx context.Context, b backends.Backend) (stats backends.Stats,
	err error) {
	err = e.retry(ctx, "cleanup", b, func() (err error) {
		stats, err = b.Cleanup(ctx)
		return err
	})
	return stats, err
}
