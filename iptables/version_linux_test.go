package iptables

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/test/must"
	"github.com/kernlb/kernlb/internal/test/nstest"
	"github.com/kernlb/kernlb/internal/wait"
	"github.com/kernlb/kernlb/nftables"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// Each commit gives the instance another version; iptables shows it and restores it.
func TestTheVersionIsSavedAndRestored(t *testing.T) {
	t.Parallel()
	e, b, ns := engineOf(t)
	applied(t, e, webService())
	first := b.found.versions[0].name
	old := runTool(t, ns, "", "iptables-save")
	require.Contains(t, old, ":"+first+" - [0:0]\n")

	applied(t, e, richState(t, 3))
	second := b.found.versions[0].name
	now := runTool(t, ns, "", "iptables-save")
	require.NotContains(t, now, first)
	require.Contains(t, now, second)

	// Restoring the same rules changes nothing. Restoring older rules is noticed.
	runTool(t, ns, now, "iptables-restore")
	i := ok(b.Integrity(t.Context()))(t)
	require.NotEqual(t, backends.Broken, i)
	runTool(t, ns, old, "iptables-restore")
	requireIntegrity(t, b, backends.Broken)
	r := applied(t, e, richState(t, 3))
	require.False(t, r.Changes.Empty())

	// An old version that is restored in addition to the present version is surplus.
	beside := "*nat\n:" + first + " - [0:0]\nCOMMIT\n"
	runTool(t, ns, beside, "iptables-restore", "--noflush")
	r = applied(t, e, richState(t, 3))
	require.Len(t, r.Drift, 1)
	require.Contains(t, r.Drift[0], "does not belong")
	saved := runTool(t, ns, "", "iptables-save")
	require.Equal(t, 1, strings.Count(saved, "-VERSION-"))
	requireAdopts(t, ns, richState(t, 3), r.Changes.New)
}

// Deleting the version is harmless: the next apply notices, and gives the instance a new version.
func TestALostVersionIsReplaced(t *testing.T) {
	t.Parallel()
	e, b, ns := engineOf(t)
	s := webService()
	applied(t, e, s)
	runTool(t, ns, "", "iptables", "-t", "nat", "-X", b.found.versions[0].name)
	startNeighbour(t, ns, time.Millisecond, inItsOwnTable)
	r := applied(t, e, s)
	require.Equal(t, []string{"chain KUBE-VERSION of table ip nat is missing"}, r.Drift)
	require.True(t, r.Changes.Empty())
	require.Len(t, b.found.versions, 1)
	requireAdopts(t, ns, s, r.Changes.New)
}

// A version that replaces a lost version is a normal version: the next commit knows it, and
// replaces it with a version of a different name. Otherwise a writer that read it in between would
// notice nothing.
func TestTheVersionAfterALostOne(t *testing.T) {
	t.Parallel()
	b, ns, _ := opened(t, Config{})
	lose := func() {
		t.Helper()
		runTool(t, ns, "", "iptables", "-t", "nat", "-X", b.found.versions[0].name)
		observe(t, b)
	}

	apply(t, b, webService())
	lose()
	ok(b.Commit(t.Context(), changeTo(t, b, webService())))(t)
	ok(b.Commit(t.Context(), changeTo(t, b, richState(t, 3))))(t)

	lose()
	require.NoError(t, b.giveVersion(t.Context()))
	given := b.found.versions[0]
	ok(b.Commit(t.Context(), changeTo(t, b, webService())))(t)
	require.NotEqual(t, given, b.found.versions[0])
}

// If the rules are flushed, and the guard with them, the process still knows that it turned
// route_localnet on.
func TestRouteLocalnetIsRestoredAfterAFlush(t *testing.T) {
	t.Parallel()
	const name = "net/ipv4/conf/all/route_localnet"
	e, _, ns := engineOf(t)
	for what, end := range map[string]func(){
		"repaired before the option goes": func() {
			applied(t, e, withLocalhost())
			applied(t, e, webService())
		},
		"the option goes": func() { applied(t, e, webService()) },
		"everything goes": func() { ok(e.Cleanup(t.Context()))(t) },
	} {
		for _, before := range []string{"0", "1"} {
			require.NoError(t, ns.SetSysctl(name, before))
			applied(t, e, withLocalhost())
			runTool(t, ns, "", "nft", "flush", "ruleset")
			end()
			require.Equal(t, before, ok(ns.Sysctl(name))(t), "%s; it was %s", what, before)
		}
	}

	applied(t, e, withLocalhost())
	other := ok(New(&Config{NetNS: ns.NetNS()}))(t)
	defer other.Close()
	applied(t, dataplane.New(other, nil), webService())
	require.NoError(t, ns.SetSysctl(name, "1"))
	applied(t, e, withLocalhost())
	applied(t, e, webService())
	require.Equal(t, "1", ok(ns.Sysctl(name))(t), "the administrator turned it on after another "+
		"process had turned it off")
}

