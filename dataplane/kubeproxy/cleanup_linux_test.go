package kubeproxy

import (
	"context"
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/dataplane/netns"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/rtnetlink"
	"github.com/kernlb/kernlb/internal/test/nstest"
	"github.com/kernlb/kernlb/internal/test/rawnltest"
	"github.com/kernlb/kernlb/iptables"
	"github.com/kernlb/kernlb/nftables"
	sm "github.com/kernlb/kernlb/servicemodel"
)

func cleanup(t *testing.T, ns *netnstest.NS) *Plan {
	t.Helper()
	return ok(Cleanup(t.Context(), &Config{NetNS: ns.NetNS()}))(t)
}

func find(t *testing.T, ns *netnstest.NS) *Plan {
	t.Helper()
	return ok(Find(t.Context(), &Config{NetNS: ns.NetNS()}))(t)
}

// The objects of each version are deleted, in both families. Everything else stays the same, byte
// for byte.
func TestCleanupLeavesWhatWasThereBefore(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"iptables-1.28.rules", "iptables-1.30.rules",
		"iptables-1.36.rules", "ipvs-1.28.rules", "ipvs-1.36.rules", "nftables-1.29.nft",
		"nftables-1.36.nft"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			ns := nstest.New(t)
			before := others(t, ns)
			require.Equal(t, &Plan{}, find(t, ns), "nothing of kube-proxy's")
			load(t, ns, version)
			with := saved(t, ns)
			require.NotEqual(t, before, with)

			plan := find(t, ns)
			require.False(t, plan.Empty())
			require.Equal(t, with, saved(t, ns), "a plan changes nothing")
			require.Equal(t, plan, cleanup(t, ns), "what was planned is done")
			require.Equal(t, before, saved(t, ns))
			require.Equal(t, &Plan{}, cleanup(t, ns), "there is nothing left to do")
		})
	}
}

// load loads the objects of a version of kube-proxy.
func load(t *testing.T, ns *netnstest.NS, version string) {
	t.Helper()
	text := recorded(t, version)
	switch {
	case strings.HasPrefix(version, "nftables"):
		nstest.NFT(t, ns, text)
		nstest.NFT(t, ns, tables6(text))
		return
	case strings.HasPrefix(version, "ipvs"):
		makeSets(t, ns)
	case strings.Contains(text, "nfacct") && !makeCounters(t, ns):
		t.Skip("the kernel has no nfnetlink_acct")
	}

	restore(t, ns, text)
}

// The kernel does not delete a chain to which another program's rule jumps. The chain stays, with
// the chains to which its rules jump.
func TestChainsThatOthersUseStay(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	load(t, ns, "iptables-1.28.rules")
	restore(t, ns, `*nat
:CNI-DN-1 - [0:0]
-A CNI-DN-1 -p tcp --dport 80 -j KUBE-MARK-MASQ
-A PREROUTING -p udp -j KUBE-EXT-4SW47YFZTEDKD3PK
COMMIT
`)
	done := cleanup(t, ns)
	after := saved(t, ns)
	for _, stays := range []string{"-A KUBE-MARK-MASQ -j MARK", "-A CNI-DN-1",
		"-A PREROUTING -p udp -j KUBE-EXT-4SW47YFZTEDKD3PK", "-A KUBE-SVC-4SW47YFZTEDKD3PK",
		"-A KUBE-SEP-UKSFD7AGPMPPLUHC"} {
		require.Contains(t, after, stays)
	}

	for _, gone := range []string{"KUBE-SERVICES", "KUBE-POSTROUTING", "KUBE-NODEPORTS",
		"KUBE-SVC-XPGD46QRK7WJZT7O"} {
		require.NotContains(t, after, gone)
	}

	require.Contains(t, done.String(), "# left: chain ip nat KUBE-MARK-MASQ: a rule of chain "+
		"CNI-DN-1 that kube-proxy did not write leads to it\n")
	require.Contains(t, done.String(), "# left: chain ip6 nat KUBE-SEP-UKSFD7AGPMPPLUHC: ")
	require.True(t, cleanup(t, ns).Empty())
}

