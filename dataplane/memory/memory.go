package memory

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/internal/wait"
	"github.com/kernlb/kernlb/servicemodel"
)

// Backend is a [backends.Backend] that writes to a [Kernel] instead of a real kernel. Programs that
// embed kernlb use it to test which states they apply and how they react to failures, on any OS and
// without privileges. It enforces the contract of a backend strictly. A commit that does not start
// from the last observation or commit is an error. A commit fails with [kernelerr.ErrConflict] if
// another backend on the same kernel committed first, or if it changes objects that a foreign
// commit has changed.
//
// A test can count the calls of a method ([Call]), and let them fail or wait.
//
// Its methods are safe for concurrent use. Create it with [New].
type Backend struct {
	kernel *Kernel

	mu      sync.Mutex
	calls   [numCalls]call
	refuse  func(*servicemodel.ChangeSet) error
	held    *servicemodel.Table // the kernel's content after the last Observe or Commit
	drift   []string            // lines of the last Observe, until a commit
	seen    uint64              // the kernel's generation at the last Observe or Commit
	version uint64              // the kernel's version at that time
	known   bool                // there was an Observe, and no failed Commit since
	hints   bool                // Observe heeds its hint
	closed  bool
	unknown error // a test named a Call that does not exist
}

var _ backends.Backend = (*Backend)(nil)

// Call is a method of a [Backend] that a test can count, or let fail or wait.
type Call int

// The methods of [backends.Backend] that can fail.
const (
	CallCheck Call = iota
	CallObserve
	CallIntegrity
	CallPlan
	CallCommit
	CallCleanup
	CallClose
	numCalls
)

var callNames = [numCalls]string{"check", "observe", "integrity", "plan", "commit", "cleanup",
	"close"}

// String returns "check", "observe", "integrity", "plan", "commit", "cleanup" or "close".
func (c Call) String() string {
	if c < 0 || c >= numCalls {
		return "call " + strconv.Itoa(int(c))
	}
	return callNames[c]
}

// call counts the calls of a method, and holds a test's settings for these calls.
type call struct {
	count  int
	before func(context.Context) error
	fails  int // number of next calls that fail
	err    error
}

// New returns a backend on the kernel k. A second backend on the same kernel simulates a restart of
// the program, or another program. Nil means a new, empty kernel.
func New(k *Kernel) *Backend {
	if k == nil {
		k = &Kernel{}
	}
	return &Backend{kernel: k}
}

// Kernel returns the kernel that the backend writes to.
func (m *Backend) Kernel() *Kernel { return m.kernel }

// Calls returns the number of calls of a method, including failed calls.
func (m *Backend) Calls(of Call) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.named(of).count
}

// Fail makes the next n calls of a method return err, without any effect on the kernel.
func (m *Backend) Fail(of Call, n int, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.named(of)
	c.fails, c.err = n, err
}

// Before makes f run at the start of each call of a method: to delay the call, to change the kernel
// at that moment, or to refuse the call. If f returns an error, the call returns that error and has
// no effect. A nil f ends this. Check, Plan and Close have no context, so they pass
// [context.Background] to f.
func (m *Backend) Before(of Call, f func(context.Context) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.named(of).before = f
}

// named returns the calls of a method. If there is no such method, all calls fail from then on. The
// lock is held.
func (m *Backend) named(of Call) *call {
	if of < 0 || of >= numCalls {
		m.unknown = fmt.Errorf("there is no %v", of)
		return &call{}
	}

	return &m.calls[of]
}

// Refuse makes Check return f's result for a change set: nil, or [backends.UnsupportedError]
// values. A nil f refuses nothing.
func (m *Backend) Refuse(f func(*servicemodel.ChangeSet) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.refuse = f
}

// HeedHints makes Observe read only the objects of a hint. If the kernel has anything else, the
// observation is [backends.Observation.Partial].
func (m *Backend) HeedHints(on bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hints = on
}

// enter counts a call and returns the error with which it must fail, if any.
func (m *Backend) enter(ctx context.Context, of Call) error {
	m.mu.Lock()
	c := &m.calls[of]
	c.count++
	f := c.before
	var err error
	if c.fails > 0 {
		c.fails--
		err = c.err
	}

	if m.closed && of != CallClose {
		err = kernelerr.ErrClosed
	}
	err = cmp.Or(m.unknown, err)
	m.mu.Unlock()
	if f != nil {
		if err := f(ctx); err != nil {
			return fmt.Errorf("memory: %v: %w", of, err)
		}
	}

	if err = cmp.Or(wait.Ended(ctx), err); err != nil {
		return fmt.Errorf("memory: %v: %w", of, err)
	}
	return nil
}

// Name returns "memory".
func (m *Backend) Name() string { return "memory" }

// Check returns the result of the function given to [Backend.Refuse].
func (m *Backend) Check(c *servicemodel.ChangeSet) error {
	if err := m.enter(context.Background(), CallCheck); err != nil {
		return err
	}
	m.mu.Lock()
	refuse := m.refuse
	m.mu.Unlock()
	if refuse == nil {
		return nil
	}
	return refuse(c)
}

// Observe reads the kernel. It builds a new table from the kernel's contents, like a backend that
// decodes objects: this table has no state, no conflicts and no health checks.
func (m *Backend) Observe(
	ctx context.Context, want *servicemodel.Table,
) (*backends.Observation, error) {
	if err := m.enter(ctx, CallObserve); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.kernel.mu.Lock()
	defer m.kernel.mu.Unlock()
	t, err := servicemodel.NewTable(m.kernel.table.Contents())
	if err != nil {
		return nil, fmt.Errorf("memory: observe: %w", err)
	}
	o := &backends.Observation{Table: t, Drift: slices.Clone(m.kernel.drift)}
	if m.hints && want != nil {
		if o.Table, err = within(t, want); err != nil {
			return nil, fmt.Errorf("memory: observe: %w", err)
		}
		o.Partial = len(o.Drift) > 0 || !o.Table.Equal(t)
		o.Drift = nil
	}

	m.held, m.drift, m.known = o.Table, slices.Clone(o.Drift), true
	m.seen, m.version = m.kernel.generation, m.kernel.version
	return o, nil
}

