package conntrack_test

import (
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/netnstest"

	. "github.com/kernlb/kernlb/conntrack"
	. "github.com/kernlb/kernlb/internal/test/cttest"
	"github.com/kernlb/kernlb/internal/test/must"
	"github.com/kernlb/kernlb/internal/test/nstest"
)

// pair is an idle TCP connection through a service.
type pair struct {
	client, server *net.TCPConn
}

// connect opens a connection from a host to a service whose endpoint is the listener.
func connect(tb testing.TB, from *netnstest.NS, local, service netip.AddrPort,
	listener *net.TCPListener) pair {
	tb.Helper()
	var p pair
	require.NoError(tb, from.Do(func() error {
		dialer := net.Dialer{Timeout: 3 * time.Second}
		if local.IsValid() {
			dialer.LocalAddr = net.TCPAddrFromAddrPort(local)
		}
		conn, err := dialer.Dial("tcp", service.String())
		if err == nil {
			p.client = conn.(*net.TCPConn)
		}
		return err
	}))

	tb.Cleanup(func() { p.client.Close() })
	p.server = must.OK(listener.AcceptTCP())(tb)
	tb.Cleanup(func() { p.server.Close() })
	require.NoError(tb, p.talk())
	return p
}

// talk sends a few bytes in both directions.
func (p pair) talk() error {
	for _, way := range [2][2]*net.TCPConn{{p.client, p.server}, {p.server, p.client}} {
		if _, err := way[0].Write([]byte("hello")); err != nil {
			return err
		}
		buf := make([]byte, 5)
		way[1].SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := way[1].Read(buf); err != nil {
			return err
		}
	}

	return nil
}

func listen(tb testing.TB, host *netnstest.Host, at netip.AddrPort) *net.TCPListener {
	tb.Helper()
	var l *net.TCPListener
	require.NoError(tb, host.NS.Do(func() (err error) {
		l, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(at))
		return err
	}))

	tb.Cleanup(func() { l.Close() })
	require.NoError(tb, l.SetDeadline(time.Now().Add(30*time.Second)))
	return l
}

// waitReset reads until the connection is reset.
func waitReset(conn *net.TCPConn) error {
	conn.SetReadDeadline(time.Now().Add(time.Minute))
	n, err := conn.Read(make([]byte, 1))
	return fmt.Errorf("%d bytes: %w", n, err)
}

func TestCutResetsBothEnds(t *testing.T) {
	t.Parallel()
	for _, tc := range []cutCase{
		{name: "another endpoint is left", left: true},
		{name: "another endpoint is left, over IPv6", left: true, v6: true},
		{name: "masqueraded", left: true, masq: true},
		{name: "masqueraded, over IPv6", left: true, masq: true, v6: true},
		{name: "from the node", left: true, node: true},
		{name: "from the node, over IPv6", left: true, node: true, v6: true},
		{name: "from the node, masqueraded", left: true, node: true, masq: true},
		{name: "the service was deleted"},
		{name: "the service was deleted, from the node", node: true},
		{name: "rejected with ICMP", filter: "ip daddr 10.96.0.10 reject"},
		{name: "rejected with ICMP, over IPv6", filter: "ip6 daddr fd00:10:96::10 reject",
			v6: true},
		{name: "rejected with ICMP, from the node", filter: "ip daddr 10.96.0.10 reject",
			node: true},
		{name: "dropped", filter: "ip daddr 10.96.0.10 drop"},
		{name: "invalid packets are dropped", filter: "ct state invalid drop", left: true},
		{name: "new packets without SYN are dropped",
			filter: "ct state new tcp flags & syn == 0 drop", left: true},
		{name: "connections are not picked up", sysctl: "net/netfilter/nf_conntrack_tcp_loose",
			left: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			tc.run(t)
		})
	}
}

// cutCase is one situation in which a connection is cut.
type cutCase struct {
	name   string
	node   bool   // the client is a process of the node
	v6     bool   // over IPv6
	masq   bool   // the client is masqueraded
	left   bool   // the service has another endpoint left
	filter string // the verdict of the filter chains for packets to the service, or for all
	sysctl string // a sysctl of the node that is set to 0
}

