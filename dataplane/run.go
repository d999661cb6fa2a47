package dataplane

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/kernlb/kernlb/servicemodel"
)

// RunOptions tunes [Engine.Run]. A nil *RunOptions is the zero RunOptions.
type RunOptions struct {
	// MinInterval is the least time between the end of one apply and the start of the next; states
	// that arrive meanwhile collapse into the newest. A state that comes after a quiet time does
	// not wait. Zero means none: an apply costs little. It is the minSyncPeriod of kube-proxy.
	MinInterval time.Duration
	// Burst is how many applies may follow one another without MinInterval between them after a
	// quiet time; one more comes back with each MinInterval. Zero means 1.
	Burst int
	// RetryMin and RetryMax bound the time until a failed apply or Settle is tried again; it
	// doubles with each failure, and is up to a quarter longer at random, so that the programs of
	// many nodes do not try again at the same time. Zero means 100 ms and 30 s. A RetryMax below
	// RetryMin counts as RetryMin. MinInterval is kept here too. A new state does not wait for the
	// retry.
	RetryMin, RetryMax time.Duration
	// Resync is how often the kernel is read and compared in full when nothing else happens,
	// MinInterval being kept. Zero means 5 minutes, negative never. It is the syncPeriod of
	// kube-proxy.
	Resync time.Duration
	// Look is how often the kernel is asked, at the cost of a request or two, whether it still
	// holds what it should; what others did is then put right by difference. Zero means 250 ms,
	// negative never. Where others undo it again and again, repairs take no more than a tenth of
	// the time, and a second one of the same kind waits at least a second once five came in a row.
	Look time.Duration
	// Done, if not nil, is called after each apply with its result, or its error, or both if the
	// error is [ErrUnsettled]; and with a nil result after each Settle or [Watcher] that failed.
	// Services that an apply refused are in its result; the next apply tries them again, at the
	// latest with the next Resync.
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
	r.Burst = max(1, r.Burst)
	if r.Look == 0 {
		r.Look = 250 * time.Millisecond
	}
	if r.Done == nil {
		r.Done = func(*Result, error) {}
	}
	return r
}

// Run applies the states that it receives until the channel is closed or the context is done. Where
// several states wait, it applies the newest and skips the others. It tries a failed apply again,
// with the newest state, and does the work that applies leave to a later time when it is due. If
// the backend is a [Watcher], Run applies the state again when what it watches has changed. Run
// works in the caller's goroutine; the goroutine that watches ends before Run returns. Run returns
// nil when the channel was closed and the last state was applied, otherwise the context's error.
// Work that is not due by then is left: to finish it, call [Engine.Settle] until it returns 0.
func (e *Engine) Run(ctx context.Context, states <-chan servicemodel.State,
	opts *RunOptions) error {
	l := &loop{engine: e, opts: opts.withDefaults(), states: states}
	l.retry, l.settleRetry = l.opts.RetryMin, l.opts.RetryMin
	l.timer, l.settle = time.NewTimer(forever), time.NewTimer(forever)
	defer l.timer.Stop()
	defer l.settle.Stop()
	l.watch = newWatch(ctx, e.current(), l.opts.RetryMax)
	defer func() { l.watch.close() }()
	l.repairs = newRepairs(l.opts.Look, e.log)
	defer l.repairs.timer.Stop()
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
	// repairs says when to look whether others changed the kernel.
	repairs *repairs

	state  servicemodel.State
	have   bool // a state was received
	want   bool // it is not applied yet
	closed bool
	retry  time.Duration // until the next attempt after a failure
	// paid is when MinInterval has passed for all applies there were, one after the other.
	paid time.Time

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
	case <-l.repairs.timer.C:
		return l.look(ctx), nil
	case <-l.engine.switched:
		l.watch.close()
		l.watch = newWatch(ctx, l.engine.current(), l.opts.RetryMax)
		l.settle.Reset(0)
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
	return l.apply(ctx, false)
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
	if !l.want {
		return 0
	}
	return max(0, time.Until(l.paid.Add(-time.Duration(l.opts.Burst-1)*l.opts.MinInterval)))
}

func (l *loop) resyncWait() time.Duration {
	if l.opts.Resync < 0 || !l.have {
		return forever
	}
	return max(l.opts.Resync, l.opts.MinInterval)
}

// apply applies the newest state and returns how long to wait for the next event. One that only
// looks whether there is something to do is not told of if there was nothing.
func (l *loop) apply(ctx context.Context, look bool) time.Duration {
	r, err := l.engine.Apply(ctx, l.state)
	l.pay()
	if r != nil {
		l.settleIn(r.Settle, err)
		if r.IsRepair() {
			l.repairs.ration.Spend(r.Duration)
		}
	}
	if !look || err != nil || r.Messages > 0 {
		l.opts.Done(r, err)
	}
	if r == nil {
		wait := max(jitter(l.retry), l.opts.MinInterval)
		l.retry = min(2*l.retry, l.opts.RetryMax)
		return wait
	}
	l.want, l.retry = false, l.opts.RetryMin
	return l.resyncWait()
}

// pay notes that an apply has ended.
func (l *loop) pay() {
	now := time.Now()
	if l.paid.Before(now) {
		l.paid = now
	}
	l.paid = l.paid.Add(l.opts.MinInterval)
}

// jitter returns d, or up to a quarter more.
func jitter(d time.Duration) time.Duration { return d + rand.N(d/4+1) }

// settleNow does the work that is due.
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
		next = jitter(l.settleRetry)
		l.settleRetry = min(2*l.settleRetry, l.opts.RetryMax)
	} else {
		l.settleRetry = l.opts.RetryMin
	}
	if next == 0 {
		next = forever
	}
	l.settle.Reset(next)
}