// Integrity compares the kernel's version and generation with those of the last Observe or Commit.
// It does not report a failed commit: after a failed commit, call Observe; another commit before
// that is an error.
func (m *Backend) Integrity(ctx context.Context) (backends.Integrity, error) {
	if err := m.enter(ctx, CallIntegrity); err != nil {
		return backends.Broken, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.kernel.mu.Lock()
	defer m.kernel.mu.Unlock()
	switch {
	case m.kernel.version != m.version, m.kernel.broken > m.seen:
		return backends.Broken, nil
	case m.kernel.generation != m.seen:
		return backends.Touched, nil
	}

	return backends.Intact, nil
}

// Plan renders the change set as text, followed by a line "repair ..." for each line of drift.
func (m *Backend) Plan(c *servicemodel.ChangeSet) (backends.Plan, error) {
	if err := m.enter(context.Background(), CallPlan); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.render(c), nil
}

func (m *Backend) render(c *servicemodel.ChangeSet) plan {
	kernel := *c
	kernel.Health = nil // the program answers health checks
	text := kernel.String()
	for _, d := range m.drift {
		text += "repair " + d + "\n"
	}
	return plan(text)
}

// Commit writes the change set and repairs the drift that the last Observe reported.
func (m *Backend) Commit(ctx context.Context, c *servicemodel.ChangeSet) (backends.Stats, error) {
	start := time.Now()
	err := m.enter(ctx, CallCommit)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.kernel.mu.Lock()
	defer m.kernel.mu.Unlock()
	if err == nil {
		err = m.write(c)
	}
	if err != nil {
		m.known = false
		return backends.Stats{}, err
	}

	stats := m.render(c).Stats()
	m.drift = nil
	stats.Duration = time.Since(start)
	return stats, nil
}

// write does the work of Commit as a whole, or not at all. Both locks are held.
func (m *Backend) write(c *servicemodel.ChangeSet) error {
	if !m.known {
		return fmt.Errorf("memory: commit: nothing was observed since the start or the last error")
	}
	if !c.Old.Equal(m.held) {
		return fmt.Errorf(
			"memory: commit: the change set does not begin from what was last observed or "+
				"committed, but from that and\n%s",
			servicemodel.Diff(m.held, c.Old))
	}

	k, own := m.kernel, *c
	own.Health = nil // no kernel holds health checks
	if k.version != m.version || k.table.Changes(&own).String() != own.String() {
		return fmt.Errorf("memory: commit: %w", kernelerr.ErrConflict)
	}
	if m.render(c) != "" {
		k.generation++
		k.version++
		m.seen++ // not k.generation: other programs may have committed since the observation
	}

	k.table, m.held = k.table.Apply(&own), c.New
	k.drift = slices.DeleteFunc(k.drift, func(d string) bool { return slices.Contains(m.drift, d) })
	m.version = k.version
	return nil
}

// Cleanup empties the kernel.
func (m *Backend) Cleanup(ctx context.Context) (backends.Stats, error) {
	if err := m.enter(ctx, CallCleanup); err != nil {
		return backends.Stats{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.kernel.mu.Lock()
	defer m.kernel.mu.Unlock()
	m.drift = slices.Clone(m.kernel.drift)
	stats := m.render(servicemodel.Diff(m.kernel.table, nil)).Stats()
	if stats.Messages > 0 {
		m.kernel.generation++
		m.kernel.version++
	}

	m.kernel.table, m.kernel.drift = nil, nil
	m.held, m.drift, m.known = nil, nil, false
	return stats, nil
}

// Close makes all later calls fail with [kernelerr.ErrClosed], except Close.
func (m *Backend) Close() error {
	err := m.enter(context.Background(), CallClose)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = m.closed || err == nil
	return err
}

// within returns the frontends and pools of t whose identity is also in want.
func within(t, want *servicemodel.Table) (*servicemodel.Table, error) {
	frontends := only(t.Frontends(), func(f *servicemodel.Frontend) bool {
		return want.Frontend(f.Key) != nil
	})
	used := map[servicemodel.PoolID]bool{}
	for _, f := range frontends {
		for _, v := range []servicemodel.Verdict{f.Internal, f.External} {
			if id, balances := f.Pool(v); balances {
				used[id] = true
			}
		}
	}

	return servicemodel.NewTable(servicemodel.Contents{
		Rules:     t.Rules(),
		Frontends: frontends,
		Pools: only(t.Pools(), func(p *servicemodel.Pool) bool {
			return used[p.ID] || want.Pool(p.ID) != nil
		}),
		ClusterIPs: only(t.ClusterIPs(), want.HasClusterIP),
		Hairpins:   only(t.Hairpins(), want.HasHairpin),
	})
}

// only returns the elements for which keep returns true.
func only[T any](all iter.Seq[T], keep func(T) bool) []T {
	return slices.DeleteFunc(slices.Collect(all), func(e T) bool { return !keep(e) })
}

// plan is the text of a plan: a message for each line.
type plan string

// String returns the text.
func (p plan) String() string { return string(p) }

// Stats counts the lines and bytes of the text.
func (p plan) Stats() backends.Stats {
	n := strings.Count(string(p), "\n")
	return backends.Stats{Messages: n, Elements: n, Bytes: len(p)}
}