func (tc cutCase) run(t *testing.T) {
	cluster := netnstest.Start(t, netnstest.Options{RemotePods: -1, OutsideClients: -1})
	node, client, old, other := cluster.Node, cluster.Pods[0], cluster.Pods[1], cluster.Pods[2]
	service := AddrPort("10.96.0.10:80")
	if tc.v6 {
		service = AddrPort("[fd00:10:96::10]:80")
	}
	if tc.node {
		client = node
	}
	mark := ""
	if tc.masq {
		mark = "meta mark set 0x4000"
	}
	oldAt := netip.AddrPortFrom(old.Addr(service.Addr()), 8080)
	otherAt := netip.AddrPortFrom(other.Addr(service.Addr()), 8080)
	oldListener, otherListener := listen(t, old, oldAt), listen(t, other, otherAt)
	table := OpenTable(t, node.NS)

	Rules(t, node.NS, DNAT(TCP, service, oldAt, mark), "")
	doomed := connect(t, client.NS, netip.AddrPort{}, service, oldListener)
	straight := connect(t, cluster.Pods[0].NS, netip.AddrPort{}, oldAt, oldListener)
	after := ""
	if tc.left {
		after = DNAT(TCP, service, otherAt, mark)
	}
	Rules(t, node.NS, after, tc.filter)
	if tc.sysctl != "" {
		require.NoError(t, node.NS.SetSysctl(tc.sysctl, "0"))
	}

	cut := cutAll(t, table, List(t, table, Filter{OriginalDst: service.Addr()}))
	require.Equal(t, CleanResult{Deleted: 1, Reset: 1}, cut)
	require.ErrorIs(t, waitReset(doomed.client), syscall.ECONNRESET, "the client")
	require.ErrorIs(t, waitReset(doomed.server), syscall.ECONNRESET, "the endpoint")
	require.NoError(t, straight.talk(), "a connection straight to the endpoint goes on")
	if !tc.left {
		return
	}

	// The client can connect again at once, even with the same port.
	again := doomed.client.LocalAddr().(*net.TCPAddr).AddrPort()
	doomed.client.Close()
	require.NoError(t, connect(t, client.NS, again, service, otherListener).talk())
}

// A cut changes nothing if the flow ended, or was created again before the cut.
func TestCutLeavesOtherConnectionsAlone(t *testing.T) {
	t.Parallel()
	cluster := netnstest.Start(t, netnstest.Options{RemotePods: -1, OutsideClients: -1})
	node, client := cluster.Node, cluster.Pods[0]
	service, other := AddrPort("10.96.0.10:80"), AddrPort("10.96.0.11:80")
	at := netip.AddrPortFrom(cluster.Pods[1].IPv4, 8080)
	listener := listen(t, cluster.Pods[1], at)
	table := OpenTable(t, node.NS)
	Rules(t, node.NS, DNAT(TCP, service, at, "")+DNAT(TCP, other, at, ""), "")

	// One endpoint has many connections from one client. Only the connections of one service are
	// cut.
	var doomed, healthy []pair
	for range 20 {
		doomed = append(doomed, connect(t, client.NS, netip.AddrPort{}, service, listener))
		healthy = append(healthy, connect(t, client.NS, netip.AddrPort{}, other, listener))
	}

	flows := List(t, table, Filter{OriginalDst: service.Addr()})
	ended := flows[0]
	ended.Original.Src = AddrPort("10.244.1.1:1")
	ended.Reply.Dst, ended.ID = ended.Original.Src, 0
	changed := List(t, table, Filter{OriginalDst: other.Addr()})[0]
	changed.Reply.Src = AddrPort("10.244.1.9:8080") // before the flow was created again
	cut := cutAll(t, table, append(flows, ended, changed))
	require.Equal(t, CleanResult{Deleted: 20, Missing: 2, Reset: 20}, cut)
	for i := range doomed {
		require.ErrorIs(t, waitReset(doomed[i].client), syscall.ECONNRESET)
		require.ErrorIs(t, waitReset(doomed[i].server), syscall.ECONNRESET)
		require.NoError(t, healthy[i].talk())
	}

	require.Len(t, List(t, table, Filter{OriginalDst: service.Addr(), ReplySrcPort: TombstonePort}),
		20)
	require.Empty(t,
		List(t, table, Filter{OriginalSrc: ended.Original.Src.Addr(), OriginalDst: service.Addr(),
			Status: StatusSrcNAT}))
	for _, f := range List(t, table, Filter{Status: StatusFixedTimeout}) {
		require.Equal(t, TCPClose, f.TCP)
		require.LessOrEqual(t, f.Timeout, TombstoneTime, "tombstones do not stay")
		require.NotEqual(t, ended.Original.Src, f.Original.Src, "a flow that was gone has none")
	}
}

