package conntrack

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/test/must"
)

func ap(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

// translated is a UDP flow from 10.0.0.1:4000 to 10.96.0.10:53 that 10.244.0.5:5353 answers.
func translated() Flow {
	return Flow{
		Protocol: UDP,
		Original: Tuple{Src: ap("10.0.0.1:4000"), Dst: ap("10.96.0.10:53")},
		Reply:    Tuple{Src: ap("10.244.0.5:5353"), Dst: ap("10.0.0.1:4000")},
	}
}

// recorded is one entry of testdata/flows.txt.
type recorded struct {
	command, text, status string
	attrs                 []byte
}

func recordings(tb testing.TB) []recorded {
	file := must.OK(os.Open("testdata/flows.txt"))(tb)
	defer file.Close()
	var all []recorded
	var lines []string
	for s := bufio.NewScanner(file); s.Scan(); {
		if line := s.Text(); line != "" && line[0] != '#' {
			lines = append(lines, line)
		}
	}

	require.Zero(tb, len(lines)%4)
	for i := 0; i < len(lines); i += 4 {
		attrs := must.OK(hex.DecodeString(lines[i+3]))(tb)
		all = append(all, recorded{lines[i], lines[i+1], lines[i+2], attrs})
	}

	return all
}

func TestParseRecordedFlows(t *testing.T) {
	t.Parallel()
	for _, r := range recordings(t) {
		var f Flow
		require.NoError(t, parseFlow(r.attrs, &f, wantAll), r.command)
		require.Equal(t, r.text, f.String(), r.command)
		require.Equal(t, r.status, f.Status.String(), r.command)
		require.NotZero(t, f.ID, r.command)
		require.Equal(t, 2026, f.Start.Year(), r.command)
		require.Equal(t, f.Original.Src.Addr().Is4(), f.family() == familyIPv4, r.command)
	}
}

func TestParseFlowStopsWhereNobodyIsInterested(t *testing.T) {
	t.Parallel()
	r := recordings(t)[0]
	var f Flow
	err := parseFlow(r.attrs, &f, func(f *Flow) bool {
		require.Equal(t, TCP, f.Protocol)
		require.Equal(t, ap("10.96.0.10:80"), f.Original.Dst)
		require.False(t, f.Reply.Src.IsValid(), "only what comes first is parsed")
		return false
	})
	require.Equal(t, errUnwanted, err)
}

func TestParseFlowRefusesWhatIsNoFlow(t *testing.T) {
	t.Parallel()
	attrs := func(write func(b *rawnl.Batch)) []byte {
		var b rawnl.Batch
		b.Message(rawnl.SubsysConntrack, msgNew, 0, 0, 0, rawnl.Object{})
		write(&b)
		require.NoError(t, b.Err())
		return b.Bytes()[20:]
	}

	tuple := Tuple{Src: ap("10.0.0.1:1"), Dst: ap("10.0.0.2:2")}
	for name, data := range map[string][]byte{
		"nothing": nil,
		"no reply": attrs(func(b *rawnl.Batch) {
			appendTuple(b, attrTupleOrig, UDP, tuple, false)
		}),
		"no addresses": attrs(func(b *rawnl.Batch) { b.End(b.Nest(attrTupleOrig)) }),
		"another protocol": attrs(func(b *rawnl.Batch) {
			appendTuple(b, attrTupleOrig, UDP, tuple, false)
			appendTuple(b, attrTupleReply, TCP, tuple, false)
		}),
		"families mixed": attrs(func(b *rawnl.Batch) {
			appendTuple(b, attrTupleOrig, UDP, Tuple{Src: ap("10.0.0.1:1"), Dst: ap("[fd00::1]:1")},
				false)
		}),
		"a short address": attrs(func(b *rawnl.Batch) {
			tuple, ip := b.Nest(attrTupleOrig), b.Nest(attrTupleIP)
			b.Attr(attrIPv4Src, []byte{1, 2, 3})
			b.End(ip)
			b.End(tuple)
		}),
		"a long IPv6 address": attrs(func(b *rawnl.Batch) {
			tuple, ip := b.Nest(attrTupleOrig), b.Nest(attrTupleIP)
			b.Attr(attrIPv6Dst, make([]byte, 20))
			b.End(ip)
			b.End(tuple)
		}),
		"cut short": recordings(t)[0].attrs[:50],
	} {
		var f Flow
		require.ErrorIs(t, parseFlow(data, &f, wantAll), rawnl.ErrMalformed, name)
	}
}

// The bytes of conntrack 1.4.7, without the flag that asks for an acknowledgement:
//
//	conntrack -I -p udp -s 10.0.0.1 -d 10.96.0.10 --sport 4000 --dport 53
//	  -r 10.96.0.10 -q 10.0.0.1 --reply-port-src 53 --reply-port-dst 4000
//	  --dst-nat 10.244.0.5:5353 -t 60 -m 7
func TestCreateIsWhatConntrackSends(t *testing.T) {
	t.Parallel()
	f := translated()
	f.Timeout, f.Mark = time.Minute, 7
	var b rawnl.Batch
	appendCreate(&b, &f)
	require.NoError(t, b.Err())

	// nlmsghdr, nfgenmsg
	requireMessage(t, "ac000000"+"0001"+"0106"+"00000000"+"00000000"+"02000000"+
		"34000180"+"14000180"+"080001000a000001"+"080002000a60000a"+
		"1c000280"+"0500010011000000"+"060002000fa00000"+"0600030000350000"+ // CTA_TUPLE_ORIG
		"34000280"+"14000180"+"080001000a60000a"+"080002000a000001"+
		"1c000280"+"0500010011000000"+"0600020000350000"+"060003000fa00000"+ // CTA_TUPLE_REPLY
		"080007000000003c"+"0800080000000007"+ // CTA_TIMEOUT, CTA_MARK
		// CTA_NAT_DST
		"20000d80"+"080001000af40005"+"14000380"+"0600010014e90000"+"0600020014e90000",
		&b)
}

// As above, for the tuple. conntrack -D names the flow by its original tuple, and sends more
// attributes than the kernel reads.
func TestDeleteNamesReplyTupleAndID(t *testing.T) {
	t.Parallel()
	f := translated()
	f.ID = 0x01020304
	var b rawnl.Batch
	appendDelete(&b, &f)
	require.NoError(t, b.Err())
	requireMessage(t, "50000000"+"0201"+"0100"+"00000000"+"00000000"+"02000000"+
		"34000280"+"14000180"+"080001000af40005"+"080002000a000001"+
		"1c000280"+"0500010011000000"+"0600020014e90000"+"060003000fa00000"+
		"08000c0001020304", &b)
}

func TestDumpAsksForWhatTheFilterWants(t *testing.T) {
	t.Parallel()
	var native [4]byte
	binary.NativeEndian.PutUint32(native[:], 0b101010)
	vip := dumpRequest{Family: familyIPv4, Protocol: UDP, Dst: ap("10.96.0.10:0").Addr(),
		DstPort: 53}
	var b rawnl.Batch
	appendDump(&b, vip)
	require.NoError(t, b.Err())
	requireMessage(t, "44000000"+"0101"+"0100"+"00000000"+"00000000"+"02000000"+
		"24000180"+"0c000180"+"080002000a60000a"+"14000280"+"0500010011000000"+"0600030000350000"+
		"0c001980"+"08000100"+hex.EncodeToString(native[:]), &b)

	b.Reset()
	appendDump(&b, dumpRequest{Status: 4, StatusMask: 6, Mark: 1, MarkMask: 3,
		Zone: new(uint16(9))})
	require.NoError(t, b.Err())
	requireMessage(t, "3c000000"+"0101"+"0100"+"00000000"+"00000000"+"00000000"+
		"0800030000000004"+"08001a0000000006"+"0800080000000001"+"0800150000000003"+"0600120000090"+
		"000", &b)
}

// requireMessage compares the one message of b, whose length and type are in the machine's byte
// order.
func requireMessage(t *testing.T, want string, b *rawnl.Batch) {
	t.Helper()
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		t.Skip("the bytes were recorded on a little-endian machine")
	}
	require.Equal(t, want, hex.EncodeToString(b.Bytes()))
}

