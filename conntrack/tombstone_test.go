package conntrack

import (
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

// A server may use the same port as the tombstones.
func TestTombstonesHaveAFixedTimeout(t *testing.T) {
	t.Parallel()
	node := netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), tombstonePort)
	stone := tombstone(&Flow{Protocol: TCP}, Tuple{}, 0, node)
	require.True(t, isTombstone(stone))
	for _, status := range []Status{0, StatusSeenReply, ^StatusFixedTimeout} {
		flow := *stone
		flow.Status = status
		require.False(t, isTombstone(&flow), status)
	}

	udp, other := *stone, *stone
	udp.Protocol = UDP
	other.Reply.Src = netip.AddrPortFrom(node.Addr(), 80)
	require.False(t, isTombstone(&udp))
	require.False(t, isTombstone(&other))
}

func TestCuttingClosesItsSockets(t *testing.T) {
	t.Parallel()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	c := newCutting(nil, &CleanResult{})
	c.raw["udp"] = conn
	c.close()
	require.ErrorIs(t, conn.Close(), net.ErrClosed)
}
