package dataplane

import (
	"context"
	"time"

	"github.com/kernlb/kernlb/internal/wait"
)

const (
	// repairBurst is how many repairs in a row do not wait.
	repairBurst = 5
	// repairShare limits the time of repairs: at most one part in so many.
	repairShare = 10
)

// repairs schedules Run's checks for changes by others, and rations the repairs. Without a ration,
// a program that flushes the ruleset in a loop would keep a CPU and the kernel's nf_tables lock
// busy.
type repairs struct {
	every  time.Duration
	timer  *time.Timer
	ration wait.Budget
	held   int // how often a due repair had to wait, since the last repair
}

// newRepairs returns repairs with a check at each interval.
func newRepairs(every time.Duration) *repairs {
	r := &repairs{every: every, timer: time.NewTimer(forever),
		ration: wait.NewBudget(repairBurst, repairShare)}
	r.next()
	return r
}

// next sets the timer of the next check.
func (r *repairs) next() {
	if r.every > 0 {
		r.timer.Reset(r.every)
	}
}

// allow reports whether a repair is allowed now. delayed says that repairs begin to wait with this
// one.
func (r *repairs) allow() (allowed, delayed bool) {
	if r.ration.Allow(time.Now()) {
		r.held = 0
		return true, false
	}
	r.held++
	return false, r.held == 1
}

// look checks whether the kernel still holds the wanted table, and repairs the difference.
func (l *loop) look(ctx context.Context) {
	defer l.repairs.next()
	switch {
	case !l.have, l.want && !l.denied:
		return // the coming apply checks by itself
	case l.denied && !l.engine.disturbed(ctx):
		return // Approve would return the same error
	case !l.denied:
		if same, err := l.engine.intact(ctx); same && err == nil {
			return
		}
	}
	allowed, delayed := l.repairs.allow()
	if delayed {
		l.tell(ctx, RepairDelayed{})
		l.askWitness(ctx)
	}
	if allowed {
		l.again = true
		l.apply(ctx)
	}
}
