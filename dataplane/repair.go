package dataplane

import (
	"context"
	"time"

	"github.com/kernlb/kernlb/internal/ration"
)

const (
	// repairBurst is how many repairs in a row do not wait.
	repairBurst = 5
	// repairShare is the part of the time that repairs may take: one in so many.
	repairShare = 10
)

// repairs is when Run looks whether others changed the kernel, and how often it mends what they
// did. Somebody who flushes the ruleset in a loop would otherwise keep a CPU busy, and the kernel's
// lock of nf_tables with it.
type repairs struct {
	every  time.Duration
	timer  *time.Timer
	ration ration.Ration
	held   int // how often a repair was due and had to wait, since the last one
}

// newRepairs returns repairs that are looked for each time that so much time has passed.
func newRepairs(every time.Duration) *repairs {
	r := &repairs{every: every, timer: time.NewTimer(forever),
		ration: ration.New(repairBurst, repairShare)}
	r.next()
	return r
}

// next sets the timer of the next look.
func (r *repairs) next() {
	if r.every > 0 {
		r.timer.Reset(r.every)
	}
}

// allow reports whether there may be a repair now, and whether repairs begin to wait with this one.
func (r *repairs) allow() (allowed, delayed bool) {
	if r.ration.Allow(time.Now()) {
		r.held = 0
		return true, false
	}
	r.held++
	return false, r.held == 1
}

// look asks whether the kernel still holds what it should, and repairs it.
func (l *loop) look(ctx context.Context) {
	defer l.repairs.next()
	if !l.have || l.want {
		return // there is an apply to come, which looks by itself
	}
	if same, err := l.engine.intact(ctx); same && err == nil {
		return
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
