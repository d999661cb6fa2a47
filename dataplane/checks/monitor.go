package checks

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kernlb/kernlb/dataplane/netns"
	"github.com/kernlb/kernlb/servicemodel"
)

// DefaultConcurrency is the number of targets that a [Monitor] checks at a time.
const DefaultConcurrency = 64

// Config tunes a [Monitor]. A nil *Config is the zero Config.
type Config struct {
	// Changed is called when a check has changed the state of a target: one call at a time, and for
	// each target in the order of its changes. It may call the methods of the monitor, but must not
	// wait for Run to end. While it runs, the check that caused the call still counts towards
	// Concurrency. It may be called once more for a target that is being removed. Nil ignores
	// changes.
	Changed func(Report)
	// Concurrency is the number of targets that are checked at a time. Zero means
	// [DefaultConcurrency].
	Concurrency int
	// NetNS names the network namespace from which targets are checked. Each check opens it again.
	// In a namespace other than the process's, the zone of an address must be the index of an
	// interface. Empty means the namespace of the process.
	NetNS netns.Namespace
	// TLS has the CA certificates and the client certificate. Each [Check] sets the server name,
	// and whether it is verified. Nil means the system's CAs.
	TLS *tls.Config
	// Ask replaces the package's own checks, for tests and for other protocols. The error says why
	// the target failed. It must return when the context ends, which is at the latest after the
	// check's timeout.
	Ask func(context.Context, Target) error
}

// State is the health of a target, as far as a [Monitor] knows it.
type State uint8

// The states.
const (
	// Unknown: no check has finished yet.
	Unknown State = iota
	// Up: the target answers.
	Up
	// Down: the target does not answer.
	Down
)

// String returns "unknown", "up" or "down".
func (s State) String() string { return [...]string{"unknown", "up", "down"}[min(s, Down)] }

// Report is the state of a target, according to its checks.
type Report struct {
	Target Target
	State  State
	Since  time.Time // time of the last change by a check; zero means no change
	// Err is the error of the last check. It is nil if the check passed, or there was none.
	Err error
	// Passed and Failed count checks. Took is the duration of the last check.
	Passed, Failed uint64
	Took           time.Duration
}

// MarshalJSON writes the target, the state, the error and the duration of the check as text.
func (r Report) MarshalJSON() ([]byte, error) {
	out := struct {
		Target string    `json:"target"`
		State  string    `json:"state"`
		Since  time.Time `json:"since,omitzero"`
		Err    string    `json:"error,omitzero"`
		Passed uint64    `json:"passed"`
		Failed uint64    `json:"failed"`
		Took   string    `json:"took"`
	}{r.Target.String(), r.State.String(), r.Since, "", r.Passed, r.Failed, r.Took.String()}
	if r.Err != nil {
		out.Err = r.Err.Error()
	}
	return json.Marshal(out)
}

// Monitor checks targets while [Monitor.Run] runs. Its methods are safe for concurrent use.
type Monitor struct {
	cfg  Config
	wake chan struct{} // a check may be due before Run's timer
	tell chan struct{} // is full while Changed runs

	mu      sync.Mutex
	running bool
	limit   int // maximum number of targets being checked
	asking  int // number of targets being checked
	watched map[Target]*watch
	due     []*watch // targets that are not being checked, in order of time
}

// New returns a monitor without targets. A namespace that cannot be used is an error. On an
// operating system without namespaces, the error matches errors.ErrUnsupported.
func New(cfg *Config) (*Monitor, error) {
	m := &Monitor{wake: make(chan struct{}, 1), tell: make(chan struct{}, 1),
		watched: map[Target]*watch{}}
	if cfg != nil {
		m.cfg = *cfg
	}
	if err := m.SetConcurrency(m.cfg.Concurrency); err != nil {
		return nil, err
	}
	if err := m.within(func() error { return nil }); err != nil {
		return nil, fmt.Errorf("checks: %w", err)
	}
	return m, nil
}

// SetConcurrency changes the number of targets that are checked at a time. Zero means
// [DefaultConcurrency].
func (m *Monitor) SetConcurrency(n int) error {
	if n < 0 {
		return fmt.Errorf("checks: Concurrency: %d: must not be negative", n)
	}
	m.mu.Lock()
	m.limit = cmp.Or(n, DefaultConcurrency)
	m.mu.Unlock()
	m.poke()
	return nil
}

