package sysctls_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/sysctls"
	"github.com/kernlb/kernlb/servicemodel"
)

const forward = "net/ipv4/ip_forward"

// ours are the values that each instance of a world sets.
var ours = map[string]string{sysctls.RouteLocalnet: "1", forward: "1"}

// world is a fake kernel: values, and for each instance a table with the guard and the records.
type world struct {
	values map[string]string
	tables map[string][]string
	before map[string]string // the initial values
	// steps is the number of changes until the process is killed. Negative means never.
	steps int
}

func newWorld(value string) *world {
	w := &world{tables: map[string][]string{}, steps: -1,
		values: map[string]string{sysctls.RouteLocalnet: value, forward: value}}
	w.before = maps.Clone(w.values)
	return w
}

var errKilled = errors.New("killed")

// change makes one change, unless the process is killed before it. Afterwards the sysctl may be on
// only if a guard exists, or if the sysctl was on initially.
func (w *world) change(fn func()) error {
	if w.steps == 0 {
		return errKilled
	}
	w.steps--
	fn()
	if w.values[sysctls.RouteLocalnet] == "1" && len(w.tables) == 0 &&
		w.before[sysctls.RouteLocalnet] == "0" {
		return errors.New("route_localnet is on without a guard")
	}

	return nil
}

func (w *world) Close() error { return nil }

func (w *world) Read(_ context.Context, name string) (string, error) {
	value, ok := w.values[name]
	if !ok {
		return "", fs.ErrNotExist
	}
	return value, nil
}

func (w *world) Write(_ context.Context, name, value string) error {
	return w.change(func() { w.values[name] = value })
}

// process is one process of an instance.
type process struct {
	*world
	name  string
	owner sysctls.Owner
	state sysctls.State
}

func (w *world) start(name string) *process {
	p := &process{world: w, name: name}
	p.owner = sysctls.Owner{Values: w, Others: p, Ours: ours, Logger: slog.New(slog.DiscardHandler)}
	return p
}

func (p *process) Earlier(context.Context) (map[string]string, error) {
	all := map[string]string{}
	for name, lines := range p.tables {
		if name != p.name {
			maps.Copy(all, sysctls.ParseRecords(lines))
		}
	}

	return all, nil
}

func (p *process) Relied(ctx context.Context, _ []string) (map[string]string, error) {
	return p.Earlier(ctx)
}

// apply reads the records and commits.
func (p *process) apply(want map[string]string) error {
	ctx, lines := context.Background(), p.tables[p.name]
	p.state = p.state.Read(sysctls.ParseRecords(lines), len(lines) > 0)
	if err := p.owner.Look(ctx, &p.state, want); err != nil {
		return err
	}
	c := p.state.Plan(want)
	err := p.owner.Around(ctx, &p.state, c, func() error {
		return p.change(func() {
			delete(p.tables, p.name)
			for name, value := range c.Records {
				p.tables[p.name] = append(p.tables[p.name], sysctls.Record(name, value))
			}
		})
	})
	if err == nil {
		p.state.Committed(c)
	}
	return err
}

// sequences calls fn with each order in which n instances can begin and end.
func sequences(n int, fn func([]int)) {
	count := make([]int, n)
	var next func([]int)
	next = func(s []int) {
		if len(s) == 2*n {
			fn(s)
			return
		}

		for i := range n {
			if count[i] < 2 {
				count[i]++
				next(append(s[:len(s):len(s)], i))
				count[i]--
			}
		}
	}

	next(nil)
}

// Instances begin and end in any order. One process is killed between any two changes, and starts
// again, or another process cleans up. route_localnet is never on without a guard, and in the end
// all values are restored.
func TestAProcessIsKilledBetweenAnyTwoSteps(t *testing.T) {
	t.Parallel()
	worlds := 0
	for n := 1; n <= 3; n++ {
		sequences(n, func(events []int) {
			for _, value := range []string{"0", "1"} {
				for _, again := range []map[string]string{ours, nil} {
					for step, killed := 0, true; killed; step++ {
						w := newWorld(value)
						killed = w.run(t, n, events, step, again)
						worlds++
						require.Equal(t, w.before, w.values,
							"%v from %s, killed at step %d, then %v", events, value, step, again)
						require.Empty(t, w.tables)
					}
				}
			}
		})
	}

	require.Greater(t, worlds, 3000)
}

