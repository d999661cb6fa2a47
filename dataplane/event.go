package dataplane

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/internal/logkey"
	"github.com/kernlb/kernlb/servicemodel"
)

// Observer is called for each event of an engine or of [Parts], one event at a time. The engine or
// Parts wait for it, so it must return soon and leave long work to another goroutine. It may call
// [Engine.Set], [Engine.Resync], [Engine.Status], [Engine.Subscribe] and [Parts.Subscribe]. Any
// other method would wait for the observer forever, so it fails at once if the observer passes it
// ctx. ctx is the context of the call that caused the event, as extended by [Config.Span]. A
// goroutine that calls the engine later needs a different context.
type Observer func(ctx context.Context, ev Event)

// Event is one of [Applied], [Refused], [ClaimConflict], [Warned], [Repaired],
// [RepairDelayed], [RepairUndone], [WriteConflict], [FlowsCleaned], [EndpointDrained], [Settled],
// [Failed], [WatchFailed], [Switched] or [CleanedUp]. [Parts.Subscribe] lists the events of
// [Parts].
type Event interface{ event() }

// Applied is a successful apply or change of parts, even if nothing changed (see [Result.Stats]).
// [Result.Phases] contains the time of each phase.
type Applied struct{ *Result }

// Refused is a service that an apply left out as a whole or in part, unless the previous apply left
// it out for the same reason. It precedes Applied or Switched.
type Refused struct {
	Backend string // the backend's name
	Refusal
}

// PartRefused is a part that [Parts.Apply] or [Parts.ApplyAll] refused as a whole. Err joins the
// problems, like the error of Apply. PartRefused precedes the Applied of ApplyAll.
type PartRefused struct {
	Backend string // the backend's name
	Owner   string // the owner of the part
	Err     error
}

// ClaimConflict is an address that several services claim. It is emitted if the conflict is new or
// has changed since the previous apply. It precedes Applied or Switched.
type ClaimConflict struct{ servicemodel.Conflict }

// Warned is a warning about the applied state. The engine emits it only if the previous apply did
// not have the same warning; parts emit their warnings with each change. It precedes Applied or
// Switched.
type Warned struct{ servicemodel.Warning }

// Repaired is an apply that repaired the kernel: it undid changes by other programs
// ([Result.IsRepair]), or removed drift that the first apply found ([Result.Drift]). It precedes
// Applied.
type Repaired struct{ *Result }

// RepairDelayed says that another program keeps undoing repairs, so the next repair waits. It is
// emitted each time a series of delayed repairs begins.
type RepairDelayed struct{}

// RepairUndone names the program that changed the backend's objects while repairs waited. It is
// emitted at most once after each RepairDelayed, if the backend is a [backends.Blamer] and the
// kernel names the program.
type RepairUndone struct {
	Backend string // the backend's name
	backends.Program
}

// WriteConflict says that another program changed the kernel while the engine read or wrote. The
// engine then starts over, or gives up after the last try. Err matches [kernelerr.ErrConflict].
type WriteConflict struct {
	Doing string // such as "apply", and for parts "read and commit"
	Try   int    // from 1
	Err   error
}

// FlowsCleaned reports stale flows that [Flows] deleted. It precedes Settled or Applied.
type FlowsCleaned struct{ backends.Cleaned }

// EndpointDrained is a draining endpoint that has no connections left: those that were open at the
// deadline have been reset. It precedes Settled or Applied.
type EndpointDrained struct{ backends.Drained }

// Settled is a successful call of [Engine.Settle] by Run or by the program. An Applied includes the
// work that its apply settled. Both events mean that no failed work is left, unless Unsettled of
// Applied is set.
type Settled struct {
	Next     time.Duration // time until more work is due; 0 means that no work is left
	Duration time.Duration
}

