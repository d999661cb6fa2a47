package nft

import (
	"encoding/hex"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/servicemodel"
)

// nft add element ip t m { 10.96.0.1 . tcp . 80 . 3 comment "x" : 10.244.1.1 . 8080 }, on a
// little-endian machine.
const elemBytes = "34000180" +
	"18000180" + "14000100" + "0a600001" + "06000000" + "00500000" + "03000000" + // the key
	"10000280" + "0c000100" + "0af40101" + "1f900000" + // the data
	"08000600" + "00027800" // the comment

func TestElementBytes(t *testing.T) {
	t.Parallel()
	if Native32(1)[0] != 1 {
		t.Skip("the bytes are those of a little-endian machine")
	}
	k := servicemodel.FrontendKey{Addr: netip.MustParseAddr("10.96.0.1"),
		Protocol: servicemodel.TCP, Port: 80}
	var l ElemList
	l.Add(Elem{Key: AppendSlot(AppendFrontend(nil, k), 3),
		Data:     AppendEndpoint(nil, netip.MustParseAddrPort("10.244.1.1:8080")),
		UserData: AppendComment(nil, "x")})
	require.Equal(t, elemBytes, hex.EncodeToString(l.Bytes()))
}

func TestElementsRoundTrip(t *testing.T) {
	t.Parallel()
	var l ElemList
	in := []Elem{
		{Key: []byte{1, 2, 3, 4}},
		{Key: []byte{1, 2, 3}, Data: []byte{9}},
		{Key: []byte{1, 2, 3, 4, 5, 6, 7, 8}, KeyEnd: []byte{1, 2, 3, 4, 5, 6, 7, 9},
			UserData: AppendComment(nil, strings.Repeat("long ", 40))},
		{Key: []byte{7}, Data: []byte{1, 2, 3, 4}, Timeout: time.Hour},
	}
	for _, e := range in {
		l.Add(e)
	}
	var out []Elem
	require.NoError(t, DecodeElems(l.Bytes(), func(e Elem) error {
		out = append(out, e)
		return nil
	}))

	require.Len(t, out, len(in))
	for i := range in {
		in[i].Timeout = 0 // a reading returns the remaining time instead
		require.Equal(t, in[i], out[i])
	}

	require.Equal(t, strings.Repeat("long ", 40), CommentOf(out[2].UserData))
}

func TestElementListsAreCutIntoMessages(t *testing.T) {
	t.Parallel()
	var l ElemList
	for i := range 5000 {
		l.Add(Elem{Key: Native32(uint32(i))})
	}
	n, size := 0, 0
	for _, b := range l.blocks {
		require.LessOrEqual(t, len(b), messageRoom+64)
		require.NoError(t, DecodeElems(b, func(Elem) error { n++; return nil }))
		size += len(b)
	}

	require.Equal(t, 5000, n)
	require.Equal(t, l.Size, size)
	require.Len(t, l.Bytes(), size)
	l.Reset()
	require.Zero(t, l.Len+l.Size)
	var b rawnl.Batch
	NewEncoder(&b, IPv4, "t").Elements(Add, &Set{}, &l)
	require.Zero(t, b.Len(), "an empty list has no message")
}

func TestReadersTakeWhatWasAppended(t *testing.T) {
	t.Parallel()
	service := servicemodel.FrontendKey{Addr: netip.MustParseAddr("2001:db8::1"),
		Protocol: servicemodel.UDP, Port: 53}
	nodePort := servicemodel.FrontendKey{Addr: netip.IPv4Unspecified(), Protocol: servicemodel.SCTP,
		Port: 30053}
	ep := netip.MustParseAddrPort("[fd00::7]:5353")

	r := Reader{Bytes: AppendSlot(AppendEndpoint(AppendFrontend(nil, service), ep), 9)}
	require.Equal(t, service, r.Frontend(netip.IPv6Unspecified(), false))
	require.Equal(t, ep, r.Endpoint(16))
	require.False(t, r.Done(), "something is left")
	require.Equal(t, uint32(9), r.Native())
	require.True(t, r.Done())
	require.Zero(t, r.Port())
	require.False(t, r.Done(), "more was taken than was there")

	r = Reader{Bytes: AppendFrontend(nil, nodePort)}
	require.Equal(t, nodePort, r.Frontend(netip.IPv4Unspecified(), true))
	require.True(t, r.Done())
}

// Decoding any message of the kernel may return an error, but does not panic.
func FuzzDecode(f *testing.F) {
	seed, _ := hex.DecodeString(elemBytes)
	f.Add(seed)
	f.Fuzz(func(t *testing.T, data []byte) {
		_ = DecodeElems(data, func(e Elem) error {
			r := Reader{Bytes: e.Key}
			r.Frontend(netip.IPv4Unspecified(), false)
			r.Endpoint(16)
			_ = CommentOf(e.UserData)
			return nil
		})
		walkUserData(data, func(byte, []byte) {})
	})
}
