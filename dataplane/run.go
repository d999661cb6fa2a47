package dataplane

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/internal/wait"
	"github.com/kernlb/kernlb/servicemodel"
)

// RunOptions tunes [Engine.Run]. A nil *RunOptions is the zero RunOptions.
type RunOptions struct {
	// MinInterval is the minimum time between the end of one apply of Run and the start of the
	// next, like kube-proxy's minSyncPeriod. If several states are set meanwhile, Run applies only
	// the newest. After a quiet time a state does not wait. Zero means no minimum, because an apply
	// costs little.
	MinInterval time.Duration
	// Burst is the number of applies after a quiet time that may follow each other without
	// MinInterval. Each MinInterval that passes gives one back. Zero means 1.
	Burst int
	// RetryMin and RetryMax bound the time until a failed apply or Settle is retried. The time
	// doubles with each failure, and is up to a quarter longer at random, so that many nodes do not
	// retry at the same moment. Zero means 100 ms and 30 s. A RetryMax below RetryMin counts as
	// RetryMin. Retries also keep MinInterval. A new state does not wait for the retry.
	RetryMin, RetryMax time.Duration
	// Resync is the interval of full readings and comparisons while nothing else happens, like
	// kube-proxy's syncPeriod. They keep MinInterval. Zero means 5 minutes, negative never.
	Resync time.Duration
	// CheckInterval is the interval at which Run asks the kernel, with a request or two, whether it
	// still holds the wanted objects. Run repairs the difference that others made. Zero means 250
	// ms, negative never. If others undo repairs again and again, repairs take at most a tenth of
	// the time, and after five in a row they are at least a second apart.
	CheckInterval time.Duration
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
	const longest = forever / 4 // so that no sum and no product overflows
	r.RetryMin = min(r.RetryMin, longest)
	r.RetryMax = min(max(r.RetryMin, r.RetryMax), longest)
	r.Burst = max(1, int(min(int64(r.Burst), int64(longest/max(1, r.MinInterval)))))
	r.Resync = cmp.Or(r.Resync, 5*time.Minute)
	r.CheckInterval = cmp.Or(r.CheckInterval, 250*time.Millisecond)
	return r
}

// Run makes the kernel hold the newest state that [Engine.Set] and [Engine.Apply] ask for, until
// the context is done. It retries after failures with the newest state, repairs changes by others,
// and does later work when it is due. Work that waits for packets (see [Engine.Settle]) delays no
// commit, and comes after the [Applied] of its commit. If the backend is a [backends.Watcher], Run
// applies the state again when the watched objects change. The same holds for [Config.Node].
//
// Run works in the caller's goroutine. Goroutines that watch end before Run returns. It returns the
// context's error, or [ErrRunning] if another Run of the engine is running. The kernel then stays
// as it is. [Engine.Status] says what part of the newest state is missing, and what work is left.
// To wait for both, call [Engine.Finish] before the context ends.
func (e *Engine) Run(ctx context.Context, opts *RunOptions) error {
	if !e.progress.run(true) {
		return ErrRunning
	}
	defer e.progress.run(false)
	l := &loop{engine: e, opts: opts.withDefaults(), timer: time.NewTimer(forever),
		settle: time.NewTimer(forever), checks: time.NewTimer(forever), stop: func() {},
		changed: make(chan struct{}, 1), events: make(chan Event),
		ration: wait.NewBudget(repairBurst, repairShare)}
	l.retry, l.settleRetry = l.opts.RetryMin, l.opts.RetryMin
	defer l.waits.Wait()
	defer l.unwatch()
	l.check()
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

// run records that a Run begins, if no other is running, or that it ends.
func (p *progress) run(begins bool) (ok bool) {
	p.update(func(s *Status) {
		if ok = !begins || !s.Running; ok {
			s.Running = begins
		}
	})
	return ok
}

// forever is a duration that does not end.
const forever = 1<<63 - 1

// loop is the state of one Run.
type loop struct {
	engine *Engine
	opts   RunOptions
	timer  *time.Timer // the next apply
	settle *time.Timer // the next Settle
	checks *time.Timer // the next check for changes by others

	watching context.Context // for watchers of the present backend and node; stop ends it
	stop     context.CancelFunc
	watchers sync.WaitGroup
	changed  chan struct{} // tells of changes of watched objects; further ones are merged
	events   chan Event    // of watchers and blamers
	asking   atomic.Bool   // the backend is being asked who undoes repairs

	// ration limits the repairs. Without it, a program that flushes the ruleset in a loop would
	// keep a CPU and the kernel's nf_tables lock busy. held says that a repair is due and waits.
	ration wait.Budget
	held   bool

	seen  Revision // the newest revision that the timer was set for
	have  bool     // there is a state to hold
	want  bool     // it is to be applied: it is not in the kernel, or must be applied again
	again bool
	// denied says that [Config.Approve] returned an error for the last apply.
	denied bool
	retry  time.Duration // until the next attempt after a failure
	// paid is when MinInterval allows the next apply: each apply pushes it by one interval.
	paid time.Time

	settles     int           // number of Settle calls that the timer takes into account
	settleRetry time.Duration // until the next attempt after a Settle that failed
	// packets is nil, or ends a wait for packets with the time at which the wait began. Commits go
	// on meanwhile, and Settle comes afterwards.
	packets chan time.Time
	waits   sync.WaitGroup
}

// next waits for the next event and handles it.
func (l *loop) next(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return wait.Ended(ctx)
	case <-l.engine.progress.wake:
	case <-l.settle.C:
		if l.packets == nil {
			l.settleAfter(ctx, time.Time{})
		}
	case done := <-l.packets:
		l.packets = nil
		l.settleAfter(ctx, done)
	case <-l.checks.C:
		l.look(ctx)
	case <-l.engine.switched:
		err := l.watchBackend(ctx) // waits for the end of Switch
		l.follow()
		if l.want { // a retry waits for a backend that is gone
			l.timer.Reset(l.minWait())
		}
		l.settle.Reset(0)
		return err
	case ev := <-l.events:
		l.tell(ctx, ev)
	case <-l.changed:
		l.follow() // later requests learn of the change; a call that is under way may not
		if l.again = l.have; l.have && (!l.want || l.denied) {
			l.want = true
			l.timer.Reset(l.minWait())
		}
	case <-l.timer.C:
		if !l.want { // nothing else happened during Resync
			l.engine.Resync()
			l.again = true
		}
		l.apply(ctx)
	}
	return nil
}