// Failed is a failure, which [Engine.Run] retries. A program that called the engine also gets the
// error. If later work failed, it gets [Result.Unsettled] instead: Failed then follows Applied or
// Switched, and the kernel has the state.
type Failed struct {
	// Doing is the operation: "apply", "apply changes", "settle", "switch" or "cleanup"; for parts,
	// "apply the part", "apply the parts", "remove the parts", "keep parts", "configure parts" or
	// "settle parts".
	Doing    string
	Owners   []string // the owners of the parts, as far as they are known
	Backend  string   // the name of the engine's backend at that time
	Phase    Phase    // the phase that failed
	Phases   Phases   // the time of each phase, except phases that Applied has reported
	Revision Revision // of the state that should have been applied
	Err      error
}

// WatchFailed says that a [backends.Watcher] failed. Run watches again after [RunOptions.RetryMax].
type WatchFailed struct{ Err error }

// Switched says that [Engine.Switch] changed the backend, with the result of the new backend. It is
// emitted instead of [Applied]. Changes is nil if no state is desired.
type Switched struct {
	From, To string // names of backends
	*Result
}

// CleanedUp is a successful [Engine.Cleanup].
type CleanedUp struct {
	Backend string         // the backend's name
	Phases  Phases         // the time of each phase
	Stats   backends.Stats // what was sent to the kernel
}

func (Applied) event()         {}
func (Refused) event()         {}
func (PartRefused) event()     {}
func (ClaimConflict) event()   {}
func (Warned) event()          {}
func (Repaired) event()        {}
func (RepairDelayed) event()   {}
func (RepairUndone) event()    {}
func (WriteConflict) event()   {}
func (FlowsCleaned) event()    {}
func (EndpointDrained) event() {}
func (Settled) event()         {}
func (Failed) event()          {}
func (WatchFailed) event()     {}
func (Switched) event()        {}
func (CleanedUp) event()       {}

type observers struct {
	mu   sync.Mutex
	list []*Observer // not changed in place
}

// Subscribe registers an observer for future events of the engine. [Engine.Status] reports earlier
// outcomes. Calling unsubscribe removes the observer, but does not stop a call in progress.
func (e *Engine) Subscribe(o Observer) (unsubscribe func()) { return e.observers.add(o) }

// add adds an observer, unless it is nil. Calling remove removes it.
func (o *observers) add(f Observer) (remove func()) {
	if f == nil {
		return func() {}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.list = append(slices.Clip(o.list), &f)
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.list = slices.DeleteFunc(slices.Clone(o.list), func(g *Observer) bool { return g == &f })
	}
}

func (o *observers) emit(ctx context.Context, ev Event) {
	o.mu.Lock()
	list := o.list
	o.mu.Unlock()
	for _, f := range list {
		(*f)(ctx, ev)
	}
}

// noticing returns a context whose notices ([backends.Notify]) reach all observers as events. If a
// notice does not name its service, the table supplies it.
func (o *observers) noticing(ctx context.Context, t *servicemodel.Table) context.Context {
	return backends.WithNotices(ctx, func(ctx context.Context, n backends.Notice) {
		switch n := n.(type) {
		case backends.Cleaned:
			o.emit(ctx, FlowsCleaned{n})
		case backends.Drained:
			n.Service = cmp.Or(n.Service, serviceOf(t, n.Frontend))
			o.emit(ctx, EndpointDrained{n})
		}
	})
}

// serviceOf returns the service of a frontend, which may answer at any address of the node.
func serviceOf(t *servicemodel.Table, k servicemodel.FrontendKey) (n servicemodel.PortName) {
	node := k
	node.Addr = netip.IPv6Unspecified()
	if k.Addr.Is4() {
		node.Addr = netip.IPv4Unspecified()
	}
	if f := cmp.Or(t.Frontend(k), t.Frontend(node)); f != nil {
		n = f.Service
	}
	return n
}

