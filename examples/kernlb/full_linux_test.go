package main

import (
	"iter"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/rawnl"
)

// strangers returns endless assured flows of one client that uses no service.
func strangers() iter.Seq2[conntrack.Flow, error] {
	return func(yield func(conntrack.Flow, error) bool) {
		client := netip.MustParseAddr("198.51.100.7")
		for i := 0; ; i++ {
			a := netip.AddrPortFrom(client, uint16(1024+i&0x7fff))
			b := netip.AddrPortFrom(netip.AddrFrom4([4]byte{100, 64, byte(i >> 23), byte(i >> 15)}),
				443)
			f := conntrack.Flow{Protocol: conntrack.TCP, TCP: conntrack.TCPEstablished,
				Timeout: time.Hour, Status: conntrack.StatusSeenReply | conntrack.StatusAssured,
				Original: conntrack.Tuple{Src: a, Dst: b}, Reply: conntrack.Tuple{Src: b, Dst: a}}
			if !yield(f, nil) {
				return
			}
		}
	}
}

// flush deletes all flows of a namespace at once.
func flush(t *testing.T, ns *netnstest.NS) {
	t.Helper()
	conn := ok(rawnl.Dial(&rawnl.Config{NetNS: ns.NetNS()}))(t)
	defer conn.Close()
	const deleteFlows = 2 // IPCTNL_MSG_CT_DELETE
	var b rawnl.Batch
	b.Message(rawnl.SubsysConntrack, deleteFlows, 0, 0, 0, rawnl.Object{})
	ok(conn.Query(t.Context(), &b))(t)
}

// With a full table of connections, each command names it as the cause, and the command flows names
// the clients that fill it. A full table slows down listings of flows in all namespaces, so no
// other test runs at the same time.
func TestAFullTableIsNamed(t *testing.T) {
	n := newNight(t, netnstest.Options{}, nightManifest("", ""))
	table := ok(conntrack.Open(&conntrack.Config{NetNS: n.Node.NS.NetNS()}))(t)
	defer table.Close()
	defer flush(t, n.Node.NS)
	_, err := table.Create(t.Context(), strangers())
	require.ErrorIs(t, err, conntrack.ErrTableFull)

	out, _ := kernlb(t, n.Node.NS, "", exitFault, "diagnose default/web", "-from", n.from)
	require.Contains(t, out, "  WRONG  conntrack-full: the table of connections is full (")
	out = done(t, n.Node.NS, "", "trace -send -from 192.0.2.10 -to 10.96.0.10:80/tcp")
	require.Regexp(t, `it is lost in output: the table of connections is full \(\d+ of \d+\), `+
		`and the kernel drops new connections\n$`, out)
	out, errs := kernlb(t, n.Node.NS, "", exitNode, "status")
	require.Contains(t, out, "the table of connections is full, so the page cannot be reached "+
		"either\nthis node: 1 error\nerror: conntrack: the table of connections is full (")
	require.Contains(t, errs, "this node loses connections of clients")
	out = done(t, n.Node.NS, "", "flows")
	require.Regexp(t, `(?m)^others: \d+ flows of no service, most from 198\.51\.100\.7 `+
		`\(\d+\)$`, out)
}
