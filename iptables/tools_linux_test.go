package iptables

import (
	"bytes"
	"cmp"
	"context"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/test/must"
	"github.com/kernlb/kernlb/internal/test/nstest"
	"github.com/kernlb/kernlb/internal/test/randstate"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// The tools of iptables are witnesses: they must print our rules as we meant them, and we must read
// their rules as our own.

// toolset is a version of iptables: a program that is called like xtables-nft-multi, with the name
// of a tool and its arguments. The empty toolset is the installed iptables.
type toolset string

// toolsets are the versions of iptables that check our rules: the installed one, and the programs
// that KERNLB_IPTABLES names, separated by colons.
func toolsets(t *testing.T) []toolset {
	t.Helper()
	var l []toolset
	if _, err := exec.LookPath("iptables-save"); err == nil {
		l = append(l, "")
	}
	for _, p := range strings.Split(os.Getenv("KERNLB_IPTABLES"), ":") {
		if p != "" {
			l = append(l, toolset(p))
		}
	}

	if len(l) == 0 {
		t.Skip(
			"iptables is not installed (Debian package iptables), and KERNLB_IPTABLES names none")
	}

	return l
}

// eachToolset runs a test with every version of iptables.
func eachToolset(t *testing.T, test func(*testing.T, toolset)) {
	t.Helper()
	for _, p := range toolsets(t) {
		t.Run("iptables "+cmp.Or(string(p), "of the machine"), func(t *testing.T) {
			t.Parallel()
			test(t, p)
		})
	}
}

// run runs a tool in a namespace. It must print nothing on standard error.
func (p toolset) run(t *testing.T, ns *netnstest.NS, stdin, name string, args ...string) string {
	t.Helper()
	argv := append([]string{name}, args...)
	if p != "" {
		argv = append([]string{string(p)}, argv...)
	} else if _, err := exec.LookPath(name); err != nil {
		t.Skipf("%s is not installed (Debian package iptables)", name)
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

// runTool runs a tool of the installed iptables.
func runTool(t *testing.T, ns *netnstest.NS, stdin, name string, args ...string) string {
	t.Helper()
	return toolset("").run(t, ns, stdin, name, args...)
}

// versionNumber matches a version of an instance.
var versionNumber = regexp.MustCompile(`-VERSION-[0-9a-f]{8}`)

// save returns the output of iptables-save, without the lines that contain the time, and always
// with the same version.
func (p toolset) save(t *testing.T, ns *netnstest.NS, f *nft.Family) string {
	t.Helper()
	out := p.run(t, ns, "", toolName(f.Model)+"-save")
	lines := strings.SplitAfter(out, "\n")
	lines = slices.DeleteFunc(lines, func(l string) bool { return strings.HasPrefix(l, "#") })
	return versionNumber.ReplaceAllString(strings.Join(lines, ""), "-VERSION-00000000")
}

func save(t *testing.T, ns *netnstest.NS, f *nft.Family) string {
	t.Helper()
	return toolset("").save(t, ns, f)
}

// apply applies a state with its own backend.
func apply(t *testing.T, b *backend, s sm.State) *sm.Table {
	t.Helper()
	r := applied(t, dataplane.New(b, nil), s)
	return r.Changes.New
}

// ourText returns all rules of a backend in one table, in the form of iptables-save and in the
// order of each chain.
func ourText(b *backend, t table) string {
	chains := map[string][]rule{}
	b.l.chains(b.state, func(id chainID, rules []rule, _ bool) {
		if id.table == t {
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
			chains[n][j].appendText(&out, t.family().Model)
			out.WriteByte('\n')
		}
	}

	return out.String()
}

// savedRules returns the rules of a table from the output of iptables-save, chains sorted by name.
func savedRules(saved string, t tableKind) string {
	_, part, _ := strings.Cut(saved, "*"+t.String()+"\n")
	part, _, _ = strings.Cut(part, "COMMIT\n")
	var l []string
	for line := range strings.Lines(part) {
		if strings.HasPrefix(line, "-A ") {
			l = append(l, line)
		}
	}

	slices.SortStableFunc(l, func(a, b string) int {
		return strings.Compare(strings.Fields(a)[1], strings.Fields(b)[1])
	})
	return strings.Join(l, "")
}

func TestIptablesSavePrintsWhatWasMeant(t *testing.T) {
	t.Parallel()
	eachToolset(t, func(t *testing.T, p toolset) {
		b, ns, _ := opened(t, Config{})
		apply(t, b, richState(t, 1))
		for _, f := range nft.Families {
			saved := p.save(t, ns, f)
			for _, table := range kinds {
				want := ourText(b, table.of(f))
				require.Greater(t, strings.Count(want, "\n"), 50)
				require.Equal(t, want, savedRules(saved, table), "%s %s", f.Name, table)
				listed := p.run(t, ns, "", toolName(f.Model), "-t", table.String(), "-L",
					"-n", "-v")
				require.Contains(t, listed, "Chain KUBE-SERVICES (")
				p.run(t, ns, "", toolName(f.Model), "-t", table.String(), "-S")
			}
		}
	})
}

func TestWhatIptablesSavePrintsCanBeRestored(t *testing.T) {
	t.Parallel()
	eachToolset(t, func(t *testing.T, p toolset) {
		b, ns, _ := opened(t, Config{})
		want := apply(t, b, richState(t, 2))
		other, otherNS, _ := opened(t, Config{})
		for _, f := range nft.Families {
			p.run(t, otherNS, p.save(t, ns, f), toolName(f.Model)+"-restore")
		}
		require.NoError(t, otherNS.SetSysctl("net/ipv4/conf/all/route_localnet", "1"))
		o := observation(t, other)
		require.Empty(t, o.Drift)
		requireSameTable(t, want, o.Table)
	})
}

// Restored rules work like ours, and connections survive while they replace ours.
func TestPacketsFlowAfterARestore(t *testing.T) {
	t.Parallel()
	eachToolset(t, func(t *testing.T, p toolset) {
		c, _, e := engineIn(t)
		applied(t, e, podService(c, 3, nil))
		for i, f := range nft.Families {
			to := netip.AddrPortFrom(must.Addrs("10.96.0.10", "fd00:10:96::a")[i], 80)
			conns := ok(netnstest.OpenConns(t.Context(), c.Outside[0], to, 20))(t)
			p.run(t, c.Node.NS, p.save(t, c.Node.NS, f), toolName(f.Model)+"-restore")
			require.Zero(t, conns.Ping(time.Minute).Lost())
			require.NoError(t, conns.Close())
		}

		saved := [2]string{p.save(t, c.Node.NS, nft.IPv4), p.save(t, c.Node.NS, nft.IPv6)}
		cleanUp(t, e)
		for i, f := range nft.Families {
			to := []string{"10.96.0.10:80", "[fd00:10:96::a]:80"}[i]
			port := netip.AddrPortFrom(c.Node.Addr(netip.MustParseAddrPort(to).Addr()), 30080).
				String()
			require.Equal(t, netnstest.Refused, dial(t, c.Outside[0], port).Kind, "nothing is left")
			p.run(t, c.Node.NS, saved[i], toolName(f.Model)+"-restore")
			require.Equal(t, netnstest.Answered, dial(t, c.Outside[0], to).Kind)
			require.Equal(t, netnstest.Answered, dial(t, c.Outside[0], port).Kind)
			require.Equal(t, netnstest.Answered, dial(t, c.Pods[0], to).Kind)
		}

		r := applied(t, e, podService(c, 3, nil))
		require.Zero(t, r.Stats.Messages, "adopted as it is")
	})
}

func TestThePlanCanBeRestored(t *testing.T) {
	t.Parallel()
	eachToolset(t, func(t *testing.T, p toolset) {
		planned, ns, empty := opened(t, Config{})
		b, _, _ := opened(t, Config{})
		table := empty
		g := randstate.New(randomConfig(), rand.New(rand.NewPCG(3, 7)))
		s := g.State()
		for range 8 {
			next := resolve(t, table, s)
			c := sm.Diff(table, next)
			plan := ok(b.Plan(c))(t)
			p.restorePlan(t, ns, plan.String())
			ok(b.Commit(t.Context(), c))(t)
			o := observation(t, planned)
			require.Empty(t, o.Drift)
			requireSameTable(t, next, o.Table)
			table = next
			s = g.Change(g.Change(s))
		}
	})
}

// iptables-legacy keeps its own rules in the kernel. Its rules and ours do not affect each other.
func TestIptablesLegacyBeside(t *testing.T) {
	t.Parallel()
	c, b := clusterOf(t)
	const rules = "*filter\n-A FORWARD -p tcp -m tcp --dport 9 -j DROP\nCOMMIT\n" +
		"*nat\n:KUBE-SERVICES - [0:0]\n-A PREROUTING -j KUBE-SERVICES\n" +
		"-A KUBE-SERVICES -p tcp -m tcp --dport 9 -j RETURN\nCOMMIT\n"
	nstest.Exec(t, c.Node.NS, rules, "iptables-legacy-restore")
	e := dataplane.New(b, nil)
	s := podService(c, 3, nil)
	r := applied(t, e, s)
	require.Empty(t, r.Drift)
	require.Equal(t, netnstest.Answered, dial(t, c.Outside[0], "10.96.0.10:80").Kind)
	require.Equal(t, netnstest.Answered, dial(t, c.Pods[0], netip.AddrPortFrom(c.Node.IPv4, 30080).
		String()).Kind)
	requireIntegrity(t, b, backends.Intact)
	cleanUp(t, e)
	saved := nstest.Run(t, c.Node.NS, "iptables-legacy-save")
	for _, rule := range strings.Split(rules, "\n") {
		if strings.HasPrefix(rule, "-A") {
			require.Contains(t, saved, rule)
		}
	}
}

// restorePlan feeds the parts of a plan to the tools that the plan names.
func (p toolset) restorePlan(t *testing.T, ns *netnstest.NS, text string) {
	t.Helper()
	for _, part := range strings.Split(text, "# ")[1:] {
		command, body, _ := strings.Cut(part, "\n")
		words := strings.Fields(command)
		if key, value, ok := strings.Cut(command, "="); ok && words[0] == "sysctl" {
			key = strings.ReplaceAll(strings.TrimPrefix(key, "sysctl "), ".", "/")
			require.NoError(t, ns.SetSysctl(key, value))
			continue
		}

		p.run(t, ns, body, words[0], words[1:]...)
	}
}

// applied applies a state with an engine.
func applied(t *testing.T, e *dataplane.Engine, s sm.State) *dataplane.Result {
	t.Helper()
	return ok(e.Apply(t.Context(), s))(t)
}

// observation returns the observation of a backend.
func observation(t *testing.T, b *backend) *backends.Observation {
	t.Helper()
	return ok(b.Observe(t.Context(), nil))(t)
}

// cleaner is an engine or a backend.
type cleaner interface {
	Cleanup(ctx context.Context) (backends.Stats, error)
}

func cleanUp(t *testing.T, c cleaner) backends.Stats {
	t.Helper()
	return ok(c.Cleanup(t.Context()))(t)
}

func requireIntegrity(t *testing.T, b *backend, want backends.Integrity, why ...any) {
	t.Helper()
	i := ok(b.Integrity(t.Context()))(t)
	require.Equal(t, want, i, why...)
}

// another returns a second backend in a namespace.
func another(t *testing.T, ns *netnstest.NS) *backend {
	t.Helper()
	b := ok(openBackend(&Config{NetNS: ns.NetNS()}))(t)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

// engineOf returns an engine, its backend and their namespace.
func engineOf(t *testing.T) (*dataplane.Engine, *backend, *netnstest.NS) {
	t.Helper()
	b, ns, _ := opened(t, Config{})
	return dataplane.New(b, nil), b, ns
}

// engineIn returns a network whose pods serve, a backend on its node, and its engine.
func engineIn(t *testing.T) (*netnstest.Cluster, *backend, *dataplane.Engine) {
	t.Helper()
	c, b := clusterOf(t)
	return c, b, dataplane.New(b, nil)
}

// opened returns a backend in its own namespace, and its first observation.
func opened(tb testing.TB, cfg Config) (*backend, *netnstest.NS, *sm.Table) {
	tb.Helper()
	ns := nstest.New(tb)
	cfg.NetNS = ns.NetNS()
	b := ok(openBackend(&cfg))(tb)
	tb.Cleanup(func() { require.NoError(tb, b.Close()) })
	o := ok(b.Observe(context.Background(), nil))(tb)
	require.Empty(tb, o.Drift)
	return b, ns, o.Table
}