// logTo returns an observer that logs the important events. A failure that lasts until a person
// acts is logged once.
func logTo(log *slog.Logger) Observer {
	var stays atomic.Value // the text of the last such failure
	stays.Store("")
	var started atomic.Bool
	return func(ctx context.Context, ev Event) {
		switch ev := ev.(type) {
		case Applied:
			stays.Store("")
			logAdopted(ctx, log, ev.Result, &started)
			logApplied(ctx, log, ev.Result)
		case Refused:
			if ev.Family != 0 {
				log.WarnContext(ctx, "address family left out", logkey.Backend, ev.Backend,
					logkey.Family, ev.Family.String(), logkey.Reason, ev.Err)
				return
			}

			what := "service refused"
			if len(ev.Endpoints) > 0 {
				what = "endpoints left out"
			} else if ev.Kept {
				what = "service refused, and left as it was"
			}

			log.WarnContext(ctx, what, logkey.Backend, ev.Backend, logkey.Service,
				ev.Service.String(), logkey.Reason, ev.Err)
		case PartRefused:
			log.WarnContext(ctx, "part refused", logkey.Backend, ev.Backend, logkey.Owner, ev.Owner,
				logkey.Reason, ev.Err)
		case ClaimConflict:
			log.WarnContext(ctx, "address claimed twice", logkey.Address, ev.Key.String(),
				logkey.Winner, ev.Winner.String(), logkey.Loser, ev.Loser.String())
		case Warned:
			log.WarnContext(ctx, "state warning", logkey.Service, ev.Service.String(), logkey.Field,
				ev.Field, logkey.Kind, string(ev.Kind), logkey.Reason, ev.Reason)
		case Repaired:
			logRepaired(ctx, log, ev.Result)
		case RepairDelayed:
			log.WarnContext(ctx, "another program keeps undoing repairs: the next one waits")
		case RepairUndone:
			log.WarnContext(ctx, "repair undone", logkey.Backend, ev.Backend, logkey.Program,
				ev.Name, logkey.Thread, ev.Thread)
		case Failed:
			if !waitsForAPerson(ev.Err) || stays.Swap(ev.Err.Error()) != ev.Err.Error() {
				logFailed(ctx, log, ev)
			}
		case WatchFailed:
			log.ErrorContext(ctx, "watch failed", logkey.Error, ev.Err)
		case Switched:
			log.InfoContext(ctx, "switched", logkey.From, ev.From, logkey.To, ev.To,
				logkey.Messages, ev.Stats.Messages, logkey.Bytes, ev.Stats.Bytes, logkey.Duration,
				ev.Duration)
		case CleanedUp:
			log.InfoContext(ctx, "cleaned up", logkey.Backend, ev.Backend, logkey.Messages,
				ev.Stats.Messages, logkey.Bytes, ev.Stats.Bytes, logkey.Duration, ev.Stats.Duration)
		case WriteConflict:
			log.DebugContext(ctx, "another writer came between", logkey.Doing, ev.Doing,
				logkey.Try, ev.Try, logkey.Error, ev.Err)
		case Settled:
			log.DebugContext(ctx, "settled", logkey.Next, ev.Next, logkey.Duration, ev.Duration)
		}
	}
}

// waitsForAPerson reports whether retries of the same state fail until a person acts.
func waitsForAPerson(err error) bool {
	return errors.Is(err, ErrRefused) || errors.Is(err, backends.ErrCollision)
}

func logFailed(ctx context.Context, log *slog.Logger, ev Failed) {
	if errors.Is(ev.Err, ErrNotApproved) {
		log.WarnContext(ctx, ev.Doing+" not approved", logkey.Backend, ev.Backend,
			of(nil, ev.Revision), logkey.Reason, ev.Err)
	} else if !errors.Is(ev.Err, context.Canceled) { // the program ends
		log.ErrorContext(ctx, ev.Doing+" failed", logkey.Backend, ev.Backend,
			of(ev.Owners, ev.Revision), logkey.Phase, ev.Phase.String(), logkey.Error, ev.Err)
	}
}