func TestParseStats(t *testing.T) {
	t.Parallel()
	var b rawnl.Batch
	b.Message(rawnl.SubsysConntrack, msgGetStatsCPU, 0, 0, 0, rawnl.Object{})
	for typ := attrStatsFound; typ <= attrStatsChainTooLong; typ++ {
		b.U32(typ, uint32(typ))
	}
	b.U32(99, 99)
	require.NoError(t, b.Err())
	var s Stats
	require.NoError(t, s.parseStats(b.Bytes()[20:]))
	require.NoError(t, s.parseStats(b.Bytes()[20:]))
	require.Equal(t, Stats{
		Found: 4, Invalid: 8, Inserted: 16, InsertFailed: 18, Dropped: 20, EarlyDropped: 22,
		Errors:         24,
		SearchRestarts: 26, ClashesResolved: 28, ChainsTooLong: 30,
	}, s, "the CPUs add up")
}

func FuzzParseFlow(f *testing.F) {
	for _, r := range recordings(f) {
		f.Add(r.attrs)
	}
	f.Fuzz(func(t *testing.T, attrs []byte) {
		var fl Flow
		if parseFlow(attrs, &fl, wantAll) != nil {
			return
		}
		require.NotEqual(t, familyAny, fl.family())
		require.False(t, strings.Contains(fl.String(), "invalid"), fl.String())
		var b rawnl.Batch
		appendDelete(&b, &fl)
		require.NoError(t, b.Err(), "every flow can be named")
	})
}
