package node

import (
	"context"
	"maps"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/test/nstest"
	"github.com/kernlb/kernlb/nftables"
	"github.com/kernlb/kernlb/servicemodel"
)

// reported returns the lines of a report.
func reported(r *Report) (l []string) {
	for _, f := range r.Findings {
		l = append(l, f.String())
	}
	return l
}

// sysctl sets a sysctl of the node.
func sysctl(name, value string) func(*testing.T, *netnstest.Cluster) {
	return func(t *testing.T, c *netnstest.Cluster) {
		t.Helper()
		require.NoError(t, c.Node.NS.SetSysctl(name, value))
	}
}

// rules loads rules of another program.
func rules(text string) func(*testing.T, *netnstest.Cluster) {
	return func(t *testing.T, c *netnstest.Cluster) {
		t.Helper()
		nstest.NFT(t, c.Node.NS, text)
	}
}

// forward returns a chain of another program at the hook forward.
func forward(policy, text string) func(*testing.T, *netnstest.Cluster) {
	return rules("table inet fw { chain pass { type filter hook forward priority 0; policy " +
		policy + "; " + text + " }; }")
}

// send opens connections from pod1 to an address, and ignores their outcome.
func send(t *testing.T, c *netnstest.Cluster, n int, to string) {
	t.Helper()
	var probes []netnstest.Probe
	for range n {
		probes = append(probes, netnstest.Probe{From: c.Pods[0], Proto: servicemodel.TCP,
			To: netip.MustParseAddrPort(to)})
	}

	netnstest.SendAll(t.Context(), probes)
}

// fault is a single fault of a node.
type fault struct {
	node  servicemodel.Node
	fault func(*testing.T, *netnstest.Cluster)
	while func(*testing.T, *netnstest.Cluster) // between two readings
	want  []string                             // beginnings of the findings
}

// faults are faults of the kernel's settings and of other programs' rules.
func faults() map[string]fault {
	return map[string]fault{
		"none": {},
		"IPv4 forwarding": {fault: sysctl("net/ipv4/ip_forward", "0"),
			want: []string{"error: forwarding: IPv4 forwarding is off"}},
		"IPv6 forwarding": {fault: sysctl("net/ipv6/conf/all/forwarding", "0"),
			want: []string{"error: forwarding: IPv6 forwarding is off"}},
		"forwarding of a link": {fault: sysctl("net/ipv4/conf/veth1/forwarding", "0"),
			want: []string{"warning: forwarding: IPv4 packets that come in by veth1 are not"}},
		"forwarding of a link with a client": {
			fault: sysctl("net/ipv4/conf/veth1/forwarding", "0"),
			while: func(t *testing.T, c *netnstest.Cluster) { send(t, c, 1, "10.244.1.2:8080") },
			want: []string{"error: forwarding: IPv4 packets that come in by veth1 are not " +
				"forwarded to endpoints: the kernel dropped "}},
		"a policy that drops": {fault: forward("drop", "ct state established accept;"),
			want: []string{"error: foreign-chains: another program drops every new connection at " +
				"the hook forward (inet fw pass, its policy)"}},
		"a rule that drops all": {fault: forward("accept", "counter drop;"),
			want: []string{"error: foreign-chains: another program drops every new connection"}},
		"a policy with exceptions": {fault: forward("drop", "tcp dport 8080 accept;"),
			want: []string{"note: foreign-chains: another program drops at the hook forward what"}},
		"a rule that drops an endpoint": {
			fault: forward("accept", "ip daddr 10.244.1.2 tcp dport 8000-9000 drop;"),
			want: []string{"error: foreign-chains: another program drops connections to the " +
				"endpoint 10.244.1.2:8080 at the hook forward (inet fw pass, handle 2: ip " +
				"daddr 10.244.1.2 tcp dport 8000-9000 drop)"}},
		"perhaps a rule that drops an endpoint": {
			fault: forward("accept", "ip saddr 10.0.0.0/8 accept; tcp dport 8080 reject;"),
			want:  []string{"warning: foreign-chains: another program drops connections to"}},
		"a rule that drops something else": {
			fault: forward("accept", "ip daddr 10.244.1.9 drop; tcp dport 81 drop; "+
				"iif eth0 drop;")},
		"a policy of iptables": {fault: func(t *testing.T, c *netnstest.Cluster) {
			nstest.Run(t, c.Node.NS, "iptables-nft -P FORWARD DROP")
			nstest.Run(t, c.Node.NS, "iptables-nft -A FORWARD -m conntrack --ctstate "+
				"RELATED,ESTABLISHED -j ACCEPT")
		}, want: []string{"error: foreign-chains: another program drops every new connection at " +
			"the hook forward (ip filter FORWARD, its policy)"}},
		"a policy at input does not concern pods": {
			fault: rules("table inet fw { chain in { type filter hook input priority 0; " +
				"policy drop; }; }")},
		"route_localnet": {fault: sysctl("net/ipv4/conf/all/route_localnet", "1"),
			want: []string{"warning: route-localnet: the sysctl route_localnet is on and nothing"}},
		"route_localnet with a guard": {fault: func(t *testing.T, c *netnstest.Cluster) {
			sysctl("net/ipv4/conf/all/route_localnet", "1")(t, c)
			rules("table ip x { chain guard-loopback { ip daddr 127.0.0.0/8 drop; }; }")(t, c)
		}},
		"no route_localnet": {node: servicemodel.Node{LocalhostNodePorts: true},
			want: []string{"error: route-localnet: the sysctl route_localnet is off"}},
	}
}

