package livetrace

import (
	"context"
	"errors"
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/dataplane/netns"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/test/nstest"
	"github.com/kernlb/kernlb/iptables"
	"github.com/kernlb/kernlb/ipvs"
	"github.com/kernlb/kernlb/nftables"
	"github.com/kernlb/kernlb/servicemodel"
)

// Addresses of services.
var (
	clusterIP  = netip.MustParseAddr("10.96.0.10")
	clusterIP6 = netip.MustParseAddr("fd00:10:96::10")
	emptyIP    = netip.MustParseAddr("10.96.0.11")
	balancerIP = netip.MustParseAddr("203.0.113.10")
	localIP    = netip.MustParseAddr("203.0.113.11")
	deafIP     = netip.MustParseAddr("10.96.0.12")
	hostIP     = netip.MustParseAddr("10.96.0.13")
)

// network is a cluster whose node has services, by a backend.
type network struct {
	*netnstest.Cluster
	t *testing.T
}

func newNetwork(t *testing.T, backend string) *network {
	t.Helper()
	n := &network{netnstest.Start(t, netnstest.Options{}), t}
	for _, p := range netnstest.Protocols() {
		require.NoError(t, n.Pods[1].Serve(p, 8080))
	}
	b, err := openBackend(backend, n.Node.NS.NetNS())
	if backend == ipvs.Name && errors.Is(err, kernelerr.ErrMissingModule) {
		t.Skip(err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { b.Close() })
	_, err = dataplane.New(b, nil).Apply(t.Context(), services())
	require.NoError(t, err)
	return n
}

func openBackend(name string, ns netns.Namespace) (backends.Backend, error) {
	switch name {
	case iptables.Name:
		return iptables.New(&iptables.Config{NetNS: ns})
	case ipvs.Name:
		return ipvs.New(&ipvs.Config{NetNS: ns})
	}

	return nftables.New(&nftables.Config{NetNS: ns})
}

// services are six services: one that works, one without endpoints, one for some clients only, one
// whose endpoint is on another node, one whose endpoint does not listen, and one of the node
// itself.
func services() servicemodel.State {
	node := servicemodel.Node{Name: "this", Addresses: []netip.Addr{
		netip.MustParseAddr(netnstest.Net.NodeIPv4), netip.MustParseAddr(netnstest.Net.NodeIPv6)}}
	s := servicemodel.State{}.WithNode(node)
	add := func(name string, svc servicemodel.Service, eps ...servicemodel.Endpoint) {
		svc.Name = servicemodel.Name{Namespace: "default", Name: name}
		for _, p := range []servicemodel.Protocol{servicemodel.TCP, servicemodel.UDP,
			servicemodel.SCTP} {
			svc.Ports = append(svc.Ports, servicemodel.ServicePort{Name: p.String(), Protocol: p,
				Port: 80})
			for i := range eps {
				port := uint16(8080)
				if name == "deaf" {
					port = 8081
				}
				eps[i].Ports = append(eps[i].Ports, servicemodel.EndpointPort{Name: p.String(),
					Protocol: p, Port: port})
			}
		}

		s = s.WithService(&svc).WithEndpoints(svc.Name, eps)
	}

	pod := servicemodel.Endpoint{Addr: netip.MustParseAddr("10.244.1.2"), Node: "this"}
	pod6 := servicemodel.Endpoint{Addr: netip.MustParseAddr("fd00:10:244:1::2"), Node: "this"}
	remote := servicemodel.Endpoint{Addr: netip.MustParseAddr("10.244.2.1"), Node: "other"}
	add("web", servicemodel.Service{ClusterIPs: []netip.Addr{clusterIP, clusterIP6}}, pod, pod6)
	add("empty", servicemodel.Service{ClusterIPs: []netip.Addr{emptyIP}})
	add("some", servicemodel.Service{ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.20")},
		LoadBalancerIPs:          []servicemodel.LoadBalancerIP{{Addr: balancerIP}},
		LoadBalancerSourceRanges: []netip.Prefix{netip.MustParsePrefix("198.51.100.12/32")}}, pod)
	add("local", servicemodel.Service{ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.21")},
		LoadBalancerIPs:       []servicemodel.LoadBalancerIP{{Addr: localIP}},
		ExternalTrafficPolicy: servicemodel.PolicyLocal}, remote)
	add("deaf", servicemodel.Service{ClusterIPs: []netip.Addr{deafIP}}, pod)
	add("host", servicemodel.Service{ClusterIPs: []netip.Addr{hostIP}},
		servicemodel.Endpoint{Addr: node.Addresses[0], Node: "this"})
	return s
}

// follow sends a packet from a host, and returns its trace and its outcome.
func (n *network) follow(from *netnstest.Host, proto servicemodel.Protocol,
	to netip.AddrPort) (*Trace,
	netnstest.Outcome) {
	n.t.Helper()
	f := Filter{Dst: to, Protocol: servicemodel.Protocol(proto)}
	if from != n.Node {
		f.Src, f.InInterface = from.Addr(to.Addr()), from.NodeInterface
	}
	tracer, err := Open(n.t.Context(), &Config{NetNS: n.Node.NS.NetNS(), Filter: f})
	require.NoError(n.t, err)
	defer func() { require.NoError(n.t, tracer.Close()) }()
	got := netnstest.Probe{From: from, Proto: proto, To: to}.Send(n.t.Context())
	tr, err := tracer.Next(n.t.Context())
	require.NoError(n.t, err)
	return tr, got
}

// told is the required content of a packet's trace.
type told struct {
	to   netip.AddrPort
	fate Fate
	by   string // in the name of the rule that ended its path
	says string // in the trace as text
}

func at(a netip.Addr) netip.AddrPort { return netip.AddrPortFrom(a, 80) }

// A trace names the fate of a packet to kernlb's services, and the rule. It agrees with what the
// client sees.
func TestKernelWhatBecomesOfPackets(t *testing.T) {
	t.Parallel()
	for backend, rules := range map[string][4]string{
		nftables.Name: {"ip kernlb answer-reset, handle", "ip kernlb sources-prerouting, handle",
			"@service-endpoints", "ip kernlb no-endpoints, handle"},
		iptables.Name: {"ip filter KUBE-SERVICES, handle", "ip filter KUBE-FW-",
			"-j DNAT", "ip filter KUBE-SERVICES, handle"},
	} {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			n := newNetwork(t, backend)
			for _, w := range []told{
				{at(clusterIP), Sent, "", "it now goes from"},
				{at(clusterIP), Sent, "", rules[2]},
				{at(clusterIP6), Sent, "", "[fd00:10:244:1::2]:8080"},
				{at(emptyIP), Refused, rules[0], "refused by " + rules[0]},
				{at(balancerIP), Dropped, rules[1], "dropped by " + rules[1]},
				{at(localIP), Dropped, rules[3], "dropped by " + rules[3]},
				{at(deafIP), Sent, "", "10.244.1.2:8081"},
				{at(hostIP), Delivered, "", "delivered to 192.0.2.10:8080 on this node"},
			} {
				for _, p := range netnstest.Protocols() {
					tr, got := n.follow(n.Outside[0], p, w.to)
					n.requireTold(w, tr, got)
				}
			}
		})
	}
}