// run lets instances begin and end, and kills the process before the change with the number step.
// The next process applies the wanted values again. It reports whether a process was killed.
func (w *world) run(t *testing.T, n int, events []int, step int,
	again map[string]string) (killed bool) {
	w.steps = step
	running := make([]*process, n)
	for _, i := range events {
		want := ours
		if running[i] == nil {
			running[i] = w.start(fmt.Sprint(i))
		} else {
			want = nil
		}

		err := running[i].apply(want)
		if errors.Is(err, errKilled) {
			w.steps, killed = -1, true
			running[i] = w.start(fmt.Sprint(i))
			err = running[i].apply(again)
		}

		require.NoError(t, err, "%v, killed before step %d, then %v", events, step, again)
		if len(w.tables) > 0 {
			require.Equal(t, ours, w.values, "others need them: %v, step %d", events, step)
		}
	}

	w.steps = -1
	for i := range n {
		require.NoError(t, w.start(fmt.Sprint(i)).apply(nil))
	}
	return killed
}

// If the ruleset is flushed, the processes remember the earlier values, whatever they do first.
func TestEarlierValuesOutliveAFlush(t *testing.T) {
	t.Parallel()
	for _, value := range []string{"0", "1"} {
		for first := range 8 { // the instances that apply again before all end
			w := newWorld(value)
			var running []*process
			for i := range 3 {
				running = append(running, w.start(fmt.Sprint(i)))
				require.NoError(t, running[i].apply(ours))
			}

			clear(w.tables)
			w.before[sysctls.RouteLocalnet] = "1" // no guard, unavoidably
			for i, p := range running {
				if first&(1<<i) != 0 {
					require.NoError(t, p.apply(ours))
				}
			}

			for _, p := range running {
				require.NoError(t, p.apply(nil))
			}
			for name := range w.values {
				require.Equal(t, value, w.values[name], "%s, %b", name, first)
			}
		}
	}
}

// A value that another program has set since is left alone, and so is a value that no longer
// exists.
func TestValuesOfOthersAreLeft(t *testing.T) {
	t.Parallel()
	w := newWorld("0")
	p := w.start("x")
	var log strings.Builder
	p.owner.Logger = slog.New(slog.NewTextHandler(&log, nil))
	require.NoError(t, p.apply(ours))
	require.Equal(t, []string{"net.ipv4.conf.all.route_localnet=0", "net.ipv4.ip_forward=0"},
		p.state.Plan(map[string]string{}).Lines())
	w.values[forward] = "2"
	hold, err := p.owner.Hold(t.Context(), ours)
	require.NoError(t, err)
	require.False(t, hold)
	drift, err := p.owner.Drift(t.Context(), &p.state, ours)
	require.NoError(t, err)
	require.Equal(t, []string{"sysctl net.ipv4.ip_forward is 2"}, drift)
	require.NoError(t, p.apply(nil))
	require.Equal(t, map[string]string{sysctls.RouteLocalnet: "0", forward: "2"}, w.values)
	require.Contains(t, log.String(), "somebody else has set it since")

	w = newWorld("0")
	p = w.start("x")
	require.NoError(t, p.apply(ours))
	delete(w.values, forward)
	require.ErrorIs(t, p.apply(ours), fs.ErrNotExist)
	require.NoError(t, p.apply(nil))
}

// Sysctls are files. An error names the file.
func TestFiles(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	file := filepath.Join(root, forward)
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o700))
	require.NoError(t, os.WriteFile(file, []byte("0\n"), 0o600))
	entered := 0
	f := sysctls.Files{Root: root, In: func(fn func() error) error { entered++; return fn() }}
	defer f.Close()
	for _, value := range []string{"0", "1", "1"} {
		require.NoError(t, f.Write(t.Context(), forward, value))
		got, err := f.Read(t.Context(), forward)
		require.NoError(t, err)
		require.Equal(t, value, got)
	}

	require.Equal(t, 4, entered, "the file that is read stays open")

	// The sysctl's module was loaded again, or the sysctl has no value.
	require.NoError(t, os.Truncate(file, 0))
	_, err := f.Read(t.Context(), forward)
	require.ErrorContains(t, err, forward)
	require.NoError(t, os.WriteFile(file, []byte("1"), 0o600))
	got, err := f.Read(t.Context(), forward)
	require.NoError(t, err)
	require.Equal(t, "1", got)

	_, err = f.Read(t.Context(), "none")
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorContains(t, err, "read sysctl none: open "+root+"/none")
	err = f.Write(t.Context(), "none/there", "1")
	require.ErrorContains(t, err, "set sysctl none/there to 1: open "+root+"/none/there")
}