// The last of several instances restores route_localnet, whatever the order of their removal.
func TestTheLastInstanceRestoresRouteLocalnet(t *testing.T) {
	t.Parallel()
	const name = "net/ipv4/conf/all/route_localnet"
	for _, before := range []string{"0", "1"} {
		for _, order := range []string{"012", "021", "102", "120", "201", "210"} {
			ns := nstest.New(t)
			require.NoError(t, ns.SetSysctl(name, before))
			instances := []backends.Backend{
				ok(New(&Config{NetNS: ns.NetNS()}))(t),
				ok(New(&Config{NetNS: ns.NetNS(), Prefix: "OTHER"}))(t),
				ok(nftables.New(&nftables.Config{NetNS: ns.NetNS()}))(t),
			}
			for _, b := range instances {
				defer b.Close()
				applied(t, dataplane.New(b, nil), withLocalhost())
			}
			for _, digit := range order {
				require.Equal(t, "1", ok(ns.Sysctl(name))(t), "%s: %c", order, digit)
				ok(dataplane.New(instances[digit-'0'], nil).Cleanup(t.Context()))(t)
			}
			require.Equal(t, before, ok(ns.Sysctl(name))(t), "%v", order)
		}
	}
}

// After any sequence of changes, the uses computed from the commits are the uses that the kernel
// lists, so a check finds nothing.
func TestALookFindsNothingWhereNothingIs(t *testing.T) {
	t.Parallel()
	b, ns, _ := opened(t, Config{})
	runTool(t, ns, `*nat
:KUBE-MARK-MASQ - [0:0]
:CNI-HOSTPORT - [0:0]
-A PREROUTING -j CNI-HOSTPORT
-A CNI-HOSTPORT -s 10.0.0.0/8 -j KUBE-MARK-MASQ
COMMIT
`, "iptables-restore")
	e := dataplane.New(b, nil)
	for _, s := range writerStates() {
		applied(t, e, s)
		whole, certain, err := b.look(t.Context())
		require.NoError(t, err)
		require.True(t, certain)
		require.True(t, whole)
	}

	for _, s := range append(writerStates(), sm.State{}.WithNode(testNode())) {
		applied(t, e, s)
		ok(e.Observe(t.Context()))(t)
		whole, _, err := b.look(t.Context())
		require.NoError(t, err)
		require.True(t, whole)
	}
}

// Checks are rate-limited. Noticing another writer is not.
func TestLooksAreRationed(t *testing.T) {
	t.Parallel()
	b, ns, _ := opened(t, Config{})
	apply(t, b, webService())
	b.kernel.looks = wait.Budget{}
	runTool(t, ns, "", "iptables", "-t", "nat", "-F", "KUBE-MARK-MASQ")
	integrity := func(want backends.Integrity) {
		t.Helper()
		requireIntegrity(t, b, want)
	}

	integrity(backends.Touched)
	b.kernel.looks = wait.NewBudget(1, 20)
	integrity(backends.Broken)
	b.kernel.looks = wait.Budget{}

	other := another(t, ns)
	apply(t, other, webService())
	integrity(backends.Broken)
}

// A check that finds nothing after a foreign commit requires a reading, because a rule may have
// been replaced.
func TestAForeignCommitAsksForAReading(t *testing.T) {
	t.Parallel()
	b, ns, _ := opened(t, Config{})
	apply(t, b, webService())
	for range 2 {
		runTool(t, ns, "", "iptables", "-A", "INPUT", "-p", "tcp", "--dport", "7", "-j", "RETURN")
		for _, want := range []backends.Integrity{backends.Touched, backends.Intact} {
			requireIntegrity(t, b, want)
		}
	}
}

// localnetGuard is the rule of another program that relies on the sysctl.
const localnetGuard = "*filter\n:OTHER-FIREWALL - [0:0]\n" +
	"-A OTHER-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 " +
	"-m comment --comment \"block incoming localnet connections\" " +
	"-m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP\nCOMMIT\n"

// localnets are the values of the sysctl before, and after the node ports no longer need it.
var localnets = []struct {
	name          string
	before        string
	guards, later bool // another guard exists before, or is added later
	record, after string
}{
	{"it was off", "0", false, false, "0", "0"},
	{"it was on", "1", false, false, "1", "1"},
	{"it was on with a guard", "1", true, false, "0", "1"},
	{"a guard comes later", "0", false, true, "0", "1"},
}