// Linux answers at most one segment without data in half a second if the segment is out of place.
func TestCutResetsWhoAnsweredSomethingElseBefore(t *testing.T) {
	t.Parallel()
	cluster := netnstest.Start(t, netnstest.Options{RemotePods: -1, OutsideClients: -1})
	node, client := cluster.Node, cluster.Pods[0]
	service := AddrPort("10.96.0.10:80")
	at := netip.AddrPortFrom(cluster.Pods[1].IPv4, 8080)
	table := OpenTable(t, node.NS)
	Rules(t, node.NS, DNAT(TCP, service, at, ""), "")
	doomed := connect(t, client.NS, netip.AddrPort{}, service, listen(t, cluster.Pods[1], at))

	peer := doomed.client.LocalAddr().(*net.TCPAddr).AddrPort()
	time.Sleep(250 * time.Millisecond) // until no acknowledgement is due
	require.NoError(t, table.SendSynAck(service, peer))
	cut := cutAll(t, table, List(t, table, Filter{OriginalDst: service.Addr()}))
	require.Equal(t, CleanResult{Deleted: 1, Reset: 1}, cut)
	require.ErrorIs(t, waitReset(doomed.client), syscall.ECONNRESET, "the client")
	require.ErrorIs(t, waitReset(doomed.server), syscall.ECONNRESET, "the endpoint")
}

// A packet creates a connection's flow again before its tombstone exists. Cut finds the new flow
// and cuts it, too.
func TestCutFindsConnectionsThatGoOn(t *testing.T) {
	t.Parallel()
	table, _ := NewTable(t)
	open := func(src, dst, endpoint string) Flow {
		f := NewFlow(TCP, src, dst, endpoint, "")
		f.TCP = TCPEstablished
		return f
	}

	again := open("10.244.1.1:1001", "10.96.0.10:80", "10.244.0.5:8080")
	elsewhere := open("10.244.1.1:1002", "10.96.0.10:80", "10.244.0.5:8080")
	reply := open("10.244.1.1:1003", "10.96.0.10:80", "10.244.0.5:8080")
	buried := open("10.244.1.1:1004", "10.96.0.10:80", "10.244.0.5:8080")
	ended := open("10.244.1.1:1005", "10.96.0.10:80", "10.244.0.5:8080")

	backwards := reply // the form that IPVS gives a packet of the endpoint
	backwards.Original, backwards.Reply = reply.Reply, reply.Original
	closed := buried
	closed.TCP = TCPClose
	Create(t, table, again, open("10.244.1.1:1002", "10.96.0.10:80", "10.244.0.6:8080"), backwards,
		closed)

	cut := OK(table.CutAgain(t.Context(), []Flow{again, elsewhere, reply, buried, ended}))(t)
	require.Equal(t, []Flow{again, reply}, cut.Were)
	require.Empty(t, cut.Survivors)
	require.Zero(t, cut.Result.Deleted, "they were counted")
	for _, f := range List(t, table, Filter{}) {
		require.NotContains(t, []uint32{cut.Are[0].ID, cut.Are[1].ID}, f.ID, "%s", f)
	}
}

// A route may refuse packets to an end. Calico, for example, has a blackhole for each block of
// addresses, which takes effect as soon as a pod of the block is deleted.
func TestCutWithoutAWayToTheEnds(t *testing.T) {
	t.Parallel()
	for _, route := range []string{"", "blackhole", "prohibit", "unreachable", "throw"} {
		for _, to := range [][3]string{
			{"10.96.0.10:80", "10.244.0.5:8080", "10.0.0.9:4000"},
			{"[fd00:10:96::10]:80", "[fd00:10:244::5]:8080", "[fd00::1]:4000"},
		} {
			t.Run(route+" "+to[0], func(t *testing.T) {
				t.Parallel()
				table, ns := NewTable(t)
				client := Client
				if to[0][0] == '[' {
					client = "[fd00::2]:1000"
				}
				if route != "" {
					nstest.Run(t, ns, "ip route add "+route+" default")
					nstest.Run(t, ns, "ip -6 route add "+route+" default")
				}

				f := NewFlow(TCP, client, to[0], to[1], "")
				f.TCP = TCPEstablished
				masqueraded := NewFlow(TCP, client, WithPort(AddrPort(to[0]), 81).String(), to[1],
					to[2])
				masqueraded.TCP = TCPEstablished
				Create(t, table, f, masqueraded)
				cut := cutAll(t, table, List(t, table, Filter{}))
				require.Equal(t, CleanResult{Deleted: 2}, cut, "that is no failure")
			})
		}
	}
}
