package ipvs

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

func TestRoutingTables(t *testing.T) {
	t.Parallel()
	body := append(make([]byte, unix.SizeofRtMsg),
		nl.NewRtAttr(unix.RTA_TABLE, nl.Uint32Attr(0x6b001234)).Serialize()...)
	require.Equal(t, uint32(0x6b001234), routingTable(body))
	require.Zero(t, routingTable(body[:unix.SizeofRtMsg]))
	require.Zero(t, routingTable(body[:unix.SizeofRtMsg-1]))
}

func FuzzRoutingTable(f *testing.F) {
	f.Add(make([]byte, unix.SizeofRtMsg))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) <= unix.SizeofRtMsg {
			require.Zero(t, routingTable(b))
		}
		routingTable(b)
	})
}
