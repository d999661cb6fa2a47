package ipvsnl

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/rawnl"
)

func TestDestinationKeys(t *testing.T) {
	t.Parallel()
	sorted := []DestinationKey{
		DestKey("9.0.0.1:80"), DestKey("10.0.0.1:80"), DestKey("10.0.0.1:443"),
		DestKey("[2001:db8::1]:80"),
	}
	require.Equal(t, "10.0.0.1:443", sorted[2].String())
	shuffled := slices.Clone(sorted)
	slices.Reverse(shuffled)
	slices.SortFunc(shuffled, DestinationKey.Compare)
	require.Equal(t, sorted, shuffled)
}

// DestinationKeyAttr encodes k as in a request IPVS_CMD_DEL_DEST.
func DestinationKeyAttr(k DestinationKey) []byte {
	return Inside(CmdAttrDestination, func(b *rawnl.Batch) { putDestinationKey(b, k) })
}

// DestinationAttr encodes d as in a request, with more attributes.
func DestinationAttr(d Destination, more ...func(b *rawnl.Batch)) []byte {
	return Inside(CmdAttrDestination, func(b *rawnl.Batch) {
		PutDestination(b, d)
		for _, put := range more {
			put(b)
		}
	})
}

func TestADestinationWithoutFamilyIsOfItsServices(t *testing.T) {
	t.Parallel()
	d := ok(parseDestinationReply(Inside(CmdAttrDestination, func(b *rawnl.Batch) {
		putAddr(b, DestAttrAddr, DestKey("10.0.0.1:80").Addr)
		b.U16(DestAttrPort, 80)
		for _, typ := range []uint16{DestAttrForward, DestAttrWeight, DestAttrUpper,
			DestAttrLower} {
			b.NativeU32(typ, 0)
		}
	}), FamilyIPv4))(t)
	require.Equal(t, DestKey("10.0.0.1:80"), d.DestinationKey)
}
