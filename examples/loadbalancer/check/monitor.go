package check

import (
	"cmp"
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

// DefaultConcurrency is how many targets a [Monitor] asks at a time.
const DefaultConcurrency = 64

// Report is a [Monitor]'s knowledge of a target.
type Report struct {
	Target Target
	State  State
	Since  time.Time // when a check last changed the state; zero if none has
	// Err is the error of the last check. It is nil if the check passed, or there was none.
	Err error
	// Passed and Failed count checks. Took is the time of the last one.
	Passed, Failed uint64
	Took           time.Duration
}

// Monitor asks targets. It must be made by [NewMonitor], and closed. Its methods may be called by
// several goroutines.
type Monitor struct {
	tell func(Report)
	ask  func(context.Context, Target) error // Ask, except in tests
	ctx  context.Context
	stop context.CancelFunc
	work sync.WaitGroup

	mu      sync.Mutex
	turns   chan struct{} // bounds the targets that are asked at a time
	watched map[Target]*watch
}

// watch is one target that is being asked.
type watch struct {
	stop    context.CancelFunc
	report  Report
	against int // answers in a row that contradict the state
}

// NewMonitor returns a monitor without targets. It calls tell whenever the state of a target
// changes, from one goroutine at a time. tell may call the monitor's methods. It may still be
// called once for a target that is removed at the same moment.
func NewMonitor(tell func(Report)) *Monitor {
	ctx, stop := context.WithCancel(context.Background())
	var one sync.Mutex
	return &Monitor{ask: Ask, ctx: ctx, stop: stop, watched: map[Target]*watch{},
		turns: make(chan struct{}, DefaultConcurrency),
		tell: func(r Report) {
			one.Lock()
			defer one.Unlock()
			tell(r)
		}}
}

// Close stops all checks, and waits until they have ended.
func (m *Monitor) Close() {
	m.stop()
	m.work.Wait()
}

// Set makes the monitor ask exactly these targets. The map has the earlier state of each new
// target. Targets that the monitor already asks keep their state. At most concurrency targets are
// asked at a time; zero means [DefaultConcurrency].
func (m *Monitor) Set(targets map[Target]State, concurrency int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if concurrency == 0 {
		concurrency = DefaultConcurrency
	}
	if cap(m.turns) != concurrency {
		m.turns = make(chan struct{}, concurrency)
	}
	for t, w := range m.watched {
		if _, wanted := targets[t]; !wanted {
			w.stop()
			delete(m.watched, t)
		}
	}
	for t, before := range targets {
		if m.watched[t] != nil {
			continue
		}
		ctx, stop := context.WithCancel(m.ctx)
		w := &watch{stop: stop, report: Report{Target: t, State: before}}
		m.watched[t] = w
		m.work.Go(func() {
			defer stop()
			m.follow(ctx, t, w)
		})
	}
}

// State returns the verdict about a target, [Unknown] if it is not asked.
func (m *Monitor) State(t Target) State {
	m.mu.Lock()
	defer m.mu.Unlock()
	if w := m.watched[t]; w != nil {
		return w.report.State
	}
	return Unknown
}

// Reports returns a report about each target, in no order.
func (m *Monitor) Reports() []Report {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]Report, 0, len(m.watched))
	for _, w := range m.watched {
		out = append(out, w.report)
	}
	return out
}

// follow asks a target until the context ends.
func (m *Monitor) follow(ctx context.Context, t Target, w *watch) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		m.mu.Lock()
		turns := m.turns
		m.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case turns <- struct{}{}:
		}
		start := time.Now()
		err := m.ask(ctx, t)
		<-turns
		if ctx.Err() != nil {
			return
		}
		timer.Reset(m.heard(t, w, err, start) - time.Since(start))
	}
}

// heard notes the answer of a check. It returns the time from the beginning of that check to the
// next one.
func (m *Monitor) heard(t Target, w *watch, err error, start time.Time) time.Duration {
	m.mu.Lock()
	if m.watched[t] != w {
		m.mu.Unlock()
		return 0 // its context has ended
	}
	changed := w.hear(err == nil)
	w.report.Err, w.report.Took = err, time.Since(start)
	if err == nil {
		w.report.Passed++
	} else {
		w.report.Failed++
	}
	if changed {
		w.report.Since = time.Now()
	}
	wait := t.Spec.Retry
	if w.against == 0 {
		wait = t.Spec.Interval - jitter(t.Spec)
	}
	r := w.report
	m.mu.Unlock()
	if changed {
		m.tell(r)
	}
	return wait
}

// jitter returns a random part of an interval.
func jitter(s Spec) time.Duration {
	if most := cmp.Or(s.Jitter, s.Interval/10); most > 0 {
		return rand.N(most)
	}
	return 0
}

// State is the verdict about a target.
type State uint8

// The verdicts.
const (
	// Unknown: there is no answer yet.
	Unknown State = iota
	// Up: the target answers.
	Up
	// Down: the target does not answer.
	Down
)

// String returns "unknown", "up" or "down".
func (s State) String() string { return [...]string{"unknown", "up", "down"}[s] }

// hear counts an answer, and reports whether it changed the state.
func (w *watch) hear(ok bool) (changed bool) {
	says, need := Down, w.report.Target.Spec.Fall
	if ok {
		says, need = Up, w.report.Target.Spec.Rise
	}
	if says == w.report.State {
		w.against = 0
		return false
	}
	if w.against++; w.report.State != Unknown && w.against < need {
		return false
	}
	w.report.State, w.against = says, 0
	return true
}
