package dataplane

import (
	"context"
	"time"

	"github.com/kernlb/kernlb/servicemodel"
)

// RunOptions tunes [Engine.Run]. A nil *RunOptions is the zero RunOptions.
type RunOptions struct {
	// MinInterval is the least time between the end of one apply and the start of the next; states that arrive meanwhile collapse into the newest.
	// Zero means none: an apply costs little.
	MinInterval time.Duration
	// RetryMin and RetryMax bound the time until a failed apply is tried again; it doubles with each failure. Zero means 100 ms and 30 s.
	// A RetryMax below RetryMin counts as RetryMin. MinInterval is kept here too. A new state does not wait for the retry.
	RetryMin, RetryMax time.Duration
	// Resync is how often the kernel is read and compared in full when nothing else happens, MinInterval being kept. Zero means
	// 5 minutes, negative never.
	Resync time.Duration
	// Done, if not nil, is told of each apply: its result, or its error.
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

// Run applies the states it receives, the newest first where several wait, until the channel is closed or the context is done. A failed apply is tried
// again, with the newest state. It runs in the caller's goroutine and starts no other. It returns nil when the channel was closed
// and the last state applied, otherwise the context's error.
func (e *Engine) Run(ctx context.Context, states <-chan servicemodel.State, opts *RunOptions) error {
	l := &loop{engine: e, opts: opts.withDefaults(), states: states}
	l.retry = l.opts.RetryMin
	l.timer = time.NewTimer(0)
	defer l.timer.Stop()
	<-l.timer.C
	return l.run(ctx)
}

// loop is the state of one Run.
type loop struct {
	engine *Engine
	opts   RunOptions
	states <-chan servicemodel.State
	timer  *time.Timer

	state  servicemodel.State
	have   bool // a state was received
	want   bool // it is not applied yet
	closed bool
	retry  time.Duration // until the next attempt after a failure
	last   time.Time     // end of the last apply
}

func (l *loop) run(ctx context.Context) error {
	wait := l.resyncWait()
	for {
		if l.closed && !l.want {
			return nil
		}
		l.timer.Reset(wait)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case s, ok := <-l.states:
			l.timer.Stop()
			l.receive(s, ok)
			wait = l.minWait()
			continue
		case <-l.timer.C:
		}
		if l.have && !l.want {
			l.engine.Resync()
			l.want = true
		}
		wait = l.resyncWait()
		if l.want {
			wait = l.apply(ctx)
		}
	}
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
		return 1<<63 - 1
	}
	return max(l.opts.Resync, l.opts.MinInterval)
}

// apply applies the newest state and returns how long to wait for the next event.
func (l *loop) apply(ctx context.Context) time.Duration {
	r, err := l.engine.Apply(ctx, l.state)
	l.last = time.Now()
	l.opts.Done(r, err)
	if err != nil {
		wait := max(l.retry, l.opts.MinInterval)
		l.retry = min(2*l.retry, l.opts.RetryMax)
		return wait
	}
	l.want, l.retry = false, l.opts.RetryMin
	return l.resyncWait()
}
