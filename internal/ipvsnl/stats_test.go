package ipvsnl

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/rawnl"
)

var SomeStats = Stats{Connections: 1, InPackets: 2, OutPackets: 3, InBytes: 4, OutBytes: 1 << 40}

// Rates, padding and future attributes do not count.
func TestStatisticsAreRead(t *testing.T) {
	t.Parallel()
	read := func(data []byte) (Stats, error) {
		it := rawnl.Attrs(data)
		require.True(t, it.Next())
		return stats(&it), it.Err()
	}
	got, err := read(Inside(SvcAttrStats64, func(b *rawnl.Batch) {
		b.Flag(11) // IPVS_STATS_ATTR_PAD
		b.NativeU64(6, 1)
		b.NativeU64(200, 1)
		b.NativeU64(StatsAttrConns, 3)
	}))
	require.NoError(t, err)
	require.Equal(t, Stats{Connections: 3}, got)
	_, err = read(Inside(SvcAttrStats64, func(b *rawnl.Batch) { b.U32(StatsAttrConns, 1) }))
	require.ErrorIs(t, err, rawnl.ErrMalformed)
	require.ErrorContains(t, err, "has 4 bytes of data, want 8")
}