// Set makes the monitor check exactly these targets. The map gives the initial state of each new
// target. Targets that the monitor already checks keep their state. If any target is invalid, the
// error joins a *[servicemodel.FieldError] for each wrong field, and nothing changes. The first
// check of a new target is due at once.
func (m *Monitor) Set(targets map[Target]State) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var faults []*servicemodel.FieldError
	seen := map[Check]bool{}
	for t := range targets {
		if m.watched[t] != nil {
			continue
		}
		wrong := t.faults(seen)
		for _, f := range wrong {
			f.Object = "check " + t.String()
		}
		faults = append(faults, wrong...)
	}

	if len(faults) > 0 {
		slices.SortFunc(faults, func(a, b *servicemodel.FieldError) int {
			return strings.Compare(a.Error(), b.Error())
		})
		return joined(faults)
	}

	for t, w := range m.watched {
		if _, wanted := targets[t]; !wanted {
			delete(m.watched, t)
			w.stop()
		}
	}

	m.due = slices.DeleteFunc(m.due, func(w *watch) bool { return m.watched[w.report.Target] != w })
	for t, before := range targets {
		if m.watched[t] == nil {
			w := &watch{report: Report{Target: t, State: before}, due: time.Now(), stop: func() {}}
			m.watched[t] = w
			m.queue(w)
		}
	}

	m.poke()
	return nil
}

// State returns the state of a target. It is [Unknown] if the monitor does not check the target.
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

// Run checks the targets until the context ends, and returns the context's error. Before it
// returns, it ends all checks, and waits for them and for Changed. Run may then be called again:
// the monitor keeps the states. A second call while Run is running is an error.
func (m *Monitor) Run(ctx context.Context) error {
	m.mu.Lock()
	again := m.running
	m.running = true
	m.mu.Unlock()
	if again {
		return errors.New("checks: Run is called while it runs")
	}

	inner, cancel := context.WithCancel(ctx)
	var work sync.WaitGroup
	timer := time.NewTimer(0)
	defer func() {
		timer.Stop()
		cancel()
		work.Wait()
		m.mu.Lock()
		m.running = false
		m.mu.Unlock()
	}()

	for {
		timer.Reset(m.start(inner, &work))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
		case <-m.wake:
		}
	}
}

// poke makes Run start the checks that are due.
func (m *Monitor) poke() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// start begins the checks that are due, up to the limit. It returns the time until the next check
// is due.
func (m *Monitor) start(ctx context.Context, work *sync.WaitGroup) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	for len(m.due) > 0 && m.asking < m.limit {
		w := m.due[0]
		if wait := time.Until(w.due); wait > 0 {
			return wait
		}
		m.due = m.due[1:]
		m.asking++
		inner, stop := context.WithCancel(ctx)
		w.stop = stop
		work.Go(func() {
			defer stop()
			m.askOnce(inner, w)
		})
	}

	return math.MaxInt64 // the end of a check wakes Run
}

// askOnce checks a target, reports a change of its state, and schedules the next check.
func (m *Monitor) askOnce(ctx context.Context, w *watch) {
	start := time.Now()
	err := m.Ask(ctx, w.report.Target)

	m.mu.Lock()
	changed := false
	if ctx.Err() == nil { // the target is still wanted, and Run has not ended
		changed = w.hear(err, start, time.Now())
	}
	report := w.report
	m.mu.Unlock()

	if changed && m.cfg.Changed != nil {
		m.tell <- struct{}{}
		m.cfg.Changed(report)
		<-m.tell
	}

	m.mu.Lock()
	m.asking--
	if m.watched[w.report.Target] == w {
		m.queue(w)
	}
	m.mu.Unlock()
	m.poke()
}

// watch is one target of a monitor.
type watch struct {
	report  Report
	against int // answers in a row that contradict the state
	due     time.Time
	stop    context.CancelFunc // ends the current check
}

// hear records the answer of a check, and the time of the next check. It reports whether the answer
// changed the state.
func (w *watch) hear(err error, start, end time.Time) (changed bool) {
	r, c := &w.report, w.report.Target.check
	r.Err, r.Took = err, end.Sub(start)
	says, need := Up, c.Rise
	if err == nil {
		r.Passed++
	} else {
		r.Failed++
		says, need = Down, c.Fall
	}

	w.against++
	if says == r.State {
		w.against = 0
	} else if r.State == Unknown || w.against >= need {
		r.State, r.Since, w.against, changed = says, end, 0, true
	}

	wait := c.Retry
	if w.against == 0 {
		wait = c.Interval
		if c.Jitter > 0 {
			wait -= rand.N(c.Jitter)
		}
	}

	w.due = start.Add(wait)
	return changed
}

// queue inserts a watch into due.
func (m *Monitor) queue(w *watch) {
	i, _ := slices.BinarySearchFunc(m.due, w, func(a, b *watch) int { return a.due.Compare(b.due) })
	m.due = slices.Insert(m.due, i, w)
}
