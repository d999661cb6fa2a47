package dataplane

import (
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/kernlb/kernlb/internal/wait"
)

// Run has three schedules: applies, later work, and checks for changes by other programs. Run
// reports events to each schedule, and the schedule returns the next action and its time. Schedules
// use neither the clock nor the engine.

// action is a kind of work that Run does.
type action int

const (
	doApply   action = iota + 1 // the newest state, unless another call has applied it
	doReapply                   // the newest state
	doResync                    // read the kernel, and apply again
	doSettle                    // later work
	doCheck                     // ask whether the kernel still holds the state
	doDelay                     // report that repairs wait
)

// due is the next action of a schedule, and its time. The zero time means never.
type due struct {
	at time.Time
	do action
}

// next returns the first action of all schedules, and the time until then.
func next(now time.Time, all ...due) (rest time.Duration, do action) {
	rest = forever
	for _, d := range all {
		if left := d.at.Sub(now); !d.at.IsZero() && left < rest {
			rest, do = left, d.do
		}
	}

	return rest, do
}

// applySchedule is the schedule of applies of the newest state. While that state is in the kernel,
// the next action is doResync.
type applySchedule struct {
	due
	opts RunOptions
	seen Revision // the newest revision that is taken into account
	have bool     // a state is wanted
	// denied says that [Config.Approve] returned an error for the last apply.
	denied bool
	retry  backoff
	// paid is the time at which MinInterval allows the next apply: each apply adds one interval.
	paid time.Time
}

// requested says that r is the newest revision. have says that r wants a state, and pending that
// the state is not in the kernel yet.
func (s *applySchedule) requested(now time.Time, r Revision, have, pending bool) {
	if s.seen == r {
		return
	}
	s.seen, s.have, s.denied = r, have, false
	if have && pending {
		s.soon(now, doApply)
	} else {
		s.rest(now)
	}
}

// soon makes an apply due as soon as MinInterval allows.
func (s *applySchedule) soon(now time.Time, do action) {
	s.due = due{later(now, s.paid.Add(-time.Duration(s.opts.Burst-1)*s.opts.MinInterval)), do}
}

// rest schedules the next resync, because nothing is left to apply.
func (s *applySchedule) rest(now time.Time) {
	s.due, s.denied, s.retry.next = due{do: doResync}, false, s.retry.least
	if s.have && s.opts.Resync >= 0 {
		s.at = now.Add(max(s.opts.Resync, s.opts.MinInterval))
	}
}

// checkable reports whether a check is useful: a state is desired, and no apply that checks anyway
// is about to run.
func (s *applySchedule) checkable() bool { return s.have && (s.do == doResync || s.denied) }

// changed says that watched objects changed.
func (s *applySchedule) changed(now time.Time) {
	if s.checkable() {
		s.soon(now, doReapply)
	} else if s.have {
		s.do = doReapply // when it is due
	}
}

// switched says that the backend changed: retries for the previous backend are dropped.
func (s *applySchedule) switched(now time.Time) {
	if s.do != doResync {
		s.soon(now, s.do)
	}
}

// tried records the outcome of the action do, and schedules a retry if it failed. A nil result
// without an error means that another call has applied the state, or that no state is desired any
// more.
func (s *applySchedule) tried(now time.Time, do action, r *Result, err error) {
	if r != nil || err != nil {
		s.paid = later(now, s.paid).Add(s.opts.MinInterval)
	}
	if r != nil {
		s.seen = max(s.seen, r.Revision)
	}
	if err == nil {
		s.rest(now)
		return
	}

	wait := jitter(s.opts.RetryMax)
	if s.denied = errors.Is(err, ErrNotApproved); !s.denied {
		wait = s.retry.failed()
	}
	s.due = due{now.Add(max(wait, s.opts.MinInterval)), do}
}

// settleSchedule is the schedule of later work.
type settleSchedule struct {
	due
	calls int // number of Settle calls that are taken into account
	retry backoff
}

// settled records the number of calls of Settle so far, the time at which more work is due, and
// whether the last call failed.
func (s *settleSchedule) settled(now time.Time, calls int, at time.Time, failed bool) {
	if s.calls == calls {
		return
	}
	s.calls, s.at = calls, at
	if failed {
		s.at = now.Add(s.retry.failed())
	} else {
		s.retry.next = s.retry.least
	}
}

// checkSchedule is the schedule of checks of the kernel and of repairs. The ration limits the time
// spent on repairs. Without it, a program that flushes the ruleset in a loop would keep a CPU and
// the kernel's nf_tables lock busy.
type checkSchedule struct {
	due
	interval time.Duration
	ration   wait.Budget
	delayed  bool // a repair waits for the ration
}

const (
	// repairBurst is the number of repairs in a row that do not wait.
	repairBurst = 5
	// repairShare limits repairs to 1/repairShare of the time.
	repairShare = 10
)

// checked says that a check ended, or that Run begins.
func (s *checkSchedule) checked(now time.Time) {
	if s.interval > 0 {
		s.due = due{now.Add(s.interval), doCheck}
	}
}

// damaged returns the action after a check that found a difference. 0 means no action.
func (s *checkSchedule) damaged(now time.Time) action {
	waited := s.delayed
	if s.delayed = !s.ration.Allow(now); !s.delayed {
		return doReapply
	} else if !waited {
		return doDelay
	}

	return 0
}

// backoff is the time until a retry. It doubles with each failure, from least to most.
type backoff struct{ least, most, next time.Duration }

// failed returns the time until the retry.
func (b *backoff) failed() time.Duration {
	d := b.next
	b.next = min(2*d, b.most)
	return jitter(d)
}

// jitter returns d, or up to a quarter more.
func jitter(d time.Duration) time.Duration { return d + rand.N(d/4+1) }

func later(a, b time.Time) time.Time {
	return slices.MaxFunc([]time.Time{a, b}, time.Time.Compare)
}
