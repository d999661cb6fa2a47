package ipvsnl

import (
	"testing"

	"github.com/stretchr/testify/require"
)

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

	got, err := decodeStats(narrow[attrHeaderLen:], nil)
	require.NoError(t, err)
	require.Zero(t, got.InPackets, "32 bits cannot hold it")
	require.Equal(t, uint64(4), got.InBytes)

	got, err = decodeStats(narrow[attrHeaderLen:], wide[attrHeaderLen:])
	require.NoError(t, err)
	require.Equal(t, big, got)
}

func TestStatisticsIgnoreWhatTheyDoNotKnow(t *testing.T) {
	t.Parallel()
	b := appendU64(appendAttrHeader(nil, 11, 0), 200, 1) // IPVS_STATS_ATTR_PAD, and one to come
	got, err := decodeStats(nil, appendU64(b, statsAttrConns, 3))
	require.NoError(t, err)
	require.Equal(t, Stats{Connections: 3}, got)

	_, err = decodeStats([]byte("not attributes"), nil)
	require.ErrorIs(t, err, ErrMalformed)
}