// A packet that IPVS handles is followed through it.
func TestKernelBesideIPVS(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, ipvs.Name)
	for _, w := range []told{
		{at(clusterIP), Sent, "", "taken here by something that is no rule of nf_tables"},
		{at(clusterIP), Sent, "", "sent by veth2 to 10.244.1.2:8080"},
		{at(emptyIP), Refused, "ip kernlb-ipvs ", "refused by ip kernlb-ipvs "},
		{at(balancerIP), Dropped, "ip kernlb-ipvs ", "dropped by ip kernlb-ipvs "},
		{at(deafIP), Sent, "", "10.244.1.2:8081"},
	} {
		for _, p := range netnstest.Protocols() {
			tr, got := n.follow(n.Outside[0], p, w.to)
			n.requireTold(w, tr, got)
		}
	}
}

// requireTold compares a trace with the wanted one, and with the client's outcome.
func (n *network) requireTold(w told, tr *Trace, got netnstest.Outcome) {
	n.t.Helper()
	require.Equal(n.t, w.fate, tr.Fate, tr)
	require.Contains(n.t, tr.String(), w.says)
	if w.by == "" {
		require.Nil(n.t, tr.By, tr)
	} else {
		require.Contains(n.t, tr.By.String(), w.by)
	}

	answered := tr.Answer != nil && (tr.Answer.Fate == Sent || tr.Answer.Fate == Delivered)
	switch got.Kind {
	case netnstest.Answered:
		require.True(n.t, answered && !tr.Answer.Packet.refusal(), "%v: %v", got, tr)
	case netnstest.Refused:
		require.True(n.t, tr.Fate == Refused || answered && tr.Answer.Packet.refusal(), "%v: %v",
			got, tr)
	case netnstest.Dropped:
		require.True(n.t, !answered, "%v: %v", got, tr)
	default:
		require.Fail(n.t, "unexpected", "%v: %v", got, tr)
	}
}