// Chains that kernlb or an old kubelet also has stay, and the result says so.
func TestSharedChainsStay(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, sign, stays, gone, left string }{
		{"kernlb", "KUBE-VERSION-0a1b2c3d", "-A KUBE-SERVICES", "KUBE-PROXY-CANARY",
			"an instance of kernlb's iptables backend has taken them over"},
		{"kubelet 1.26", "KUBE-MARK-DROP", "-A POSTROUTING -m comment", "KUBE-SERVICES",
			"KUBE-MARK-DROP shows that a kubelet before 1.27 makes them, too"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ns := nstest.New(t)
			load(t, ns, "iptables-1.28.rules")
			restore(t, ns, "*nat\n:"+tt.sign+" - [0:0]\nCOMMIT\n")
			done := cleanup(t, ns)
			after := saved(t, ns)
			require.Contains(t, after, tt.sign)
			require.Contains(t, after, tt.stays)
			require.NotContains(t, after, tt.gone)
			require.Contains(t, done.String(), tt.left)
		})
	}
}

// An instance of kernlb that serves only IPv6 has its version chain in the table nat of IPv6.
func TestChainsOfAnInstanceWithOneFamilyStay(t *testing.T) {
	t.Parallel()
	for _, family := range []sm.Family{sm.IPv4, sm.IPv6} {
		ns := nstest.New(t)
		load(t, ns, "iptables-1.28.rules")
		b := ok(iptables.New(&iptables.Config{NetNS: ns.NetNS()}))(t)
		defer b.Close()
		e, n := dataplane.New(b, nil), sm.Name{Namespace: "default", Name: "web"}
		ok(e.Apply(t.Context(), sm.State{}.WithNode(sm.Node{OnlyFamily: family}).
			WithService(&sm.Service{Name: n, ClusterIPs: []netip.Addr{
				netip.MustParseAddr("10.96.0.80"), netip.MustParseAddr("fd00::80")},
				Ports: []sm.ServicePort{{Protocol: sm.TCP, Port: 80}}})))(t)
		cleanup(t, ns)
		o := ok(e.Observe(t.Context()))(t)
		require.Equal(t, 1, o.Table.Len(), family)
		require.Empty(t, o.Drift, family)
	}
}

// A table of another program with the name of kube-proxy's stays.
func TestATableThatIsNotKubeProxysStays(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	nstest.NFT(t, ns, "add table ip kube-proxy; add chain ip kube-proxy mine")
	before := saved(t, ns)
	p := cleanup(t, ns)
	require.True(t, p.Empty())
	require.Equal(t, "# left: table ip kube-proxy: it has no chain \"services\", so that it is "+
		"not kube-proxy's\n", p.String())
	require.Equal(t, before, saved(t, ns))
}

// An IP set to which rules of other programs refer stays. The error names the set, and all other
// sets are deleted.
func TestASetThatOthersUseStays(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	load(t, ns, "ipvs-1.36.rules")
	nstest.Run(t, ns, "iptables-nft -A INPUT -m set --match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT")
	done, err := Cleanup(t.Context(), &Config{NetNS: ns.NetNS()})
	require.ErrorContains(t, err, "destroy IP set KUBE-CLUSTER-IP")
	require.ErrorContains(t, err, "rules of others refer to it")
	require.Len(t, done.Sets, len(setNames())-1)
	require.Equal(t, []string{"KUBE-CLUSTER-IP"}, find(t, ns).Sets)
	nstest.Run(t, ns, "iptables-nft -F INPUT")
	require.Equal(t, []string{"KUBE-CLUSTER-IP"}, cleanup(t, ns).Sets)
}

// neighbour returns a function that commits a transaction as another program.
func neighbour(t *testing.T, ns *netnstest.NS) func() {
	t.Helper()
	c := ok(rawnl.Dial(&rawnl.Config{NetNS: ns.NetNS()}))(t)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return func() {
		var b rawnl.Batch
		b.Message(rawnl.SubsysNFTables, unix.NFT_MSG_NEWTABLE, rawnl.FlagCreate,
			unix.NFPROTO_INET, 0, rawnl.Object{Verb: "add", Kind: "table"})
		b.Text(unix.NFTA_TABLE_NAME, "neighbour")
		b.Message(rawnl.SubsysNFTables, unix.NFT_MSG_DELTABLE, 0, unix.NFPROTO_INET, 0,
			rawnl.Object{Verb: "delete", Kind: "table"})
		b.Text(unix.NFTA_TABLE_NAME, "neighbour")
		_ = c.Commit(context.WithoutCancel(t.Context()), &b, 0)
	}
}

