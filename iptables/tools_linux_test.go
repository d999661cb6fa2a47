package iptables

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/netnstest"
	"github.com/kernlb/kernlb/internal/randstate"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// The tools of iptables are witnesses: what they print of our rules must be what we meant, and what they write must be read as ours.

// toolPrefix names a command to run the tools with, such as another version of them: it is called with the name of the tool and its
// arguments.
const toolPrefix = "KERNLB_XTABLES_NFT_MULTI"

// runTool runs a tool of iptables in a namespace. It must print nothing on standard error.
func runTool(t *testing.T, ns *netnstest.NS, stdin, name string, args ...string) string {
	t.Helper()
	argv := append([]string{name}, args...)
	if p := os.Getenv(toolPrefix); p != "" {
		argv = append([]string{p}, argv...)
	} else if _, err := exec.LookPath(name); err != nil {
		t.Skipf("%s is not installed", name)
	}
	var stdout, stderr bytes.Buffer
	err := ns.Do(func() error {
		cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
		return cmd.Run()
	})
	require.NoError(t, err, "%s: %s%s", strings.Join(argv, " "), &stdout, &stderr)
	require.Empty(t, stderr.String(), "%s complains", name)
	require.NotContains(t, stdout.String(), "incompatible")
	return stdout.String()
}

// save returns what iptables-save prints, without the lines that have the time in them.
func save(t *testing.T, ns *netnstest.NS, f *family) string {
	t.Helper()
	out := runTool(t, ns, "", toolName(f.model)+"-save")
	lines := strings.SplitAfter(out, "\n")
	return strings.Join(slices.DeleteFunc(lines, func(l string) bool { return strings.HasPrefix(l, "#") }), "")
}

// apply applies a state with a backend of its own.
func apply(t *testing.T, b *Backend, s sm.State) *sm.Table {
	t.Helper()
	r, err := dataplane.New(b, nil).Apply(t.Context(), s)
	require.NoError(t, err)
	return r.Changes.New
}

// ourText returns all rules of a backend as iptables-save prints them, by table, and the rules of each chain in order.
func ourText(b *Backend, i int, t tableID) string {
	chains := map[string][]rule{}
	b.l.chains(b.state, func(id chainID, rules []rule, _ bool) {
		if int(id.family) == i && id.table == t {
			chains[id.name] = rules
		}
	})
	var names []string
	for n := range chains {
		names = append(names, n)
	}
	slices.Sort(names)
	var out strings.Builder
	for _, n := range names {
		for j := range chains[n] {
			out.WriteString("-A " + n)
			chains[n][j].appendText(&out, families[i].model)
			out.WriteByte('\n')
		}
	}
	return out.String()
}

// savedRules returns the rules of a table as iptables-save printed them, chains sorted by name.
func savedRules(saved string, t tableID) string {
	_, part, _ := strings.Cut(saved, "*"+t.String()+"\n")
	part, _, _ = strings.Cut(part, "COMMIT\n")
	var l []string
	for line := range strings.Lines(part) {
		if strings.HasPrefix(line, "-A ") {
			l = append(l, line)
		}
	}
	slices.SortStableFunc(l, func(a, b string) int { return strings.Compare(strings.Fields(a)[1], strings.Fields(b)[1]) })
	return strings.Join(l, "")
}

func TestIptablesSavePrintsWhatWasMeant(t *testing.T) {
	t.Parallel()
	b, ns, _ := opened(t, Config{})
	apply(t, b, richState(t, 1))
	for i, f := range families {
		saved := save(t, ns, f)
		for _, table := range tables {
			want := ourText(b, i, table)
			require.Greater(t, strings.Count(want, "\n"), 50)
			require.Equal(t, want, savedRules(saved, table), "%s %s", f.name, table)
			runTool(t, ns, "", toolName(f.model), "-t", table.String(), "-L", "-n")
			runTool(t, ns, "", toolName(f.model), "-t", table.String(), "-S")
		}
	}
}

func TestWhatIptablesSavePrintsCanBeRestored(t *testing.T) {
	t.Parallel()
	b, ns, _ := opened(t, Config{})
	want := apply(t, b, richState(t, 2))
	other, otherNS, _ := opened(t, Config{})
	for _, f := range families {
		runTool(t, otherNS, save(t, ns, f), toolName(f.model)+"-restore")
	}
	require.NoError(t, otherNS.SetSysctl("net/ipv4/conf/all/route_localnet", "1"))
	o, err := other.Observe(t.Context())
	require.NoError(t, err)
	require.Empty(t, o.Drift)
	requireSameTable(t, want, o.Table)
}

func TestThePlanCanBeRestored(t *testing.T) {
	t.Parallel()
	planned, ns, empty := opened(t, Config{})
	b, _, _ := opened(t, Config{})
	ctx := context.Background()
	table := empty
	g := randstate.New(randomConfig(), rand.New(rand.NewPCG(3, 7)))
	s := g.State()
	for range 8 {
		next := resolve(t, table, s)
		c := sm.Diff(table, next)
		p, err := b.Plan(c)
		require.NoError(t, err)
		restorePlan(t, ns, p.String())
		_, err = b.Commit(ctx, c)
		require.NoError(t, err)
		o, err := planned.Observe(ctx)
		require.NoError(t, err)
		require.Empty(t, o.Drift)
		requireSameTable(t, next, o.Table)
		table = next
		s = g.Change(g.Change(s))
	}
}

// restorePlan feeds the parts of a plan to the tools that they name.
func restorePlan(t *testing.T, ns *netnstest.NS, text string) {
	t.Helper()
	for _, part := range strings.Split(text, "# ")[1:] {
		command, body, _ := strings.Cut(part, "\n")
		words := strings.Fields(command)
		if key, value, ok := strings.Cut(command, "="); ok && words[0] == "sysctl" {
			key = strings.ReplaceAll(strings.TrimPrefix(key, "sysctl "), ".", "/")
			require.NoError(t, ns.SetSysctl(key, value))
			continue
		}
		runTool(t, ns, body, words[0], words[1:]...)
	}
}

// runCommand runs a command in a namespace.
func runCommand(t *testing.T, ns *netnstest.NS, name string, args ...string) {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		t.Skipf("%s is not installed", name)
	}
	require.NoError(t, ns.Do(func() error {
		out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}))
}