// The sysctl returns to its earlier value once node ports no longer answer at localhost, whichever
// process removes them. If other programs rely on the sysctl, it stays on.
func TestRouteLocalnetIsRestored(t *testing.T) {
	t.Parallel()
	node := testNode()
	node.LocalhostNodePorts = true
	with, without := webService().WithNode(node), webService()
	set := func(t *testing.T, ns *netnstest.NS, v string) {
		require.NoError(t, ns.SetSysctl("net/ipv4/conf/all/route_localnet", v))
	}
	for _, c := range localnets {
		for _, how := range []string{"apply", "another address", "cleanup", "another process"} {
			t.Run(c.name+", "+how, func(t *testing.T) {
				t.Parallel()
				e, b, ns := engineOf(t)
				applied(t, e, without)
				set(t, ns, c.before) // after the observation
				if c.guards {
					runTool(t, ns, localnetGuard, "iptables-restore", "--noflush")
				}
				applied(t, e, with)
				require.Equal(t, "1", sysctlValue(t, b))
				require.Contains(t, save(t, ns, nft.IPv4), `"route-localnet-before `+c.record+`"`)
				if c.later {
					runTool(t, ns, localnetGuard, "iptables-restore", "--noflush")
				}
				switch how {
				case "apply":
					applied(t, e, without)
				case "another address":
					elsewhere := node
					elsewhere.NodePortAddresses.CIDRs = must.Prefixes("192.0.2.0/24")
					applied(t, e, webService().WithNode(elsewhere))
				case "cleanup":
					cleanUp(t, e)
				default:
					other := another(t, ns)
					require.Empty(t, observation(t, other).Drift)
					apply(t, other, without)
				}

				require.Equal(t, c.after, sysctlValue(t, b))
				require.NotContains(t, save(t, ns, nft.IPv4), "route-localnet")
			})
		}
	}
}

// The guard that kubelet has put into the same chain stays, whichever process removes the node
// ports. Our guard is removed.
func TestTheGuardOfKubeletStays(t *testing.T) {
	t.Parallel()
	node := testNode()
	node.LocalhostNodePorts = true
	with, without := webService().WithNode(node), webService()
	for _, kubelet := range []bool{true, false} {
		b, ns, _ := opened(t, Config{})
		if kubelet {
			runTool(t, ns, strings.ReplaceAll(localnetGuard, "OTHER-", "KUBE-"), "iptables-restore",
				"--noflush")
		}

		requireGuard := func(want bool) {
			t.Helper()
			require.Equal(t, want, strings.Contains(save(t, ns, nft.IPv4),
				"block incoming localnet connections"))
		}

		e := dataplane.New(b, nil)
		for range 2 { // the second time, the guard that stayed is unchanged
			applied(t, e, with)
			requireGuard(true)
			applied(t, e, without)
			requireGuard(kubelet)
			require.Equal(t, "0", sysctlValue(t, b))
		}

		applied(t, e, with)
		requireAdopts(t, ns, with, b.state.table)
		other := another(t, ns)
		cleanUp(t, other)
		requireGuard(kubelet)
	}
}

// Two instances have node ports at localhost. The instance that is removed last turns the sysctl
// off.
func TestTwoInstancesShareRouteLocalnet(t *testing.T) {
	t.Parallel()
	one, ns, _ := opened(t, Config{})
	two := ok(openBackend(&Config{NetNS: ns.NetNS(), Prefix: "OTHER"}))(t)
	defer two.Close()
	node := testNode()
	node.LocalhostNodePorts = true
	for _, b := range []*backend{one, two} {
		apply(t, b, webService().WithNode(node))
		require.Equal(t, "1", sysctlValue(t, b))
	}

	cleanUp(t, one)
	require.Equal(t, "1", sysctlValue(t, one))
	cleanUp(t, two)
	require.Equal(t, "0", sysctlValue(t, two))
}

// Names as long as Kubernetes allows are written, read back, saved and restored.
func TestTheLongestNames(t *testing.T) {
	t.Parallel()
	long := func(c string) string { return strings.Repeat(c, 63) }
	b, ns, _ := opened(t, Config{})
	web := *webService().Service(svcName("web"))
	eps := webService().Endpoints(svcName("web"))
	web.Name = sm.Name{Namespace: long("n"), Name: long("s")}
	web.Ports = []sm.ServicePort{{Name: long("p"), Protocol: sm.TCP, Port: 80, NodePort: 30080}}
	web.SessionAffinity.ClientIP = true
	web.ExternalTrafficPolicy = sm.PolicyLocal
	web.Scheduler = sm.RoundRobin
	web.LoadBalancerSourceRanges = must.Prefixes("198.51.100.0/24", "192.0.2.0/24")
	for i := range eps {
		eps[i].Node, eps[i].Ports = "elsewhere",
			[]sm.EndpointPort{{Name: long("p"), Protocol: sm.TCP, Port: 8080}}
	}

	want := sm.State{}.WithNode(testNode()).WithService(&web).WithEndpoints(web.Name, eps)
	r := applied(t, dataplane.New(b, nil), want)
	requireAdopts(t, ns, want, r.Changes.New)
	for _, f := range nft.Families {
		saved := save(t, ns, f)
		require.Contains(t, saved, web.Name.Namespace+"/"+web.Name.Name+":"+web.Ports[0].Name)
		runTool(t, ns, saved, toolName(f.Model)+"-restore")
	}

	requireAdopts(t, ns, want, r.Changes.New)
}

