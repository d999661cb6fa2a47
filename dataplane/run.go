package dataplane

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/internal/wait"
	"github.com/kernlb/kernlb/servicemodel"
)

// RunOptions tunes [Engine.Run]. A nil *RunOptions is the zero RunOptions.
type RunOptions struct {
	// MinInterval is the minimum time between the end of one apply of Run and the start of the
	// next, like kube-proxy's minSyncPeriod. If several states are set during this time, Run
	// applies only the newest. After a quiet time, a state is applied at once. Zero means no
	// minimum, because an apply costs little.
	MinInterval time.Duration
	// Burst is the number of applies after a quiet time that may follow each other without
	// MinInterval. Every MinInterval that passes allows one more. Zero means 1.
	Burst int
	// RetryMin and RetryMax bound the time until a failed apply or Settle is retried. The time
	// doubles with each failure, and is up to a quarter longer at random, so that many nodes do not
	// retry at the same moment. Zero means 100 ms and 30 s. A RetryMax below RetryMin counts as
	// RetryMin. MinInterval also applies to retries. A new state does not wait for the retry.
	RetryMin, RetryMax time.Duration
	// Resync is the interval at which Run reads and compares everything while nothing else happens,
	// like kube-proxy's syncPeriod. MinInterval applies here, too. Zero means 5 minutes, negative
	// never.
	Resync time.Duration
	// CheckInterval is the interval at which Run asks the kernel, with one or two requests, whether
	// the desired objects are still there. If another program changed them, Run repairs them. Zero
	// means 250 ms, negative never. If another program keeps undoing repairs, repairs take at most
	// a tenth of the time, and after five in a row they are at least a second apart.
	CheckInterval time.Duration
}

