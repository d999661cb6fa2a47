package dataplane

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kernlb/kernlb/servicemodel"
)

// Observer is told what an engine or [Parts] do, one event after the other. It is called while they
// work, so it returns soon, and hands to another goroutine what takes long. It may call
// [Engine.Set], [Engine.Resync], [Engine.Status], [Engine.Subscribe] and [Parts.Subscribe]; their
// other methods would wait for the observer. The context is that of the call that made them act.
type Observer func(ctx context.Context, ev Event)

// Event is something that an engine did: [Applied], [Refused], [ClaimConflict], [Repaired],
// [RepairDelayed], [RepairUndone], [WriteConflict], [Settled], [Failed], [WatchFailed], [Switched]
// or [CleanedUp]; or something that [Parts] did, see [Parts.Subscribe].
type Event interface{ event() }

// Applied is an apply that succeeded, or a change of parts, whether it found something to do or
// not: Messages tells. [Result.Phases] says where its time went.
type Applied struct{ *Result }

// Refused is a service that an apply left out, and that the apply before did not leave out for the
// same reason. It comes before Applied.
type Refused struct {
	Backend string // the backend's name
	Refusal
}

// PartRefused is a part that [Parts.Apply] refused as a whole. Err joins what is wrong with it, as
// the error of Apply does.
type PartRefused struct {
	Backend string // the backend's name
	Owner   string // whose part it is
	Err     error
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

// RepairUndone says which program changed what the backend has while repairs waited. It comes at
// most once after each RepairDelayed, if the backend is a [Witness] and the kernel tells.
type RepairUndone struct {
	Backend string // the backend's name
	Program
}

// WriteConflict says that another program changed the kernel while the engine read or wrote, so
// that it begins again, or gives up if this was the last try. Err matches [ErrConflict].
type WriteConflict struct {
	Doing string // such as "apply", and of parts "read and commit"
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
	// Doing is "apply", "apply changes", "settle", "switch" or "cleanup", and of parts "apply the
	// part", "remove the parts", "keep parts" or "settle parts".
	Doing    string
	Owners   []string // whose parts they are, as far as that is known
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
func (PartRefused) event()   {}
func (ClaimConflict) event() {}
func (Repaired) event()      {}
func (RepairDelayed) event() {}
func (RepairUndone) event()  {}
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
func (e *Engine) Subscribe(o Observer) (unsubscribe func()) { return e.observers.add(o) }

// add adds an observer. Calling remove ends that.
func (o *observers) add(f Observer) (remove func()) {
	p := &f
	o.change(func(l []*Observer) []*Observer { return append(l, p) })
	return func() {
		o.change(func(l []*Observer) []*Observer {
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

// retry is the function of that name, and tells of conflicts.
func (o *observers) retry(ctx context.Context, doing string, f func() error) error {
	try := 0
	return retry(ctx, doing, func() error {
		err := f()
		if try++; errors.Is(err, ErrConflict) && o.any() {
			o.emit(ctx, WriteConflict{Doing: doing, Try: try, Err: err})
		}
		return err
	})
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
