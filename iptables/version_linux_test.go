package iptables

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/ration"
	"github.com/kernlb/kernlb/internal/rawnl"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// Each commit gives the instance another version; iptables shows it and restores it.
func TestTheVersionIsSavedAndRestored(t *testing.T) {
	t.Parallel()
	b, ns, _ := opened(t, Config{})
	e := dataplane.New(b, nil)
	_, err := e.Apply(t.Context(), webService())
	require.NoError(t, err)
	first := b.l.names.version(b.found.versions[0])
	old := runTool(t, ns, "", "iptables-save")
	require.Contains(t, old, ":"+first+" - [0:0]\n")

	_, err = e.Apply(t.Context(), richState(t, 3))
	require.NoError(t, err)
	second := b.l.names.version(b.found.versions[0])
	now := runTool(t, ns, "", "iptables-save")
	require.NotContains(t, now, first)
	require.Contains(t, now, second)

	// The same rules restored are the same; older ones are noticed.
	runTool(t, ns, now, "iptables-restore")
	i, err := b.Integrity(t.Context())
	require.NoError(t, err)
	require.NotEqual(t, dataplane.Broken, i)
	runTool(t, ns, old, "iptables-restore")
	i, err = b.Integrity(t.Context())
	require.NoError(t, err)
	require.Equal(t, dataplane.Broken, i)
	r, err := e.Apply(t.Context(), richState(t, 3))
	require.NoError(t, err)
	require.False(t, r.Changes.Empty())

	// Restored beside what is there, an old version is one too many.
	beside := "*nat\n:" + first + " - [0:0]\nCOMMIT\n"
	runTool(t, ns, beside, "iptables-restore", "--noflush")
	r, err = e.Apply(t.Context(), richState(t, 3))
	require.NoError(t, err)
	require.Len(t, r.Drift, 1)
	require.Contains(t, r.Drift[0], "does not belong")
	saved := runTool(t, ns, "", "iptables-save")
	require.Equal(t, 1, strings.Count(saved, "-VERSION-"))
	requireAdopts(t, ns, richState(t, 3), r.Changes.New)
}

// Whoever deletes the version makes nothing worse: the next apply notices and gives another.
func TestALostVersionIsReplaced(t *testing.T) {
	t.Parallel()
	b, ns, _ := opened(t, Config{})
	e := dataplane.New(b, nil)
	s := webService()
	_, err := e.Apply(t.Context(), s)
	require.NoError(t, err)
	runTool(t, ns, "", "iptables", "-t", "nat", "-X", b.l.names.version(b.found.versions[0]))
	startNeighbour(t, ns, time.Millisecond, inItsOwnTable)
	r, err := e.Apply(t.Context(), s)
	require.NoError(t, err)
	require.Equal(t, []string{"chain KUBE-VERSION of table ip nat is missing"}, r.Drift)
	require.True(t, r.Changes.Empty())
	require.Len(t, b.found.versions, 1)
	requireAdopts(t, ns, s, r.Changes.New)
}

// What the kernel lists of uses is what follows from the commits, through any sequence of
// changes, so that a look finds nothing where nothing is.
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
		_, err := e.Apply(t.Context(), s)
		require.NoError(t, err)
		whole, certain, err := b.look(t.Context())
		require.NoError(t, err)
		require.True(t, certain)
		require.True(t, whole)
	}
	for _, s := range append(writerStates(), sm.State{}.WithNode(testNode())) {
		_, err := e.Apply(t.Context(), s)
		require.NoError(t, err)
		_, err = e.Observe(t.Context())
		require.NoError(t, err)
		whole, _, err := b.look(t.Context())
		require.NoError(t, err)
		require.True(t, whole)
	}
}

// Looks are rationed, and noticing another writer is not.
func TestLooksAreRationed(t *testing.T) {
	t.Parallel()
	b, ns, _ := opened(t, Config{})
	apply(t, b, webService())
	b.kernel.looks = ration.Ration{}
	runTool(t, ns, "", "iptables", "-t", "nat", "-F", "KUBE-MARK-MASQ")
	integrity := func(want dataplane.Integrity) {
		t.Helper()
		i, err := b.Integrity(t.Context())
		require.NoError(t, err)
		require.Equal(t, want, i)
	}
	integrity(dataplane.Touched)
	b.kernel.looks = ration.New(1, 20)
	integrity(dataplane.Broken)
	b.kernel.looks = ration.Ration{}

	other, err := New(&Config{NetNS: ns.Fd()})
	require.NoError(t, err)
	defer other.Close()
	apply(t, other, webService())
	integrity(dataplane.Broken)
}

// A look that finds nothing after a foreign commit asks for a reading: a rule may be another one.
func TestAForeignCommitAsksForAReading(t *testing.T) {
	t.Parallel()
	b, ns, _ := opened(t, Config{})
	apply(t, b, webService())
	for range 2 {
		runTool(t, ns, "", "iptables", "-A", "INPUT", "-p", "tcp", "--dport", "7", "-j", "RETURN")
		for _, want := range []dataplane.Integrity{dataplane.Touched, dataplane.Intact} {
			i, err := b.Integrity(t.Context())
			require.NoError(t, err)
			require.Equal(t, want, i)
		}
	}
}