func (o *RunOptions) withDefaults() RunOptions {
	r := *cmp.Or(o, &RunOptions{})
	r.MinInterval = max(0, r.MinInterval)
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

// Run keeps the kernel in sync with the newest state of [Engine.Set] and [Engine.Apply] until the
// context is done. It retries with the newest state after failures, repairs changes by other
// programs, and does later work when it is due. Work that waits for packets (see [Engine.Settle])
// does not delay commits, and is done after the [Applied] of its commit. If the backend is a
// [backends.Watcher], Run applies the state again when the watched objects change. The same is true
// for [Config.Node].
//
// Run works in the caller's goroutine. The goroutines that it starts for watching end before it
// returns. It returns the context's error, or [ErrRunning] if another Run of the engine is running.
// When Run returns, it does not change the kernel. [Engine.Status] says whether the kernel has the
// newest state, and whether work is left. To wait for both, call [Engine.Finish] before the context
// ends.
func (e *Engine) Run(ctx context.Context, opts *RunOptions) error {
	if !e.running.CompareAndSwap(false, true) {
		return ErrRunning
	}
	defer e.running.Store(false)
	o := opts.withDefaults()
	retry := backoff{o.RetryMin, o.RetryMax, o.RetryMin}
	l := &loop{engine: e, packets: make(chan time.Time, 1),
		applies: applySchedule{due: due{do: doResync}, opts: o, retry: retry},
		settles: settleSchedule{due: due{do: doSettle}, retry: retry},
		checks: checkSchedule{interval: o.CheckInterval,
			ration: wait.NewBudget(repairBurst, repairShare)},
		watchers: watchers{pause: o.RetryMax, stop: func() {}, changed: make(chan struct{}, 1),
			events: make(chan Event)}}
	l.checks.checked(time.Now())
	defer l.waits.Wait()
	defer l.watchers.end()
	if err := l.watchBackend(ctx); err != nil {
		return err
	}

	for timer := time.NewTimer(forever); ; {
		l.follow()
		rest, do := next(time.Now(), l.applies.due, l.settles.due, l.checks.due)
		timer.Reset(rest)
		select {
		case <-ctx.Done():
			return wait.Ended(ctx)
		case <-e.progress.wake:
		case done := <-l.packets:
			l.awaits = false
			l.settle(ctx, done)
		case <-e.switched:
			if err := l.watchBackend(ctx); err != nil { // waits for the end of Switch
				return err
			}
			l.follow()
			l.applies.switched(time.Now())
			l.settles.at = time.Now()
		case ev := <-l.watchers.events:
			if u, ok := ev.(RepairUndone); ok {
				e.progress.update(func(*Status) { e.progress.undone.Program = u.Name })
			}
			l.tell(ctx, ev)
		case <-l.watchers.changed:
			l.follow() // later requests learn of the change; a call under way may not
			l.applies.changed(time.Now())
		case <-timer.C:
			l.act(ctx, do)
		}
	}
}

// forever is a duration that never ends.
const forever = 1<<63 - 1

// loop is the state of one Run.
type loop struct {
	engine   *Engine
	applies  applySchedule
	settles  settleSchedule
	checks   checkSchedule
	watchers watchers
	// packets ends a wait for packets, with the time at which the wait began. awaits says that Run
	// is waiting. During the wait, Run commits but does no later work.
	packets chan time.Time
	awaits  bool
	waits   sync.WaitGroup
}

// follow updates the schedules with the requests since its last call, and with the work that Run or
// other methods have done since then.
func (l *loop) follow() {
	p := &l.engine.progress
	p.mu.Lock()
	st, wants, settles := p.status, p.wants, p.settles
	p.mu.Unlock()
	l.settles.settled(time.Now(), settles, st.Settle, st.Unsettled != nil)
	l.applies.requested(time.Now(), st.Wanted, wants, st.Pending())
}

func (l *loop) act(ctx context.Context, do action) {
	switch do {
	case doResync:
		l.engine.Resync()
		do = doReapply
		fallthrough
	case doApply, doReapply:
		p := &wait.Packets{}
		r, err := l.engine.applyWanted(ctx, do != doApply, p)
		l.await(ctx, p)
		if r.IsRepair() {
			l.checks.ration.Spend(r.Duration)
		}
		l.applies.tried(time.Now(), do, r, err)
	case doSettle:
		l.settle(ctx, time.Time{})
	case doCheck:
		if l.applies.checkable() && !l.engine.intact(ctx, l.applies.denied) {
			l.act(ctx, l.checks.damaged(time.Now()))
		}
		l.checks.checked(time.Now())
	case doDelay:
		l.tell(ctx, RepairDelayed{})
		l.watchers.blame()
	}
}

// settle does the work that is due after the kernel has finished with all packets before the time
// done. It reports an error as an event, and follow sets the time of the next try.
func (l *loop) settle(ctx context.Context, done time.Time) {
	l.settles.at = time.Time{}
	if l.awaits {
		return
	}
	p := &wait.Packets{Done: done, Piece: true}
	if _, err := l.engine.Settle(p.In(ctx)); errors.Is(err, ErrNotApproved) {
		l.settles.retry.next = l.settles.retry.most
	}
	l.await(ctx, p)
}

// await starts to wait for packets if work requires it. One wait serves all commits before it.
func (l *loop) await(ctx context.Context, p *wait.Packets) {
	if !p.Awaited || l.awaits {
		return
	}
	l.awaits = true
	l.waits.Go(func() {
		began := time.Now()
		if l.engine.grace(ctx) == nil {
			l.packets <- began
		}
	})
}

// tell emits an event that is not part of any call of the engine.
func (l *loop) tell(ctx context.Context, ev Event) {
	if ctx, err := l.engine.begin(ctx, "", PhaseLock); err == nil {
		defer l.engine.end()
		l.engine.observers.emit(ctx, ev)
	}
}

// NodeSource provides facts about the node that states may leave unset, such as its addresses. An
// engine with a source ([Config.Node]) completes the node of each state, and [Engine.Run] applies
// the state again when these facts have changed. Package nodeaddrs has a source that follows the
// kernel.
type NodeSource interface {
	// Complete returns n with its unset fields filled in from the current facts. It does not change
	// fields that are set. An error fails the apply, and Run retries.
	Complete(ctx context.Context, n servicemodel.Node) (servicemodel.Node, error)
	// Watch calls changed when the result of Complete may have changed.
	backends.Watcher
}
