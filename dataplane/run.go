package dataplane

import (
	"context"
	"time"

	"github.com/kernlb/kernlb/servicemodel"
)

// RunOptions tunes [Engine.Run]. A nil *RunOptions is the zero RunOptions.
type RunOptions struct {
	// MinInterval is the least time between the end of one apply and the start of the next; states
	// that arrive meanwhile collapse into the newest. Zero means none: an apply costs little.
	MinInterval time.Duration
	// RetryMin and RetryMax bound the time until a failed apply or Settle is tried again; it
	// doubles with each failure. Zero means 100 ms and 30 s. A RetryMax below RetryMin counts as
	// RetryMin. MinInterval is kept here too. A new state does not wait for the retry.
	RetryMin, RetryMax time.Duration
	// Resync is how often the kernel is read and compared in full when nothing else happens,
	// MinInterval being kept. Zero means 5 minutes, negative never.
	Resync time.Duration
	// Done, if not nil, is told of each apply: its result, or its error, or both if the error is
	// [ErrUnsettled]; and of each Settle or [Watcher] that failed, with a nil result. Services that
	// an apply refused are in its result; they are tried again with the next apply, at the latest
	// with the next Resync.
	Done func(*Result, error)
}

func (o *RunOptions) withDefaults() RunOptions {
	var r RunOptions
	if o != nil {
		r = *o
	}
	if r.RetryMin <= 0 {
		r.RetryMin = 100 * time.Millisecond
	}
	if r.RetryMax <= 0 {
		r.RetryMax = 30 * time.Second
	}
	r.RetryMax = max(r.RetryMin, r.RetryMax)
	if r.Resync == 0 {
		r.Resync = 5 * time.Minute
	}
	if r.Done == nil {
		r.Done = func(*Result, error) {}
	}
	return r
}

// Run applies the states it receives, the newest first where several wait, until the channel is
// closed or the context is done. A failed apply is tried again, with the newest state. Work that
// applies left to time is done when it is due. If the backend is a [Watcher], the state is applied
// again when what it watches changed. Run works in the caller's goroutine; one that watches ends
// before Run returns. It returns nil when the channel was closed and the last state applied,
// otherwise the context's error. What is not due by then is left undone: to see it through, call
// [Engine.Settle] until it returns 0.
func (e *Engine) Run(ctx context.Context, states <-chan servicemodel.State,
	opts *RunOptions) error {
	l := &loop{engine: e, opts: opts.withDefaults(), states: states}
	l.retry, l.settleRetry = l.opts.RetryMin, l.opts.RetryMin
	l.timer, l.settle = time.NewTimer(forever), time.NewTimer(forever)
	defer l.timer.Stop()
	defer l.settle.Stop()
	l.watch = newWatch(ctx, e.backend, l.opts.RetryMax)
	defer l.watch.close()
	return l.run(ctx)
}

const (
	// forever is a wait that does not end.
	forever = 1<<63 - 1
	// asBefore leaves a timer as it is.
	asBefore = -1
)

// loop is the state of one Run.
type loop struct {
	engine *Engine
	opts   RunOptions
	states <-chan servicemodel.State
	timer  *time.Timer // the next apply
	settle *time.Timer // the next Settle
	watch  *watch

	state  servicemodel.State
	have   bool // a state was received
	want   bool // it is not applied yet
	closed bool
	retry  time.Duration // until the next attempt after a failure
	last   time.Time     // end of the last apply

	settleRetry time.Duration // until the next attempt after a Settle that failed
}

func (l *loop) run(ctx context.Context) error {
	wait := l.resyncWait()
	for !l.closed || l.want {
		if wait != asBefore {
			l.timer.Reset(wait)
		}
		var err error
		if wait, err = l.next(ctx); err != nil {
			return err
		}
	}
	return nil
}

// next waits for the next event and deals with it. It returns how long after that the timer of the
// next apply fires, or asBefore.
func (l *loop) next(ctx context.Context) (wait time.Duration, err error) {
	select {
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	case <-l.settle.C:
		l.settleNow(ctx)
	case err := <-l.watch.failed:
		l.opts.Done(nil, err)
	case <-l.watch.changed:
		if l.have && !l.want {
			l.timer.Stop()
			l.want = true
			return l.minWait(), nil
		}
	case s, ok := <-l.states:
		l.timer.Stop()
		l.receive(s, ok)
		return l.minWait(), nil
	case <-l.timer.C:
		return l.fire(ctx), nil
	}
	return asBefore, nil
}

// fire applies the newest state: again, with a reading of the kernel, if it is applied already.
func (l *loop) fire(ctx context.Context) time.Duration {
	if l.have && !l.want {
		l.engine.Resync()
		l.want = true
	}
	if !l.want {
		return l.resyncWait()
	}
	return l.apply(ctx)
}

// receive takes a state and those that wait behind it.
func (l *loop) receive(s servicemodel.State, ok bool) {
	for {
		if !ok {
			l.closed, l.states = true, nil
			return
		}
		l.state, l.have, l.want = s, true, true
		select {
		case s, ok = <-l.states:
		default:
			return
		}
	}
}

func (l *loop) minWait() time.Duration {
	if l.last.IsZero() || !l.want {
		return 0
	}
	return max(0, l.opts.MinInterval-time.Since(l.last))
}

func (l *loop) resyncWait() time.Duration {
	if l.opts.Resync < 0 || !l.have {
		return forever
	}
	return max(l.opts.Resync, l.opts.MinInterval)
}

// apply applies the newest state and returns how long to wait for the next event.
func (l *loop) apply(ctx context.Context) time.Duration {
	r, err := l.engine.Apply(ctx, l.state)
	l.last = time.Now()
	if r != nil {
		l.settleIn(r.Settle, err)
	}
	l.opts.Done(r, err)
	if r == nil {
		wait := max(l.retry, l.opts.MinInterval)
		l.retry = min(2*l.retry, l.opts.RetryMax)
		return wait
	}
	l.want, l.retry = false, l.opts.RetryMin
	return l.resyncWait()
}

// settleNow does what is due.
func (l *loop) settleNow(ctx context.Context) {
	next, err := l.engine.Settle(ctx)
	l.settleIn(next, err)
	if err != nil {
		l.opts.Done(nil, err)
	}
}

// settleIn sets the timer of the next Settle, given what the last one returned.
func (l *loop) settleIn(next time.Duration, err error) {
	if err != nil {
		next = l.settleRetry
		l.settleRetry = min(2*l.settleRetry, l.opts.RetryMax)
	} else {
		l.settleRetry = l.opts.RetryMin
	}
	if next == 0 {
		next = forever
	}
	l.settle.Reset(next)
}