// localnetGuard is the rule of somebody else who relies on the sysctl.
const localnetGuard = "*filter\n:OTHER-FIREWALL - [0:0]\n" +
	"-A OTHER-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 " +
	"-m comment --comment \"block incoming localnet connections\" " +
	"-m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP\nCOMMIT\n"

// localnets are what the sysctl is before, and after the node ports no longer need it.
var localnets = []struct {
	name          string
	before        string
	guards, later bool // another guard is there before, or comes later
	record, after string
}{
	{"it was off", "0", false, false, "0", "0"},
	{"it was on", "1", false, false, "1", "1"},
	{"it was on with a guard", "1", true, false, "0", "1"},
	{"a guard comes later", "0", false, true, "0", "1"},
}

// The sysctl is as it was before once node ports no longer answer at localhost, whichever
// process ends it; where others rely on it, it stays on.
func TestRouteLocalnetIsRestored(t *testing.T) {
	t.Parallel()
	node := testNode()
	node.LocalhostNodePorts = true
	with, without := webService().WithNode(node), webService()
	set := func(t *testing.T, ns *netnstest.NS, v string) {
		require.NoError(t, ns.SetSysctl("net/ipv4/conf/all/route_localnet", v))
	}
	for _, c := range localnets {
		for _, how := range []string{"apply", "cleanup", "another process"} {
			t.Run(c.name+", "+how, func(t *testing.T) {
				t.Parallel()
				b, ns, _ := opened(t, Config{})
				e := dataplane.New(b, nil)
				_, err := e.Apply(t.Context(), without)
				require.NoError(t, err)
				set(t, ns, c.before) // after it was observed
				if c.guards {
					runTool(t, ns, localnetGuard, "iptables-restore", "--noflush")
				}
				_, err = e.Apply(t.Context(), with)
				require.NoError(t, err)
				require.Equal(t, "1", sysctlValue(t, b))
				require.Contains(t, save(t, ns, nft.IPv4),
					`"route-localnet-before `+c.record+`"`)
				if c.later {
					runTool(t, ns, localnetGuard, "iptables-restore", "--noflush")
				}
				switch how {
				case "apply":
					_, err = e.Apply(t.Context(), without)
				case "cleanup":
					_, err = e.Cleanup(t.Context())
				default:
					other, err := New(&Config{NetNS: ns.Fd()})
					require.NoError(t, err)
					defer other.Close()
					o, err := other.Observe(t.Context(), nil)
					require.NoError(t, err)
					require.Empty(t, o.Drift)
					apply(t, other, without)
				}
				require.NoError(t, err)
				require.Equal(t, c.after, sysctlValue(t, b))
				require.NotContains(t, save(t, ns, nft.IPv4), "route-localnet")
			})
		}
	}
}

// Two instances with node ports at localhost: whoever goes last turns the sysctl off.
func TestTwoInstancesShareRouteLocalnet(t *testing.T) {
	t.Parallel()
	one, ns, _ := opened(t, Config{})
	two, err := New(&Config{NetNS: ns.Fd(), Prefix: "OTHER"})
	require.NoError(t, err)
	defer two.Close()
	node := testNode()
	node.LocalhostNodePorts = true
	for _, b := range []*Backend{one, two} {
		apply(t, b, webService().WithNode(node))
		require.Equal(t, "1", sysctlValue(t, b))
	}
	_, err = one.Cleanup(t.Context())
	require.NoError(t, err)
	require.Equal(t, "1", sysctlValue(t, one))
	_, err = two.Cleanup(t.Context())
	require.NoError(t, err)
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
	web.LoadBalancerSourceRanges = prefixes("198.51.100.0/24", "192.0.2.0/24")
	for i := range eps {
		eps[i].Node, eps[i].Ports = "elsewhere",
			[]sm.EndpointPort{{Name: long("p"), Protocol: sm.TCP, Port: 8080}}
	}
	want := sm.State{}.WithNode(testNode()).WithService(&web).WithEndpoints(web.Name, eps)
	r, err := dataplane.New(b, nil).Apply(t.Context(), want)
	require.NoError(t, err)
	requireAdopts(t, ns, want, r.Changes.New)
	for _, f := range nft.Families {
		saved := save(t, ns, f)
		require.Contains(t, saved, web.Name.Namespace+"/"+web.Name.Name+":"+web.Ports[0].Name)
		runTool(t, ns, saved, toolName(f.Model)+"-restore")
	}
	requireAdopts(t, ns, want, r.Changes.New)
}

// Chains of the same names in other tables are nobody's business.
func TestOtherTablesDoNotMatter(t *testing.T) {
	t.Parallel()
	b, ns, _ := opened(t, Config{})
	conn, err := rawnl.Dial(&rawnl.Config{NetNS: ns.Fd()})
	require.NoError(t, err)
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
		r, err := dataplane.New(b, nil).Apply(t.Context(), s)
		require.NoError(t, err)
		require.Empty(t, r.Drift)
		whole, certain, err := b.look(t.Context())
		require.NoError(t, err)
		require.True(t, whole && certain)
	}
}