// Chains with the same names in other tables do not matter.
func TestOtherTablesDoNotMatter(t *testing.T) {
	t.Parallel()
	b, ns, _ := opened(t, Config{})
	conn := ok(rawnl.Dial(&rawnl.Config{NetNS: ns.NetNS()}))(t)
	defer conn.Close()
	for _, f := range nft.Families {
		var batch rawnl.Batch
		table := nft.NewEncoder(&batch, f, "other")
		table.EnsureTable()
		for _, name := range []string{"KUBE-SERVICES", "KUBE-SETTINGS", "KUBE-VERSION-00000001"} {
			table.AddChain(&nft.Chain{Name: name})
		}
		require.NoError(t, conn.Commit(t.Context(), &batch, 0))
	}

	for _, s := range []sm.State{{}, webService()} {
		r := applied(t, dataplane.New(b, nil), s)
		require.Empty(t, r.Drift)
		whole, certain, err := b.look(t.Context())
		require.NoError(t, err)
		require.True(t, whole && certain)
	}
}

// The kernel does not delete a version that has a rule or to which a rule jumps. This delays
// nothing: the instance gets a new version, and the chain is deleted as soon as possible.
func TestARuleAtTheVersionHoldsNothingUp(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		args  []string // of iptables; % stands for the version
		stays bool
	}{
		{"in it", []string{"-A", "%", "-j", "RETURN"}, false},
		{"in it, to a chain of ours", []string{"-A", "%", "-j", "KUBE-MARK-MASQ"}, false},
		{"leads there", []string{"-A", "PREROUTING", "-j", "%"}, true},
		{"leads there from a chain of ours", []string{"-A", "KUBE-MARK-MASQ", "-j", "%"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			e, b, ns := engineOf(t)
			s := webService()
			applied(t, e, s)
			old := b.found.versions[0].name
			args := []string{"-t", "nat"}
			for _, a := range c.args {
				args = append(args, strings.ReplaceAll(a, "%", old))
			}
			runTool(t, ns, "", "iptables", args...)
			for i, next := range []sm.State{s, s.WithoutService(svcName("web")), s, s} {
				r := applied(t, e, next)
				require.Equal(t, i == 0, len(r.Drift) > 0, r.Drift)
				saved := runTool(t, ns, "", "iptables-save", "-t", "nat")
				require.Equal(t, c.stays, strings.Contains(saved, ":"+old+" "))
				require.Contains(t, saved, ":"+b.found.versions[0].name+" ")
			}

			requireAdopts(t, ns, s, b.state.table)
			cleanUp(t, e)
			left := runTool(t, ns, "", "iptables-save", "-t", "nat")
			require.Equal(t, c.stays, strings.Contains(left, "KUBE-"), left)
			if c.stays { // and it does not matter to a new instance
				runTool(t, ns, "", "iptables", "-t", "nat", "-D", "PREROUTING", "-j", old)
				applied(t, e, s)
				require.NotContains(t, runTool(t, ns, "", "iptables-save"), old)
			}
		})
	}
}

// The names of deleted chains are forgotten, whatever their number.
func TestNamesOfChainsAreForgotten(t *testing.T) {
	t.Parallel()
	e, b, _ := engineOf(t)
	names := b.kernel.reader.decoders[nft.IPv4]
	for i := range 3 * minNames {
		svc := &sm.Service{Name: svcName(fmt.Sprint("job-", i)),
			ClusterIPs: must.Addrs("10.96.0.1"),
			Ports:      []sm.ServicePort{{Protocol: sm.TCP, Port: 80}}}
		ok(e.Apply(t.Context(), sm.State{}.WithService(svc).WithEndpoints(svc.Name,
			[]sm.Endpoint{{Addr: must.Addrs("10.244.0.7")[0],
				Ports: []sm.EndpointPort{{Protocol: sm.TCP, Port: 8080}}}})))(t)
		require.LessOrEqual(t, len(names.chains), minNames)
	}

	require.NotEmpty(t, names.chains)
}
