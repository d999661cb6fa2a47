package dataplane

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kernlb/kernlb/servicemodel"
)

// Observer is told what an engine does, one event after the other. It is called while the engine
// works, so it returns soon, and hands to another goroutine what takes long. It may call
// [Engine.Set], [Engine.Resync], [Engine.Status] and [Engine.Subscribe]; the engine's other methods
// would wait for the observer. The context is that of the call that made the engine act.
type Observer func(ctx context.Context, ev Event)

// Event is something that an engine did: [Applied], [Refused], [ClaimConflict], [Repaired],
// [RepairDelayed], [WriteConflict], [Settled], [Failed], [WatchFailed], [Switched] or [CleanedUp].
type Event interface{ event() }

// Applied is an apply that succeeded, whether it found something to do or not: Messages tells.
// [Result.Phases] says where its time went.
type Applied struct{ *Result }

// Refused is a service that an apply left out, and that the apply before did not leave out for the
// same reason. It comes before Applied.
type Refused struct {
	Backend string // the backend's name
	Refusal
}

// ClaimConflict is an address that several services claim and that was no conflict, or another
// one, in the apply before. It comes before Applied.
type ClaimConflict struct{ servicemodel.Conflict }

// Repaired is an apply that put something right that did not belong in the kernel: what others did
// ([Result.IsRepair]), or what the first apply found ([Result.Drift]). It comes before Applied.
type Repaired struct{ *Result }

// RepairDelayed says that somebody undoes repairs again and again, so that the next one waits. It
// comes once for each time that repairs begin to wait.
type RepairDelayed struct{}

// WriteConflict says that another program changed the kernel while the engine read or wrote, so
// that it begins again, or gives up if this was the last try. Err matches [ErrConflict].
type WriteConflict struct {
	Doing string // such as "apply"
	Try   int    // from 1
	Err   error
}

// Settled is a call of [Engine.Settle], by Run or by anybody, that succeeded. What an apply settles
// is told by Applied.
type Settled struct {
	Next     time.Duration // after what time there is more to do; 0 means that no work is left
	Duration time.Duration
}

// Failed is something that failed. [Engine.Run] tries it again; who called the engine has the error
// as well.
type Failed struct {
	Doing    string   // "apply", "apply changes", "settle", "switch" or "cleanup"
	Backend  string   // the name of the backend that the engine works with then
	Phase    Phase    // in which phase
	Phases   Phases   // how long each phase took, as far as Applied has not told it
	Revision Revision // of the state that was to be applied
	Err      error
}

// WatchFailed says that a [Watcher] failed. Run watches again after [RunOptions.RetryMax].
type WatchFailed struct{ Err error }

// Switched is a [Engine.Switch] that succeeded. The result is that of the new backend.
type Switched struct {
	From, To string // names of backends
	*Result
}

// CleanedUp is an [Engine.Cleanup] that succeeded.
type CleanedUp struct {
	Backend string // the backend's name
	Phases  Phases // how long each phase took
	Stats          // what was sent to the kernel
}

func (Applied) event()       {}
func (Refused) event()       {}
func (ClaimConflict) event() {}
func (Repaired) event()      {}
func (RepairDelayed) event() {}
func (WriteConflict) event() {}
func (Settled) event()       {}
func (Failed) event()        {}
func (WatchFailed) event()   {}
func (Switched) event()      {}
func (CleanedUp) event()     {}

// observers are those who listen. Who emits an event makes it only if somebody does.
type observers struct {
	mu   sync.Mutex // of changes
	list atomic.Pointer[[]*Observer]
}

// Subscribe adds an observer of what the engine does from now on; what became of things before is
// in [Engine.Status]. Calling unsubscribe ends that, except for a call that is under way.
func (e *Engine) Subscribe(o Observer) (unsubscribe func()) {
	p := &o
	e.observers.change(func(l []*Observer) []*Observer { return append(l, p) })
	return func() {
		e.observers.change(func(l []*Observer) []*Observer {
			return slices.DeleteFunc(l, func(q *Observer) bool { return q == p })
		})
	}
}

// change replaces the list by a changed copy.
func (o *observers) change(f func([]*Observer) []*Observer) {
	o.mu.Lock()
	defer o.mu.Unlock()
	var l []*Observer
	if old := o.list.Load(); old != nil {
		l = slices.Clone(*old)
	}
	if l = f(l); len(l) == 0 {
		o.list.Store(nil)
		return
	}
	o.list.Store(&l)
}

// any reports whether somebody listens.
func (o *observers) any() bool { return o.list.Load() != nil }

// emit tells everybody of an event.
func (o *observers) emit(ctx context.Context, ev Event) {
	if l := o.list.Load(); l != nil {
		for _, f := range *l {
			(*f)(ctx, ev)
		}
	}
}