// If the rule of another program's firewall drops or refuses a packet, the trace names it, in each
// hook. It also names a rule that drops the answer.
func TestRulesOfOthersAreNamed(t *testing.T) {
	t.Parallel()
	const drops = `ip daddr 10.244.1.2 th dport 8080 counter drop comment "no web"`
	for name, c := range map[string]struct {
		firewall string
		from     string
		told
	}{
		"prerouting": {"chain c { type filter hook prerouting priority -300; ip daddr 10.96.0.10 " +
			"drop;}", "outside", told{at(clusterIP), Dropped, "inet fw c, handle 2",
			"ip daddr 10.96.0.10 drop"}},
		"forward": {"chain c { type filter hook forward priority 10; jump d;}\nchain d {" + drops +
			";}", "outside", told{at(clusterIP), Dropped, `inet fw d, handle 4 ("no web")`,
			"ip daddr 10.244.1.2 th dport 8080 counter drop"}},
		"input": {"chain c { type filter hook input priority 10; meta l4proto { tcp, udp, sctp } " +
			"th dport 8080 reject;}", "outside", told{at(hostIP), Refused, "inet fw c, handle",
			"th dport 8080 reject"}},
		"output": {"chain c { type filter hook output priority 10; " + drops + ";}", "node",
			told{at(clusterIP), Dropped, "inet fw c, handle 2", "dropped by inet fw c"}},
		"postrouting": {"chain c { type filter hook postrouting priority 10; oifname \"veth2\" " +
			"drop;}", "outside", told{at(clusterIP), Dropped, "inet fw c, handle 2",
			`oifname "veth2" drop`}},
		"policy": {"chain c { type filter hook forward priority 10; policy drop;}", "outside",
			told{at(clusterIP), Dropped, "inet fw c, its policy", "inet fw c, its policy: drop"}},
		"answer": {"chain c { type filter hook forward priority 10; ip saddr 10.96.0.10 accept; " +
			"ip saddr 10.244.1.2 drop;}", "outside", told{at(clusterIP), Sent, "",
			"dropped by inet fw c, handle"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNetwork(t, nftables.Name)
			nstest.NFT(t, n.Node.NS, "table inet fw {\n"+c.firewall+"\n}\n")
			from := n.Outside[0]
			if c.from == "node" {
				from = n.Node
			}
			for _, p := range netnstest.Protocols() {
				tr, got := n.follow(from, p, c.to)
				n.requireTold(c.told, tr, got)
			}
		})
	}
}

