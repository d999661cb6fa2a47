package ipvs

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRoutingTables(t *testing.T) {
	t.Parallel()
	body := appendAttr(make([]byte, routeHeader), routeTable,
		binary.NativeEndian.AppendUint32(nil, 0x6b001234))
	require.Equal(t, uint32(0x6b001234), routingTable(body))
	require.Zero(t, routingTable(body[:routeHeader]))
	require.Zero(t, routingTable(body[:routeHeader-1]))
}

func FuzzRoutingTable(f *testing.F) {
	f.Add(make([]byte, routeHeader))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) <= routeHeader {
			require.Zero(t, routingTable(b))
		}
		routingTable(b)
	})
}
