package netnstest

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestACaptureSeesBothDirections(t *testing.T) {
	t.Parallel()
	c := Start(t, Options{})
	serveAll(t, c, 8080)
	capture, err := c.Node.NS.Capture("eth1")
	require.NoError(t, err)
	for _, addr := range addrsOf(c.Pods[0]) {
		for _, proto := range Protocols() {
			o := send(c.Outside[0], proto, addr, 8080)
			require.Equal(t, Answered, o.Kind, "%s", o)
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			to := netip.AddrPortFrom(addr, 8080)
			p, err := capture.Wait(ctx, func(p Packet) bool {
				return p.Proto == proto && p.Src == o.Local && p.Dst == to
			})
			require.NoError(t, err)
			require.False(t, p.Outgoing)
			p, err = capture.Wait(ctx, func(p Packet) bool {
				return p.Proto == proto && p.Src == to && p.Dst == o.Local
			})
			require.NoError(t, err)
			require.True(t, p.Outgoing)
			switch proto {
			case TCP:
				require.EqualValues(t, tcpSYN|tcpACK, p.TCPFlags)
			case SCTP:
				require.EqualValues(t, sctpInitAck, p.Type)
			}
		}
	}
	require.NotEmpty(t, capture.Packets())
	require.Zero(t, capture.Missed())
	capture.Reset()
	require.Empty(t, capture.Packets())
	require.NoError(t, capture.Close())
}

func TestACaptureWaitsForAPacketThatComesLater(t *testing.T) {
	t.Parallel()
	c := Start(t, Options{})
	capture, err := c.Pods[0].NS.Capture("")
	require.NoError(t, err)
	found := make(chan Packet)
	go func() {
		defer close(found)
		p, err := capture.Wait(t.Context(), func(p Packet) bool {
			return p.Proto == ICMP && p.Outgoing
		})
		if err == nil {
			found <- p
		}
	}()
	o := send(c.Node, UDP, c.Pods[0].IPv4, 9)
	require.Equal(t, Refused, o.Kind, "%s", o)
	p := <-found
	require.Equal(t, c.Pods[0].IPv4, p.Src.Addr())
	require.EqualValues(t, 3, p.Type)
	require.EqualValues(t, 3, p.Code)

	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err = capture.Wait(ctx, func(p Packet) bool { return p.Proto == TCP })
	require.ErrorIs(t, err, context.DeadlineExceeded)
	_, err = c.Node.NS.Capture("nosuch0")
	require.ErrorContains(t, err, "nosuch0")
}

func TestCountersCountTheNamespacesPackets(t *testing.T) {
	t.Parallel()
	c := Start(t, Options{})
	before, err := c.Pods[0].NS.Counters()
	require.NoError(t, err)
	require.Contains(t, before, "TcpExt.TCPTimeouts")
	require.Contains(t, before, "Tcp.RetransSegs")
	for range 5 {
		require.Equal(t, Refused, send(c.Outside[0], TCP, c.Pods[0].IPv4, 9).Kind)
		require.Equal(t, Refused, send(c.Outside[0], UDP, c.Pods[0].IPv6, 9).Kind)
	}
	after, err := c.Pods[0].NS.Counters()
	require.NoError(t, err)
	grown := after.Since(before)
	require.EqualValues(t, 5, grown["Tcp.OutRsts"])
	require.EqualValues(t, 5, grown["Udp6NoPorts"])
	require.NotContains(t, grown, "Tcp.RetransSegs")
}
