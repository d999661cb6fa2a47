package ipvsnl

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/rawnl"
)

var SomeStats = Stats{
	Connections: 1, InPackets: 2, OutPackets: 3, InBytes: 4, OutBytes: 5,
	ConnectionRate: 6, InPacketRate: 7, OutPacketRate: 8, InByteRate: 9, OutByteRate: 10,
}

// putStats appends s with 32 bits for each number.
func putStats(b *rawnl.Batch, s Stats) {
	for typ := StatsAttrConns; typ <= StatsAttrOutBPS; typ++ {
		b.NativeU32(typ, uint32(*s.Counter(typ)))
	}
}

// putStats64 appends s with 64 bits for each number.
func putStats64(b *rawnl.Batch, s Stats) {
	for typ := StatsAttrConns; typ <= StatsAttrOutBPS; typ++ {
		b.NativeU64(typ, *s.Counter(typ))
	}
}

func TestStatisticsOf64BitsWin(t *testing.T) {
	t.Parallel()
	big := SomeStats
	big.InPackets = 1 << 40
	narrow := Attrs(func(b *rawnl.Batch) { putStats(b, big) })
	wide := Attrs(func(b *rawnl.Batch) { putStats64(b, big) })

	got, err := parseStats(narrow, nil)
	require.NoError(t, err)
	require.Zero(t, got.InPackets, "32 bits cannot hold it")
	require.Equal(t, uint64(4), got.InBytes)

	got, err = parseStats(narrow, wide)
	require.NoError(t, err)
	require.Equal(t, big, got)
}

func TestStatisticsIgnoreWhatTheyDoNotKnow(t *testing.T) {
	t.Parallel()
	got, err := parseStats(nil, Attrs(func(b *rawnl.Batch) {
		b.Flag(11) // IPVS_STATS_ATTR_PAD, and one to come
		b.NativeU64(200, 1)
		b.NativeU64(StatsAttrConns, 3)
	}))
	require.NoError(t, err)
	require.Equal(t, Stats{Connections: 3}, got)

	_, err = parseStats([]byte("not attributes"), nil)
	require.ErrorIs(t, err, rawnl.ErrMalformed)
}
