package netnstest

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/servicemodel"
)

func TestACaptureSeesBothDirections(t *testing.T) {
	t.Parallel()
	c := Start(t, Options{})
	serveAll(t, c, 8080)
	capture := ok(c.Node.NS.Capture("eth1"))(t)
	for _, addr := range addrsOf(c.Pods[0]) {
		for _, proto := range Protocols() {
			o := send(c.Outside[0], proto, addr, 8080)
			require.Equal(t, Answered, o.Kind, "%s", o)
			to := netip.AddrPortFrom(addr, 8080)
			seen := func(src, dst netip.AddrPort) (found Packet) {
				require.Eventually(t, func() bool {
					packets := capture.Packets()
					i := slices.IndexFunc(packets, func(p Packet) bool {
						return p.Proto == proto && p.Src == src && p.Dst == dst
					})
					if i >= 0 {
						found = packets[i]
					}
					return i >= 0
				}, 10*time.Second, time.Millisecond)
				return found
			}
			require.False(t, seen(o.Local, to).Outgoing)
			p := seen(to, o.Local)
			require.True(t, p.Outgoing)
			switch proto {
			case servicemodel.TCP:
				require.EqualValues(t, tcpSYN|tcpACK, p.TCPFlags)
			case servicemodel.SCTP:
				require.EqualValues(t, sctpInitAck, p.Type)
			}
		}
	}
	require.NoError(t, capture.Close())
}

func TestACaptureOfAnInterfaceThatIsNotThere(t *testing.T) {
	t.Parallel()
	_, err := newNS(t).Capture("nosuch0")
	require.ErrorContains(t, err, "nosuch0")
}