// Rules of iptables-nft are seen like any other.
func TestRulesOfIptablesAreNamed(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, nftables.Name)
	nstest.Exec(t, n.Node.NS, "", "iptables-nft", "-A", "FORWARD", "-p", "tcp", "-d", "10.244.1.2",
		"-m", "comment", "--comment", "no web here", "-j", "REJECT")
	tr, got := n.follow(n.Outside[0], servicemodel.TCP, at(clusterIP))
	n.requireTold(told{at(clusterIP), Refused, "ip filter FORWARD, handle",
		"/* no web here */ counter -j REJECT"}, tr, got)
}

// If no rule shows the fate of a packet, the trace says where it was lost, and why.
func TestLostByRouting(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		sysctl, value string
		ip            []string
		to            netip.Addr
		want          string
	}{
		"forwarding": {sysctl: "net/ipv4/ip_forward", value: "0", to: clusterIP,
			want: "forwarding is off (sysctl net.ipv4.ip_forward)"},
		"forwarding of a link": {sysctl: "net/ipv4/conf/eth1/forwarding", value: "0",
			to: clusterIP, want: "forwarding is off (sysctl net.ipv4.conf.eth1.forwarding)"},
		"forwarding of IPv6": {sysctl: "net/ipv6/conf/all/forwarding", value: "0", to: clusterIP6,
			want: "forwarding is off (sysctl net.ipv6.conf.all.forwarding)"},
		"route": {ip: []string{"route replace unreachable 10.244.1.2"}, to: clusterIP,
			want: "there is no route to 10.244.1.2"},
		"prohibited": {ip: []string{"route replace prohibit 10.244.1.2"}, to: clusterIP,
			want: "a route or rule prohibits the way to 10.244.1.2"},
		"blackhole": {ip: []string{"route replace blackhole 10.244.1.2"}, to: clusterIP,
			want: "or a route drops it (blackhole)"},
		"rp_filter": {sysctl: "net/ipv4/conf/all/rp_filter", value: "1", to: clusterIP,
			ip: []string{"link add d0 up type veth peer name d1", "link set d1 up",
				"route replace 198.51.100.11 dev d0"},
			want: "rp_filter refuses 198.51.100.11 by IN: its route back is another one"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNetwork(t, nftables.Name)
			if c.sysctl != "" {
				require.NoError(t, n.Node.NS.SetSysctl(c.sysctl, c.value))
			}
			for _, line := range c.ip {
				nstest.Run(t, n.Node.NS, "ip "+line)
			}
			tr, _ := n.follow(n.Outside[0], servicemodel.UDP, at(c.to))
			require.Equal(t, Lost, tr.Fate, tr)
			require.Contains(t, tr.String(), "dropped at the routing decision after prerouting: ")
			require.Contains(t, tr.String(), strings.ReplaceAll(c.want, "IN", tr.In))

			// The advice does not fail, and ends the fault.
			command := regexp.MustCompile(`^sysctl -w \S+`).FindString(tr.Do)
			require.Equal(t, c.sysctl != "", command != "", "%q", tr.Do)
			if command != "" {
				nstest.Run(t, n.Node.NS, command)
				tr, _ = n.follow(n.Outside[0], servicemodel.UDP, at(c.to))
				require.Equal(t, Sent, tr.Fate, tr)
			}
		})
	}
}