// moreFaults are faults of links, of connections, and of a kube-proxy.
func moreFaults() map[string]fault {
	return map[string]fault{
		"a neighbour that does not answer": {fault: func(t *testing.T, c *netnstest.Cluster) {
			nstest.Run(t, c.Node.NS, "ip neigh del 10.244.1.2 dev veth2")
			nstest.Run(t, c.Pods[1].NS, "ip link set eth0 arp off")
			nstest.Run(t, c.Node.NS, "ip neigh replace 10.244.1.2 dev veth2 nud failed")
		}, want: []string{"error: neighbours: nothing answers for the addresses of endpoints: " +
			"10.244.1.2 on veth2"}},
		"a gateway that does not answer": {fault: func(t *testing.T, c *netnstest.Cluster) {
			nstest.Run(t, c.Node.NS, "ip neigh replace 192.0.2.1 dev eth0 nud failed")
		}, want: []string{"warning: neighbours: gateways do not answer: 192.0.2.1 on eth0"}},
		"rp_filter": {fault: func(t *testing.T, c *netnstest.Cluster) {
			sysctl("net/ipv4/conf/veth1/rp_filter", "1")(t, c)
			nstest.Run(t, c.Node.NS, "ip route replace 10.244.1.1 dev veth2")
		}, while: func(t *testing.T, c *netnstest.Cluster) { send(t, c, 3, "10.244.1.2:8080") },
			want: []string{"warning: rp-filter: rp_filter dropped "}},
		"rp_filter of all links": {fault: func(t *testing.T, c *netnstest.Cluster) {
			sysctl("net/ipv4/conf/all/rp_filter", "1")(t, c)
			for _, link := range []string{"veth2", "veth3"} {
				sysctl("net/ipv4/conf/"+link+"/rp_filter", "2")(t, c)
			}
			nstest.Run(t, c.Node.NS, "ip route replace 10.244.1.1 dev veth2")
		}, while: func(t *testing.T, c *netnstest.Cluster) { send(t, c, 3, "10.244.1.2:8080") },
			want: []string{"warning: rp-filter: rp_filter dropped "}},
		"ports of masquerade": {
			fault: rules("table ip fw { chain post { type nat hook postrouting priority 0; " +
				"tcp dport 8080 masquerade to :40000-40001; }; }"),
			while: func(t *testing.T, c *netnstest.Cluster) { send(t, c, 8, "10.244.1.2:8080") },
			want:  []string{"warning: masquerade-ports: the kernel lost "}},
		"a table of kube-proxy": {fault: rules("table ip kube-proxy { chain filter-forward { " +
			"type filter hook forward priority -110; }; }"),
			want: []string{"warning: kube-proxy: a kube-proxy that does not run has left the " +
				"table kube-proxy"}},
		"chains of kube-proxy": {fault: func(t *testing.T, c *netnstest.Cluster) {
			nstest.Run(t, c.Node.NS, "iptables-nft -t mangle -N KUBE-PROXY-CANARY")
		}, want: []string{"warning: kube-proxy: a kube-proxy that does not run has left chains " +
			"of iptables in the family ip"}},
	}
}

// remedy is a command of an advice that a test can run.
var remedy = regexp.MustCompile(`^(sysctl -w( [^ ,;]+=\d+)+|nft delete rule [^,;]+)`)

// report returns the report of a new checker that compares the counters with earlier ones.
func (f *fault) report(t *testing.T, c *netnstest.Cluster) *Report {
	t.Helper()
	checker := NewChecker(&Config{NetNS: c.Node.NS.NetNS()})
	table := tableOf(t, f.node, "10.244.1.2", "fd00:10:244:1::2")
	require.Zero(t, checker.Report(t.Context(), table).Since)
	if f.while != nil {
		f.while(t, c)
	}
	r := checker.Report(t.Context(), table)
	require.Empty(t, r.Unknown)
	require.NotZero(t, r.Since)
	return r
}

// Each fault is caused in a node, and is the only finding of the report. If the advice is a
// command, the command ends the fault.
func TestEachFaultIsReported(t *testing.T) {
	t.Parallel()
	all := faults()
	maps.Copy(all, moreFaults())
	for name, test := range all {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := netnstest.Start(t, netnstest.Options{})
			require.NoError(t, c.Pods[1].Serve(servicemodel.TCP, 8080))
			if test.fault != nil {
				test.fault(t, c)
			}
			r := test.report(t, c)
			got, did := reported(r), 0
			require.Len(t, got, len(test.want), "%q", got)
			for i, want := range test.want {
				require.True(t, strings.HasPrefix(got[i], want), "%s\nwant %s", got[i], want)
				require.NotEmpty(t, r.Findings[i].Do)
				if command := remedy.FindString(r.Findings[i].Do); command != "" {
					nstest.Run(t, c.Node.NS, command)
					did++
				}
			}

			if did > 0 {
				require.Len(t, test.report(t, c).Findings, len(got)-did, "%q", r.Findings)
			}
		})
	}
}

