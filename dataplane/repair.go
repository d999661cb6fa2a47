package dataplane

import (
	"context"
	"log/slog"
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
	log    *slog.Logger
	held   int // how often a repair was due and had to wait, since the last one
}

// newRepairs returns repairs that are looked for each time that so much time has passed.
func newRepairs(every time.Duration, log *slog.Logger) *repairs {
	r := &repairs{every: every, timer: time.NewTimer(forever), log: log,
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

// allow reports whether there may be a repair now. It says so when repairs begin to wait.
func (r *repairs) allow(ctx context.Context) bool {
	if r.ration.Allow(time.Now()) {
		r.held = 0
		return true
	}
	if r.held++; r.held == 1 {
		r.log.WarnContext(ctx, "somebody undoes repairs again and again: the next one waits")
	}
	return false
}

// look asks whether the kernel still holds what it should, and repairs it. It returns how long to
// wait for the next event, or asBefore.
func (l *loop) look(ctx context.Context) time.Duration {
	defer l.repairs.next()
	if !l.have || l.want {
		return asBefore // there is an apply to come, which looks by itself
	}
	if same, err := l.engine.intact(ctx); same && err == nil || !l.repairs.allow(ctx) {
		return asBefore
	}
	l.timer.Stop()
	l.want = true
	return l.apply(ctx, true)
}