// Cleanup waits for a program that commits now and then. A program that commits all the time is a
// conflict, and nothing is deleted.
func TestOtherWritersAreWaitedFor(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	load(t, ns, "iptables-1.28.rules")
	with, commit := saved(t, ns), neighbour(t, ns)
	k := ok(open(&Config{NetNS: ns.NetNS()}))(t)
	defer k.close()
	attempts := 0
	until := func(end int) func(*Plan, uint32) error {
		attempts = 0
		return func(p *Plan, gen uint32) error {
			if attempts++; attempts < end {
				commit()
			}
			return k.commit(t.Context(), p, gen)
		}
	}

	p, err := k.retry(t.Context(), until(maxReadings+1))
	require.ErrorIs(t, err, kernelerr.ErrConflict)
	require.Nil(t, p)
	require.Equal(t, maxReadings, attempts)
	require.Equal(t, with, saved(t, ns))
	p = ok(k.retry(t.Context(), until(3)))(t)
	require.False(t, p.Empty())
	require.Equal(t, 3, attempts)
	require.True(t, find(t, ns).Empty())
}

// Legacy tables are found, but not changed.
func TestLegacyTablesAreNamed(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	rules := recorded(t, "iptables-1.28.rules")
	nstest.Exec(t, ns, rules, "iptables-legacy-restore", "--noflush")
	nstest.Exec(t, ns, rules6(rules), "ip6tables-legacy-restore", "--noflush")
	load(t, ns, "nftables-1.29.nft")
	before := nstest.Exec(t, ns, "", "iptables-legacy-save", "-t", "nat")
	done, err := Cleanup(t.Context(), &Config{NetNS: ns.NetNS()})
	require.ErrorIs(t, err, ErrLegacy)
	require.ErrorContains(t, err, "table filter of ip6tables-legacy: ")
	require.Len(t, done.Tables, 2, "the rest is done")
	require.Contains(t, done.String(), "# left: table nat of iptables-legacy: it is a legacy "+
		"table, which kernlb does not change: kube-proxy --cleanup deletes its 21 chains there, ")
	after := nstest.Exec(t, ns, "", "iptables-legacy-save", "-t", "nat")
	lines := func(s string) []string { return strings.Split(s, "\n")[1:20] }
	require.Equal(t, lines(before), lines(after))
}

func TestPlansAreJSON(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	load(t, ns, "iptables-1.28.rules")
	p := find(t, ns)
	text := ok(json.Marshal(p))(t)
	var read Plan
	require.NoError(t, json.Unmarshal(text, &read))
	require.Equal(t, *p, read)
	require.Contains(t, string(text), `{"family":"ip","table":"nat","chain":"KUBE-SERVICES"}`)
}

// begin creates the missing objects of the ipvs mode.
func (m *ipvsMode) begin() {
	m.t.Helper()
	if _, err := m.links.LinkByName(device); rtnetlink.Gone(err) {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = device
		require.NoError(m.t, m.links.LinkAdd(&netlink.Dummy{LinkAttrs: attrs}))
		m.bind(device, "10.96.0.1")
	}

	s := ipvsnl.Service{ServiceKey: tcp("10.96.0.1:443"), Scheduler: "rr"}
	_ = m.ipvs.Submit(m.t.Context(), ipvsnl.NewService(s)) // it may exist
}

// ended requires that nothing is left, or that a cleanup recognises the rest and deletes it.
func (m *ipvsMode) ended(err error, what string) {
	m.t.Helper()
	if err != nil {
		cleanup(m.t, m.ns)
	}
	services := ok(m.ipvs.Services(m.t.Context()))(m.t)
	require.Empty(m.t, services, what)
	_, err = m.links.LinkByName(device)
	require.ErrorAs(m.t, err, &netlink.LinkNotFoundError{}, what)
	require.True(m.t, find(m.t, m.ns).Empty(), what)
}

// Each request fails once. A later cleanup still recognises the remaining objects as kube-proxy's.
func TestKernelEachRequestGoesWrong(t *testing.T) {
	m := newIPVSMode(t)
	m.begin()
	rawnltest.FailEach(t, "clean up", func(ctx context.Context) error {
		m.begin()
		_, err := Cleanup(ctx, &Config{NetNS: m.ns.NetNS()})
		m.ended(err, "a request failed")
		return err
	})

	k := ok(open(&Config{NetNS: m.ns.NetNS()}))(t)
	defer k.close()
	f := rawnltest.NewFaults()
	k.links.Wrap(f.Call)
	for _, fault := range rawnltest.Calls(netlink.ErrDumpInterrupted) {
		for n, hits := 0, 1; hits > 0; n++ { // all requests, then one at a time
			m.begin()
			f.Arm(fault, n)
			_, err := k.cleanup(t.Context())
			hits = f.Disarm()
			if fault.Errno != 0 && hits > 0 {
				require.ErrorIs(t, err, fault.Errno)
			} else if n > 0 {
				require.NoError(t, err, "request %d: %s", n, fault.Name)
			}

			m.ended(err, fault.Name)
		}
	}
}