// The tables of an instance do not count as another program's, whatever their name is.
func TestOwnTablesAreKnown(t *testing.T) {
	t.Parallel()
	c := netnstest.Start(t, netnstest.Options{})
	b, err := nftables.New(&nftables.Config{NetNS: c.Node.NS.NetNS(), Table: "acme"})
	require.NoError(t, err)
	defer b.Close()
	name := servicemodel.Name{Namespace: "default", Name: "web"}
	state := servicemodel.State{}.WithService(&servicemodel.Service{Name: name,
		ExternalIPs: []netip.Addr{netip.MustParseAddr("203.0.113.1")},
		Ports:       []servicemodel.ServicePort{{Protocol: servicemodel.TCP, Port: 80}},
	}).WithEndpoints(name, []servicemodel.Endpoint{{Addr: netip.MustParseAddr("10.244.1.2"),
		Ports: []servicemodel.EndpointPort{{Protocol: servicemodel.TCP, Port: 8080}}}})
	for _, s := range []servicemodel.State{state, state.WithEndpoints(name, nil)} {
		_, err := dataplane.New(b, nil).Apply(t.Context(), s)
		require.NoError(t, err)
		table, err := servicemodel.Resolve(nil, s)
		require.NoError(t, err)
		checker := NewChecker(&Config{NetNS: c.Node.NS.NetNS()})
		require.Empty(t, reported(checker.Report(t.Context(), table)))
	}
}

// Pods on a bridge that use each other's services need bridge-nf-call-iptables.
func TestABridgeIsReported(t *testing.T) {
	t.Parallel()
	c := netnstest.Start(t, netnstest.Options{Bridge: "cni0"})
	checker := NewChecker(&Config{NetNS: c.Node.NS.NetNS()})
	calls := ""
	require.NoError(t, c.Node.NS.Do(func() error {
		text, err := os.ReadFile("/proc/sys/net/bridge/bridge-nf-call-iptables")
		calls = strings.TrimSpace(string(text))
		if os.IsNotExist(err) {
			return nil
		}
		return err
	}))

	table := tableOf(t, servicemodel.Node{}, "10.244.1.2")
	if calls == "1" {
		require.Empty(t, reported(checker.Report(t.Context(), table)))
		sysctl("net/bridge/bridge-nf-call-iptables", "0")(t, c)
		checker.last = nil
	}

	require.Contains(t, strings.Join(reported(checker.Report(t.Context(), table)), "\n"),
		"warning: bridge-nf-call: endpoints are on the bridge cni0 and bridge-nf-call-iptables is "+
			"off")
	require.Empty(t, reported(checker.Report(t.Context(), tableOf(t, servicemodel.Node{},
		"10.244.2.1"))), "no endpoint is on the bridge")
}

// A kube-proxy that runs is found, as package kubeproxy finds it.
func TestAKubeProxyThatRunsIsReported(t *testing.T) {
	t.Parallel()
	f := facts{proxy: "nftables", leftover: []string{"the table kube-proxy"}}
	l := f.findings(nil)
	require.Len(t, l, 1)
	require.Contains(t, l[0].Means, "a kube-proxy runs on this node (mode nftables)")
}

// Facts that cannot be read are named, and all other facts are checked. No report waits for long.
func TestUnreadableFactsAreNamed(t *testing.T) {
	t.Parallel()
	r := NewChecker(&Config{NetNS: "/nowhere"}).Report(t.Context(), nil)
	require.Empty(t, r.Findings)
	require.Len(t, r.Unknown, 1)
	require.Contains(t, r.Unknown[0], "/nowhere")

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	ns := nstest.New(t)
	checker := NewChecker(&Config{NetNS: ns.NetNS()})
	checker.turn <- struct{}{} // another goroutine checks
	require.Equal(t, []string{"all: context canceled"}, checker.Report(ctx, nil).Unknown)
	<-checker.turn
	require.Empty(t, checker.Report(t.Context(), nil).Unknown, "that report was not kept")
}

// Further callers get the same report for a while, as long as the kernel holds the same services.
func TestReportsAreShared(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	checker := NewChecker(&Config{NetNS: ns.NetNS()})
	table := tableOf(t, servicemodel.Node{}, "10.244.1.2")
	require.NotSame(t, checker.Report(t.Context(), table), checker.Report(t.Context(), table),
		"counters are compared from the second report on")
	first := checker.Report(t.Context(), table)
	require.Same(t, first, checker.Report(t.Context(), table))
	require.NotSame(t, first, checker.Report(t.Context(), nil))
}