func TestSend(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, nftables.Name)
	cfg := Config{NetNS: n.Node.NS.NetNS()}
	for _, f := range []Filter{
		{Dst: at(clusterIP), Protocol: servicemodel.TCP},
		{Dst: at(clusterIP), Protocol: servicemodel.UDP, Src: netip.MustParseAddr("192.0.2.11")},
		{Dst: at(clusterIP6), Protocol: servicemodel.TCP, SrcPort: 4000},
	} {
		cfg.Filter = f
		tr, err := Send(t.Context(), &cfg)
		require.NoError(t, err)
		require.NotNil(t, tr.Answer, tr)
		require.False(t, tr.Answer.Packet.refusal(), tr)
		if f.Src.IsValid() {
			require.Equal(t, f.Src, tr.Packet.Src.Addr())
		}
	}

	cfg.Filter = Filter{Dst: at(emptyIP), Protocol: servicemodel.UDP}
	tr, err := Send(t.Context(), &cfg)
	require.NoError(t, err)
	require.Equal(t, Refused, tr.Fate, tr)
	for want, f := range map[string]Filter{
		"Filter.Src: send from 198.18.0.1:0: ": {Dst: at(clusterIP), Protocol: servicemodel.UDP,
			Src: netip.MustParseAddr("198.18.0.1")},
		"Filter.Protocol: sctp: only TCP and UDP": {Dst: at(clusterIP),
			Protocol: servicemodel.SCTP},
		"Filter.Dst: want an address and a port": {Protocol: servicemodel.TCP},
		"of different address families": {Dst: at(clusterIP), Protocol: servicemodel.TCP,
			Src: netip.MustParseAddr("fd00::1")},
	} {
		cfg.Filter = f
		_, err := Send(t.Context(), &cfg)
		require.ErrorContains(t, err, want)
	}
}

// tables lists the tables of the node.
func (n *network) tables() string {
	return nstest.Run(n.t, n.Node.NS, "nft list tables")
}

// Two tracers work side by side. Neither changes other objects, no other program can delete their
// tables, and the kernel removes them.
func TestTracersLeaveNothing(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, nftables.Name)
	nstest.NFT(t, n.Node.NS, "add table ip other")
	before := n.tables()
	var tracers []*Tracer
	for range 2 {
		tr, err := Open(t.Context(), &Config{NetNS: n.Node.NS.NetNS(), Filter: Filter{
			Dst: at(emptyIP), Protocol: servicemodel.UDP}})
		require.NoError(t, err)
		tracers = append(tracers, tr)
	}

	if !tracers[0].owned { // Linux 5.10 and 5.11
		require.Equal(t, 1, strings.Count(n.tables(), tableName), "the second replaces the first")
		for _, tr := range tracers {
			require.NoError(t, tr.Close())
			require.NotContains(t, n.tables(), tableName)
		}

		return
	}

	nstest.NFT(t, n.Node.NS, "flush ruleset")
	require.Equal(t, 2, strings.Count(n.tables(), tableName))
	require.NotContains(t, n.tables(), "other")
	netnstest.Probe{From: n.Pods[0], Proto: servicemodel.UDP, To: at(emptyIP)}.Send(t.Context())
	for _, tr := range tracers {
		got, err := tr.Next(t.Context())
		require.NoError(t, err)
		require.Equal(t, Sent, got.Fate, "to the internet, unhindered: %v", got)
		require.NoError(t, tr.conn.Close()) // as when the process is killed
		require.NoError(t, tr.listener.Close())
	}

	require.NotContains(t, n.tables(), tableName)
	require.Contains(t, before, "table ip kernlb\n")
}

func TestNextEndsWithItsContext(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, nftables.Name)
	tr, err := Open(t.Context(), &Config{NetNS: n.Node.NS.NetNS(), Filter: Filter{Dst: at(emptyIP),
		Protocol: servicemodel.TCP}})
	require.NoError(t, err)
	defer tr.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = tr.Next(ctx)
	require.ErrorIs(t, err, context.Canceled)
	netnstest.Probe{From: n.Pods[0], Proto: servicemodel.TCP, To: at(emptyIP)}.Send(t.Context())
	got, err := tr.Next(t.Context())
	require.NoError(t, err)
	require.Equal(t, Refused, got.Fate)
}

func TestWithoutAConfigurationNothingIsFollowed(t *testing.T) {
	t.Parallel()
	_, err := Open(t.Context(), nil)
	require.ErrorContains(t, err, "livetrace: open: Filter.Dst: want an address and a port")
	_, err = Send(t.Context(), nil)
	require.ErrorContains(t, err, "livetrace: send: Filter.Protocol: ")
}
