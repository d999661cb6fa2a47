package ipvsnl

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// decodeStats decodes the attributes of one object, in order; wide says which of them are of 64 bits.
func decodeStats(data []byte, wide ...bool) (s Stats, err error) {
	a := attrs{what: "thing", rest: data}
	have := false
	for _, w := range wide {
		if a.next() {
			a.stats(&s, w, &have)
		}
	}
	return s, a.err
}

var someStats = Stats{
	Connections: 1, InPackets: 2, OutPackets: 3, InBytes: 4, OutBytes: 5,
	ConnectionRate: 6, InPacketRate: 7, OutPacketRate: 8, InByteRate: 9, OutByteRate: 10,
}

func TestStatisticsHaveTheKernelsBytes(t *testing.T) {
	t.Parallel()
	littleEndian(t)
	require.Equal(t, unhex(t, `
		5c00 0a80                      // IPVS_SVC_ATTR_STATS
		0800 0100 01000000             // CONNS
		0800 0200 02000000             // INPKTS
		0800 0300 03000000             // OUTPKTS
		0c00 0400 0400000000000000     // INBYTES
		0c00 0500 0500000000000000     // OUTBYTES
		0800 0600 06000000             // CPS
		0800 0700 07000000             // INPPS
		0800 0800 08000000             // OUTPPS
		0800 0900 09000000             // INBPS
		0800 0a00 0a000000             // OUTBPS
	`), appendStats(nil, svcAttrStats, someStats))
	require.Len(t, appendStats64(nil, svcAttrStats64, someStats), 4+10*12)
}

func TestStatisticsOf64BitsWin(t *testing.T) {
	t.Parallel()
	big := someStats
	big.InPackets = 1 << 40
	narrow, wide := appendStats(nil, svcAttrStats, big), appendStats64(nil, svcAttrStats64, big)

	got, err := decodeStats(narrow, false)
	require.NoError(t, err)
	require.Zero(t, got.InPackets, "32 bits cannot hold it")

	got, err = decodeStats(append(narrow, wide...), false, true)
	require.NoError(t, err)
	require.Equal(t, big, got)

	got, err = decodeStats(append(wide, narrow...), true, false)
	require.NoError(t, err)
	require.Equal(t, big, got)
}

func TestStatisticsIgnoreWhatTheyDoNotKnow(t *testing.T) {
	t.Parallel()
	b, mark := beginNest(nil, svcAttrStats64)
	b = appendU64(appendAttrHeader(b, 11, 0), 200, 1) // IPVS_STATS_ATTR_PAD, and one to come
	got, err := decodeStats(endNest(appendU64(b, statsAttrConns, 3), mark), true)
	require.NoError(t, err)
	require.Equal(t, Stats{Connections: 3}, got)

	_, err = decodeStats(appendText(nil, svcAttrStats, "not a nest"), false)
	require.ErrorIs(t, err, ErrMalformed)
}