func TestRecords(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, value, text string }{
		{sysctls.RouteLocalnet, "0", "route-localnet-before 0"},
		{sysctls.RouteLocalnet, "1", "route-localnet-before 1"},
		{forward, "0", "sysctl net/ipv4/ip_forward 0"},
		{"timeout tcp", "900", "timeout tcp 900"},
	} {
		require.Equal(t, c.text, sysctls.Record(c.name, c.value))
		name, value, ok := sysctls.ParseRecord(c.text)
		require.True(t, ok)
		require.Equal(t, []string{c.name, c.value}, []string{name, value})
	}

	require.Equal(t, "route-localnet-before 0", sysctls.Record(sysctls.RouteLocalnet, ""))
	require.Empty(t, sysctls.ParseRecords([]string{"", "layout 4", "sysctl", "masquerade-mark 1"}))
}

func TestLoopback(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		localhost bool
		nodePorts string
		want      string
	}{
		{false, "0.0.0.0/0", ""}, {true, "0.0.0.0/0", "127.0.0.0/8"},
		{true, "127.0.0.1/32", "127.0.0.1/32"}, {true, "192.0.2.0/24", ""}, {true, "::/0", ""},
	} {
		r := servicemodel.Rules{LocalhostNodePorts: c.localhost,
			NodePorts: []netip.Prefix{netip.MustParsePrefix(c.nodePorts)}}
		got := ""
		for _, p := range sysctls.LoopbackNodePorts(&r) {
			got += p.String()
		}
		require.Equal(t, c.want, got)
		require.Equal(t, c.want != "", sysctls.Loopback(&r) != nil)
	}
}

// A value that was restored for a transaction which then failed is not called the work of another
// program, unless it still differs at the second reading.
func TestWhatAFailedTransactionLeavesIsNoDrift(t *testing.T) {
	t.Parallel()
	w := newWorld("1")
	w.tables["guard"] = nil
	owner := sysctls.Owner{Values: w, Ours: ours}
	state := sysctls.State{Records: map[string]string{sysctls.RouteLocalnet: "0"}}
	want := map[string]string{sysctls.RouteLocalnet: "1"}

	failure := errors.New("another program has committed")
	require.ErrorIs(t, owner.Around(t.Context(), &state, state.Plan(nil),
		func() error { return failure }), failure)
	require.Equal(t, "0", w.values[sysctls.RouteLocalnet])
	state = state.Read(state.Records, true)
	for reading, drift := range []int{0, 1} {
		l, err := owner.Drift(t.Context(), &state, want)
		require.NoError(t, err)
		require.Len(t, l, drift, "reading %d", reading)
		c := state.Plan(want)
		require.Equal(t, want, c.Set)
	}
}

func TestAnOwnerAlone(t *testing.T) {
	t.Parallel()
	w := newWorld("0")
	w.tables["guard"] = nil
	owner := sysctls.Owner{Values: w, Ours: ours}
	var state sysctls.State
	want := map[string]string{sysctls.RouteLocalnet: "1"}

	require.NoError(t, owner.Look(t.Context(), &state, want))
	c := state.Plan(want)
	require.Equal(t, want, c.Set)
	require.NoError(t, owner.Around(t.Context(), &state, c, func() error { return nil }))
	require.Equal(t, "1", w.values[sysctls.RouteLocalnet])

	back := sysctls.Change{Restore: map[string]string{sysctls.RouteLocalnet: "0"}}
	w.values[sysctls.RouteLocalnet] = "2"
	require.NoError(t, owner.Restore(t.Context(), back), "no logger")
	require.Equal(t, "2", w.values[sysctls.RouteLocalnet], "somebody else has set it since")
	w.values[sysctls.RouteLocalnet] = "1"
	require.NoError(t, owner.Restore(t.Context(), back))
	require.Equal(t, "0", w.values[sysctls.RouteLocalnet])
}