// tell emits an event that is not part of any call of the engine.
func (l *loop) tell(ctx context.Context, ev Event) {
	if ctx, err := l.engine.begin(ctx, "", PhaseLock); err == nil {
		defer l.engine.end()
		l.engine.observers.emit(ctx, ev)
	}
}

// follow sets the timers according to the requests since its last call, and the work that Run or
// any other method did since then.
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
	l.seen, l.have, l.again, l.denied = st.Wanted, wants, false, false
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

// applied sets the timer for a time without anything to apply.
func (l *loop) applied() {
	l.want, l.again, l.denied, l.retry = false, false, false, l.opts.RetryMin
	if l.opts.Resync < 0 || !l.have {
		l.timer.Reset(forever)
		return
	}
	l.timer.Reset(max(l.opts.Resync, l.opts.MinInterval))
}

// apply applies the newest state.
func (l *loop) apply(ctx context.Context) {
	p := &wait.Packets{}
	r, err := l.engine.applyWanted(ctx, l.again, p)
	l.await(ctx, p)
	if r == nil && err == nil { // another call has applied it, or nothing is wanted any more
		l.applied()
		return
	}
	if now := time.Now(); l.paid.Before(now) {
		l.paid = now
	}
	l.paid = l.paid.Add(l.opts.MinInterval)
	if r == nil {
		l.want, l.denied = true, errors.Is(err, ErrNotApproved)
		next := l.retry
		if l.denied {
			next = l.opts.RetryMax
		} else {
			l.retry = min(2*l.retry, l.opts.RetryMax)
		}
		l.timer.Reset(max(jitter(next), l.opts.MinInterval))
		return
	}
	if r.IsRepair() {
		l.ration.Spend(r.Duration)
	}
	l.seen = max(l.seen, r.Revision)
	l.applied()
}

// jitter returns d, or up to a quarter more.
func jitter(d time.Duration) time.Duration { return d + rand.N(d/4+1) }

// settleAfter does the work that is due now that the kernel is done with the packets of the time
// done. An event reports an error, and follow sets the time of the next try.
func (l *loop) settleAfter(ctx context.Context, done time.Time) {
	p := &wait.Packets{Done: done, Piece: true}
	if _, err := l.engine.Settle(p.In(ctx)); errors.Is(err, ErrNotApproved) {
		l.settleRetry = l.opts.RetryMax
	}
	l.await(ctx, p)
}

// await begins to wait for packets if work needs that. One wait serves all commits before it.
func (l *loop) await(ctx context.Context, p *wait.Packets) {
	if !p.Awaited || l.packets != nil {
		return
	}
	ended := make(chan time.Time, 1)
	l.packets = ended
	l.waits.Go(func() {
		began := time.Now()
		if l.engine.grace(ctx) == nil {
			ended <- began
		}
	})
}

// settleAt sets the timer of the next Settle. due is the time of the work, and failed says that the
// last Settle failed.
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

const (
	// repairBurst is how many repairs in a row do not wait.
	repairBurst = 5
	// repairShare limits the time of repairs: at most one part in so many.
	repairShare = 10
)

// look checks whether the kernel still holds the wanted table, and repairs the difference.
func (l *loop) look(ctx context.Context) {
	defer l.check()
	switch {
	case !l.have, l.want && !l.denied:
		return // the coming apply checks by itself
	case l.engine.intact(ctx, l.denied):
		return // Approve would return the same error, or nothing differs
	}
	switch allowed := l.ration.Allow(time.Now()); {
	case allowed:
		l.held, l.again = false, true
		l.apply(ctx)
	case !l.held:
		l.held = true
		l.tell(ctx, RepairDelayed{})
		l.askBlame(ctx)
	}
}

// check sets the timer of the next check.
func (l *loop) check() {
	if l.opts.CheckInterval > 0 {
		l.checks.Reset(l.opts.CheckInterval)
	}
}

// NodeSource knows facts about the node that states may leave unset, such as its addresses. An
// engine with a source ([Config.Node]) completes the node of each state, and [Engine.Run] applies
// the state again when these facts have changed. Package nodeaddrs has a source that follows the
// kernel.
type NodeSource interface {
	// Complete returns n with its unset fields filled in as they are now. It does not change the
	// others. An error fails the apply, and Run retries.
	Complete(ctx context.Context, n servicemodel.Node) (servicemodel.Node, error)
	// Watch calls changed when the result of Complete may have changed.
	backends.Watcher
}