// webAddr is the address of the tests' service. kube-proxy's rules know only its first endpoint. So
// if a connection reaches the second endpoint, kernlb has balanced it.
var webAddr = netip.MustParseAddrPort("10.96.0.10:80")

// webState is the service with two endpoints.
func webState(c *netnstest.Cluster) sm.State {
	web := &sm.Service{
		Name:       sm.Name{Namespace: "default", Name: "web"},
		Ports:      []sm.ServicePort{{Name: "http", Protocol: sm.TCP, Port: webAddr.Port()}},
		ClusterIPs: []netip.Addr{webAddr.Addr()},
	}
	var l []sm.Endpoint
	for _, pod := range c.Pods[:2] {
		l = append(l, sm.Endpoint{Addr: pod.IPv4, Node: "node",
			Ports: []sm.EndpointPort{{Name: "http", Protocol: sm.TCP, Port: 8080}}})
	}

	return sm.State{}.WithService(web).WithEndpoints(web.Name, l).WithNode(sm.Node{
		Name: "node", Addresses: c.NodeAddrs(), LocalPods: sm.PodDetector{
			CIDRs: []netip.Prefix{netip.MustParsePrefix(netnstest.Net.ClusterCIDRv4)}}})
}

// takers are the backends that a test hands over to.
var takers = map[string]func(ns netns.Namespace) (backends.Backend, error){
	"nftables": func(ns netns.Namespace) (backends.Backend, error) {
		return nftables.New(&nftables.Config{NetNS: ns})
	},
	"iptables": func(ns netns.Namespace) (backends.Backend, error) {
		return iptables.New(&iptables.Config{NetNS: ns})
	},
	"iptables with another prefix": func(ns netns.Namespace) (backends.Backend, error) {
		return iptables.New(&iptables.Config{NetNS: ns, Prefix: "KLB"})
	},
}

// Connections that kube-proxy has balanced continue while kernlb takes over and after kube-proxy's
// rules are deleted. No new connection fails during the take-over, and in the end kernlb balances
// new connections.
func TestConnectionsOutliveTheHandOver(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"handover.rules", "handover.nft"} {
		for name, open := range takers {
			t.Run(file+" to "+name, func(t *testing.T) {
				t.Parallel()
				c := netnstest.Start(t, netnstest.Options{})
				for _, pod := range c.Pods {
					require.NoError(t, pod.Serve(sm.TCP, 8080))
				}
				load := []string{"iptables-nft-restore", "--noflush"}
				if file == "handover.nft" {
					load = []string{"nft", "-f", "-"}
				}
				nstest.Exec(t, c.Node.NS, recorded(t, file), load...)
				b := ok(open(c.Node.NS.NetNS()))(t)
				defer b.Close()
				handOver(t, c, b)
			})
		}
	}
}

// handOver hands over from kube-proxy to a backend, with connections open.
func handOver(t *testing.T, c *netnstest.Cluster, b backends.Backend) {
	t.Helper()
	held := ok(netnstest.OpenConns(t.Context(), c.Outside[0], webAddr, 20))(t)
	defer held.Close()
	require.Equal(t, map[string]int{"pod1": 20}, held.Servers())
	ctx, stop := context.WithCancel(t.Context())
	failed := make(chan []netnstest.Outcome)
	go func() { failed <- probeUntil(ctx, c) }()

	ok(dataplane.New(b, nil).Apply(t.Context(), webState(c)))(t)
	done := cleanup(t, c.Node.NS)
	require.False(t, done.Empty())
	require.True(t, find(t, c.Node.NS).Empty())

	report := held.Ping(time.Minute)
	require.Zero(t, report.Lost(), report.Errors)
	stop()
	require.Empty(t, <-failed, "connections that were opened meanwhile")
	after := ok(netnstest.OpenConns(t.Context(), c.Outside[0], webAddr, 40))(t)
	defer after.Close()
	require.NotZero(t, after.Servers()["pod1"])
	require.NotZero(t, after.Servers()["pod2"], "kube-proxy's rules do not know it")
}

// probeUntil opens connections one after the other until ctx ends, and returns the outcomes of
// failed connections.
func probeUntil(ctx context.Context, c *netnstest.Cluster) (failed []netnstest.Outcome) {
	for ctx.Err() == nil {
		o := netnstest.Probe{From: c.Pods[2], Proto: sm.TCP, To: webAddr,
			Timeout: 2 * time.Second}.Send(context.WithoutCancel(ctx))
		if o.Kind != netnstest.Answered || o.Server != "pod1" && o.Server != "pod2" {
			failed = append(failed, o)
		}
	}

	return failed
}
