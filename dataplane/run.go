package dataplane

import (
	"context"
	"math/rand/v2"
	"time"
)

// RunOptions tunes [Engine.Run]. A nil *RunOptions is the zero RunOptions.
type RunOptions struct {
	// MinInterval is the least time between the end of one apply of Run and the start of the next;
	// of the states that are set meanwhile the newest is applied. A state that comes after a quiet
	// time does not wait. Zero means none: an apply costs little. It is the minSyncPeriod of
	// kube-proxy.
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
	return r
}

// Run makes the kernel hold what [Engine.Set] and [Engine.Apply] ask for, the newest of it, until
// the context is done. It tries again what failed, with the newest state; repairs what others
// change; and does the work that applies leave to a later time when it is due. If the backend is a
// [Watcher], Run applies the state again when what it watches has changed; so it does for a
// [Config.Node].
//
// Run works in the caller's goroutine; goroutines that watch end before Run returns. It
// returns the context's error, or [ErrRunning] if another Run of the engine is under way. The
// kernel then stays as it is: what of the newest state is not in it, and what work is left, is in
// [Engine.Status]. [Engine.Finish], called before the context is ended, waits for both.
func (e *Engine) Run(ctx context.Context, opts *RunOptions) error {
	if !e.progress.run(true) {
		return ErrRunning
	}
	defer e.progress.run(false)
	l := &loop{engine: e, opts: opts.withDefaults()}
	l.retry, l.settleRetry = l.opts.RetryMin, l.opts.RetryMin
	l.timer, l.settle = time.NewTimer(forever), time.NewTimer(forever)
	defer l.timer.Stop()
	defer l.settle.Stop()
	l.watch = noWatch()
	defer func() { l.watch.close() }()
	l.repairs = newRepairs(l.opts.Look)
	defer l.repairs.timer.Stop()
	if err := l.watchBackend(ctx); err != nil {
		return err
	}
	for {
		l.follow()
		if err := l.next(ctx); err != nil {
			return err
		}
	}
}

// run notes that a Run begins, if it is the only one, or that it ends.
func (p *progress) run(begins bool) (ok bool) {
	p.update(func(s *Status) {
		if ok = !begins || !s.Running; ok {
			s.Running = begins
		}
	})
	return ok
}

// forever is a wait that does not end.
const forever = 1<<63 - 1

// loop is the state of one Run.
type loop struct {
	engine *Engine
	opts   RunOptions
	timer  *time.Timer // the next apply
	settle *time.Timer // the next Settle
	watch  *watch
	// repairs says when to look whether others changed the kernel.
	repairs *repairs

	seen  Revision // the newest revision that the timer was set for
	have  bool     // there is a state to hold
	want  bool     // it is to be applied: it is not in the kernel, or it is to be applied again
	again bool
	retry time.Duration // until the next attempt after a failure
	// paid is when MinInterval has passed for all applies there were, one after the other.
	paid time.Time

	settles     int           // how many calls of Settle the timer has heard of
	settleRetry time.Duration // until the next attempt after a Settle that failed
}

// next waits for the next event and deals with it.
func (l *loop) next(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-l.engine.progress.wake:
	case <-l.settle.C:
		// An error is told by an event, and the time of the next try is set by follow.
		_, _ = l.engine.Settle(ctx)
	case <-l.repairs.timer.C:
		l.look(ctx)
	case <-l.engine.switched:
		l.settle.Reset(0)
		return l.watchBackend(ctx)
	case t := <-l.watch.witnessed:
		l.heard(ctx, t)
	case err := <-l.watch.failed:
		l.tell(ctx, WatchFailed{err})
	case <-l.watch.changed:
		if l.have && !l.want {
			l.want, l.again = true, true
			l.timer.Reset(l.minWait())
		}
	case <-l.timer.C:
		if !l.want { // nothing else happened for so long
			l.engine.Resync()
			l.again = true
		}
		l.apply(ctx)
	}
	return nil
}

// watchBackend watches the node, what the engine's backend depends on, and no other backend any
// more.
func (l *loop) watchBackend(ctx context.Context) error {
	b, err := l.engine.current(ctx)
	if err != nil {
		return err
	}
	var watchers []Watcher
	if w, ok := b.(Watcher); ok {
		watchers = append(watchers, w)
	}
	if l.engine.node != nil {
		watchers = append(watchers, l.engine.node)
	}
	l.watch.close()
	noted := l.watch.changed
	l.watch = newWatch(ctx, l.opts.RetryMax, watchers)
	select {
	case <-noted: // what was noted last was about the node, perhaps
		l.watch.note()
	default:
	}
	return nil
}

// tell emits an event that is not part of any call of the engine.
func (l *loop) tell(ctx context.Context, ev Event) {
	if l.engine.take(ctx) == nil {
		defer l.engine.give()
		l.engine.observers.emit(ctx, ev)
	}
}

// follow sets the timers by what was asked for and done since the last time, by this loop or by
// others.
func (l *loop) follow() {
	p := &l.engine.progress
	p.mu.Lock()
	st, wants, settles, unsettled := p.status, p.wants, p.settles, p.unsettled
	p.mu.Unlock()
	if l.settles != settles {
		l.settles = settles
		l.settleAt(st.Settle, unsettled)
	}
	if l.seen == st.Wanted {
		return
	}
	l.seen, l.have, l.again = st.Wanted, wants, false
	if l.want = wants && st.Pending(); l.want {
		l.timer.Reset(l.minWait())
	} else {
		l.applied()
	}
}

// minWait returns how long MinInterval keeps the next apply waiting.
func (l *loop) minWait() time.Duration {
	return max(0, time.Until(l.paid.Add(-time.Duration(l.opts.Burst-1)*l.opts.MinInterval)))
}

// applied sets the timer when there is nothing to apply.
func (l *loop) applied() {
	l.want, l.again, l.retry = false, false, l.opts.RetryMin
	if l.opts.Resync < 0 || !l.have {
		l.timer.Reset(forever)
		return
	}
	l.timer.Reset(max(l.opts.Resync, l.opts.MinInterval))
}

// apply applies the newest state.
func (l *loop) apply(ctx context.Context) {
	r, err := l.engine.applyWanted(ctx, l.again)
	if r == nil && err == nil { // somebody else has applied it, or nothing is wanted any more
		l.applied()
		return
	}
	l.pay()
	if r == nil {
		l.want = true
		l.timer.Reset(max(jitter(l.retry), l.opts.MinInterval))
		l.retry = min(2*l.retry, l.opts.RetryMax)
		return
	}
	if r.IsRepair() {
		l.repairs.ration.Spend(r.Duration)
	}
	l.seen = max(l.seen, r.Revision)
	l.applied()
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

// settleAt sets the timer of the next Settle, given when there is work for it, and whether the last
// one failed.
func (l *loop) settleAt(due time.Time, failed bool) {
	next := time.Duration(forever)
	switch {
	case failed:
		next = jitter(l.settleRetry)
		l.settleRetry = min(2*l.settleRetry, l.opts.RetryMax)
	case !due.IsZero():
		next = time.Until(due)
		fallthrough
	default:
		l.settleRetry = l.opts.RetryMin
	}
	l.settle.Reset(next)
}