// logAdopted logs what the first apply of an engine found in the kernel, if there was anything.
func logAdopted(ctx context.Context, log *slog.Logger, r *Result, started *atomic.Bool) {
	held := r.Changes.Old
	if started.Swap(true) || len(r.Owners) > 0 || held.Len() == 0 ||
		!log.Enabled(ctx, slog.LevelInfo) {
		return
	}
	services := map[servicemodel.Name]bool{}
	for f := range held.Frontends() {
		services[f.Service.Name] = true
	}

	// The pools of a service port follow one another, so a set of all endpoints is not needed.
	endpoints, port, ofPort := 0, servicemodel.PortName{}, map[netip.AddrPort]bool{}
	for p := range held.Pools() {
		if p.ID.Service != port {
			port = p.ID.Service
			clear(ofPort)
		}
		for _, slot := range p.Slots {
			if slot.Endpoint.IsValid() && !ofPort[slot.Endpoint] {
				ofPort[slot.Endpoint] = true
				endpoints++
			}
		}
	}

	log.InfoContext(ctx, "adopted", logkey.Backend, r.Backend, logkey.Services, len(services),
		logkey.Frontends, held.Len(), logkey.Endpoints, endpoints,
		logkey.Added, r.Counts.Added, logkey.Changed, r.Counts.Changed,
		logkey.Removed, r.Counts.Removed, logkey.Objects, len(r.Drift))
}

// logApplied logs the changes, at debug level if they are only steps of slow starts. The repairs
// are logged in a separate line.
func logApplied(ctx context.Context, log *slog.Logger, r *Result) {
	level := slog.LevelDebug
	if r.Stats.Messages > 0 && !r.Step && (r.Counts != servicemodel.Counts{} || !r.IsRepair()) {
		level = slog.LevelInfo
	}
	log.Log(ctx, level, "applied", logkey.Backend, r.Backend, of(r.Owners, r.Revision),
		logkey.Added, r.Counts.Added, logkey.Changed, r.Counts.Changed,
		logkey.Removed, r.Counts.Removed, logkey.Messages, r.Stats.Messages,
		logkey.Bytes, r.Stats.Bytes, logkey.Duration, r.Duration)
}

// of returns the subject of an event: the owners of parts, or the revision of an engine.
func of(owners []string, r Revision) slog.Attr {
	if len(owners) > 0 {
		return slog.Any(logkey.Owners, owners)
	}
	return slog.Uint64(logkey.Revision, uint64(r))
}

// firstRepair is the first thing that a repair restored or removed, in words. It is empty if the
// apply also made changes that were requested.
func (r *Result) firstRepair() string {
	switch {
	case len(r.Drift) > 0:
		return r.Drift[0]
	case r.Counts != servicemodel.Counts{}:
		return ""
	}
	return firstChange(r.Changes)
}

// firstChange is the first change of a change set, in words: of a frontend, if there is one.
func firstChange(c *servicemodel.ChangeSet) string {
	first := servicemodel.ChangeSet{Old: c.Old, New: c.New,
		Frontends:  c.Frontends[:min(1, len(c.Frontends))],
		Pools:      c.Pools[:min(1, len(c.Pools))],
		ClusterIPs: c.ClusterIPs[:min(1, len(c.ClusterIPs))],
		Hairpins:   c.Hairpins[:min(1, len(c.Hairpins))]}
	if first.Empty() {
		first.Rules = c.Rules
	}
	line, _, _ := strings.Cut(first.String(), "\n")
	return line
}

func logRepaired(ctx context.Context, log *slog.Logger, r *Result) {
	attrs := []any{logkey.Backend, r.Backend, logkey.Added, r.Repaired.Added, logkey.Changed,
		r.Repaired.Changed, logkey.Removed, r.Repaired.Removed, logkey.Objects, len(r.Drift),
		logkey.Duration, r.Duration}
	if first := r.firstRepair(); first != "" {
		attrs = append(attrs, logkey.First, first)
	}
	log.WarnContext(ctx, "repaired", attrs...)
}
