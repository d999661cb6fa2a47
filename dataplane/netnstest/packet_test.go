package netnstest

import (
	"encoding/hex"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/servicemodel"
)

// unhex decodes bytes written with spaces.
func unhex(tb testing.TB, s string) []byte {
	tb.Helper()
	return ok(hex.DecodeString(strings.Join(strings.Fields(s), "")))(tb)
}

func TestPacketsAreEncodedWithTheirChecksums(t *testing.T) {
	t.Parallel()

	// A datagram over IPv4.
	udp := unhex(t, "0035 2710 000c 0000 68 69 21 0a")
	got := encodePacket(servicemodel.UDP, netip.MustParseAddr("10.96.0.10"),
		netip.MustParseAddr("10.244.1.1"),
		udp)
	require.Equal(t, unhex(t, `
		4500 0020 0000 0000 4011 646f 0a60 000a 0af4 0101
		0035 2710 000c 38bf 68 69 21 0a`), got)
	p, transport, ok := decodePacket(got)
	require.True(t, ok)
	require.Equal(t, packet{Proto: servicemodel.UDP, Src: netip.MustParseAddrPort("10.96.0.10:53"),
		Dst: netip.MustParseAddrPort("10.244.1.1:10000")}, p)
	require.Equal(t, "hi!\n", string(transport[udpHeaderLen:]))
}

func TestPacketsThatAreCutShortAreNotRead(t *testing.T) {
	t.Parallel()
	whole := encodePacket(servicemodel.TCP, netip.MustParseAddr("fd00::1"),
		netip.MustParseAddr("fd00::2"),
		make([]byte, tcpHeaderLen))
	for n := range ipv6HeaderLen {
		_, _, ok := decodePacket(whole[:n])
		require.False(t, ok, "%d bytes", n)
	}

	for n := ipv6HeaderLen; n < len(whole); n++ {
		p, _, ok := decodePacket(whole[:n])
		require.True(t, ok, "%d bytes", n)
		require.Zero(t, p.Src.Port())
	}

	_, _, ok := decodePacket([]byte{0x50})
	require.False(t, ok, "neither IPv4 nor IPv6")
}

func TestSCTPPacketsAreExactlyAsTheStandardHasThem(t *testing.T) {
	t.Parallel()
	init := sctpPacket{SrcPort: 10000, DstPort: 80, Chunk: sctpInit, InitTag: 0x01020305}
	require.Equal(t, unhex(t, `
		2710 0050 00000000 0e8b63a0
		01 00 0014 01020305 00010000 0001 0001 01020305`), init.encode())
	ack := sctpPacket{SrcPort: 80, DstPort: 10000, Tag: 0x01020305, Chunk: sctpInitAck, InitTag: 7,
		Cookie: "b 1"}
	require.Equal(t, unhex(t, `
		0050 2710 01020305 15c426b9
		02 00 001b 00000007 00010000 0001 0001 00000007 0007 0007 62 20 31 00`), ack.encode())
	abort := sctpPacket{SrcPort: 80, DstPort: 10000, Tag: 0x01020305, Chunk: sctpAbort}
	for _, p := range []sctpPacket{init, ack, abort} {
		b := p.encode()
		got, ok := decodeSCTP(b)
		require.True(t, ok)
		require.Equal(t, p, got)
		for i := range b {
			b[i] ^= 0x10
			_, ok := decodeSCTP(b)
			require.False(t, ok, "byte %d is wrong, and with it the checksum", i)
			b[i] ^= 0x10
		}
	}
}

func TestTheInternetSpeaksTCP(t *testing.T) {
	t.Parallel()
	client, server := netip.MustParseAddrPort("10.244.1.1:10000"),
		netip.MustParseAddrPort("203.0.113.9:443")
	say := func(seq, ack uint32, flags byte) *packet {
		q := tcpSegment(packet{Src: server, Dst: client}, seq, ack, flags, "")
		p, transport, ok := decodePacket(encodePacket(servicemodel.TCP, client.Addr(),
			server.Addr(), q))
		require.True(t, ok)
		b := internetAnswer(p, transport)
		if b == nil {
			return nil
		}
		p, _, ok = decodePacket(b)
		require.True(t, ok)
		require.Equal(t, server, p.Src)
		require.Equal(t, client, p.Dst)
		return &p
	}

	require.EqualValues(t, tcpSYN|tcpACK, say(5, 0, tcpSYN).TCPFlags)
	require.EqualValues(t, tcpFIN|tcpPSH|tcpACK, say(6, internetISN+1, tcpACK).TCPFlags,
		"greets and closes")
	require.Nil(t, say(6, internetISN+50, tcpACK), "the greeting was acknowledged")
	require.EqualValues(t, tcpACK, say(6, internetISN+50, tcpFIN|tcpACK).TCPFlags)
	require.Nil(t, say(6, 0, tcpRST))
}

func FuzzDecodePacket(f *testing.F) {
	src4, dst4 := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	src6, dst6 := netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2")
	init := sctpPacket{SrcPort: 1, DstPort: 2, Chunk: sctpInit, InitTag: 3}.encode()
	f.Add(encodePacket(servicemodel.TCP, src4, dst4, tcpSegment(packet{}, 1, 2, tcpSYN, "")))
	f.Add(encodePacket(servicemodel.UDP, src6, dst6, make([]byte, udpHeaderLen)))
	f.Add(encodePacket(servicemodel.SCTP, src4, dst4, init))
	f.Add(encodePacket(58, src6, dst6, []byte{1, 4}))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, transport, ok := decodePacket(b)
		if !ok {
			return
		}
		require.True(t, p.Src.IsValid() && p.Dst.IsValid())
		if answer := internetAnswer(p, transport); answer != nil {
			q, _, ok := decodePacket(answer)
			require.True(t, ok)
			require.Equal(t, p.Src, q.Dst)
			require.Equal(t, p.Dst, q.Src)
		}
	})
}

func FuzzDecodeSCTP(f *testing.F) {
	f.Add(sctpPacket{SrcPort: 1, DstPort: 2, Chunk: sctpInit, InitTag: 3}.encode())
	f.Add(sctpPacket{SrcPort: 1, DstPort: 2, Chunk: sctpInitAck, InitTag: 3,
		Cookie: "cookie"}.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		// The checksum would hide the rest from the fuzzer.
		if len(b) >= sctpHeaderLen {
			copy(b[8:12], sctpChecksum(b))
		}
		p, ok := decodeSCTP(b)
		if !ok {
			return
		}
		again, ok := decodeSCTP(p.encode())
		require.True(t, ok)
		if p.Chunk != sctpInitAck {
			p.Cookie = "" // only an INIT ACK has a cookie
		}
		require.Equal(t, p, again)
	})
}
