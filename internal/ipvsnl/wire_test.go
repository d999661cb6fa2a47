package ipvsnl_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	. "github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/test/ipvsfake"
)

// genHeader is the length of struct genlmsghdr. The bodies of ipvsfake begin with one.
const genHeader = 4

var someStats = Stats{Connections: 1, InPackets: 2, OutPackets: 3, InBytes: 4, OutBytes: 1 << 40}

// attrs returns the attributes that put appends inside another attribute.
func attrs(typ uint16, put func(b *rawnl.Batch)) []byte {
	return ipvsfake.Body(0, func(b *rawnl.Batch) {
		m := b.Nest(typ)
		put(b)
		b.End(m)
	})[genHeader:]
}

func TestADestinationComesBackAsItWas(t *testing.T) {
	t.Parallel()
	want := ObservedDestination{Destination: Dest("10.244.1.1:8080"), ActiveConns: 1,
		InactiveConns: 2, PersistentConns: 3, Stats: someStats}
	want.Forward, want.Tunnel = ForwardTunnel, Tunnel{Type: 1, Port: 6080, Flags: 2}
	got := ok(ParseDestinationReply(ipvsfake.DestinationBody(want)[genHeader:], FamilyIPv4))(t)
	require.Equal(t, want, got)
}

func TestWhatTheKernelWouldNotSendIsRefused(t *testing.T) {
	t.Parallel()
	const (
		family = "0600 0100 0200 0000"
		port   = "0600 0200 0600 0000" + "0600 0400 0050 0000" // and protocol
	)
	for _, tt := range []struct{ service, want string }{
		{"", "neither a mark nor"},
		{port + "0800 0300 0a00 0001", "neither a mark nor"},
		{family + port, "neither a mark nor"},
		{family + port + "0600 0300 0a00 0000", "an address of IPv4 has 2 bytes"},
		{"0600 0100 0a00 0000" + port + "0800 0300 0a00 0001", "an address of IPv6 has 4 bytes"},
		{"0600 0100 0700 0000" + port + "0800 0300 0a00 0001", "an address of family 7"},
		{family + port + "0800 0300 0a00 0001", "service TCP 10.0.0.1:80: not all attributes"},
		{"0900 0100", "claims 9 bytes"},
		{"0600 0600 7272 0000", "attribute 6 is not a terminated string"},
		{"0400 0600", "is not a terminated string"},
		{"1500 0600 7777 7777 7777 7777 7777 7777 7777 7777 00",
			"a string of 16 bytes, want at most 15"},
		{"1800 0300 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000",
			"has 20 bytes of data, want at most 16"},
		{"0c00 0c00 0800 0100 0000 0003", "has 4 bytes of data, want 8"},
	} {
		littleEndian(t)
		_, err := ParseServiceReply(attrs(CmdAttrService,
			func(b *rawnl.Batch) { b.Raw(Unhex(t, tt.service)) }))
		require.ErrorIs(t, err, rawnl.ErrMalformed, tt.service)
		require.ErrorContains(t, err, tt.want)
	}

	for want, put := range map[string]func(b *rawnl.Batch){
		"no address or no port": func(b *rawnl.Batch) { b.U16(DestAttrPort, 80) },
		"not all attributes are there": func(b *rawnl.Batch) {
			b.U16(DestAttrPort, 80)
			b.Attr(DestAttrAddr, []byte{10, 0, 0, 1})
		},
		"an address of family 1": func(b *rawnl.Batch) {
			PutDestination(b, Dest("10.0.0.1:80"))
			b.NativeU16(DestAttrFamily, 1)
		},
	} {
		_, err := ParseDestinationReply(attrs(CmdAttrDestination, put), FamilyIPv4)
		require.ErrorIs(t, err, rawnl.ErrMalformed)
		require.ErrorContains(t, err, want)
	}
}

// A destination without a family has the family of its service. Rates and unknown attributes are
// ignored.
func TestOtherAttributesOfAReply(t *testing.T) {
	t.Parallel()
	d := ok(ParseDestinationReply(attrs(CmdAttrDestination, func(b *rawnl.Batch) {
		b.Attr(DestAttrAddr, []byte{10, 0, 0, 1, 15: 0})
		b.U16(DestAttrPort, 80)
		for _, typ := range []uint16{DestAttrForward, DestAttrWeight, DestAttrUpper,
			DestAttrLower} {
			b.NativeU32(typ, 0)
		}

		b.NativeU64(99, 1)
		stats := b.Nest(DestAttrStats64)
		b.Attr(11, nil)   // IPVS_STATS_ATTR_PAD
		b.NativeU64(6, 1) // IPVS_STATS_ATTR_CPS
		b.NativeU64(StatsAttrConns, 3)
		b.End(stats)
	}), FamilyIPv4))(t)
	require.Equal(t, ObservedDestination{Destination: Destination{
		DestinationKey: DestKey("10.0.0.1:80")}, Stats: Stats{Connections: 3}}, d)
}

func FuzzParseService(f *testing.F) {
	for _, k := range []ServiceKey{Web, DNS6, Marks} {
		f.Add(NewService(Wanted(k)).Wire())
		f.Add(ipvsfake.ServiceBody(ObservedService{Service: Wanted(k)})[genHeader:])
	}

	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := ParseServiceReply(data)
		if err != nil {
			require.ErrorIs(t, err, rawnl.ErrMalformed)
			return
		}

		back := ok(ParseServiceReply(ipvsfake.ServiceBody(s)[genHeader:]))(t)
		require.Equal(t, s.Service, back.Service)
	})
}

func FuzzParseDestination(f *testing.F) {
	for i, addr := range []string{"10.244.1.1:8080", "[2001:db8::2]:80"} {
		f.Add(NewDestination(Web, Dest(addr)).Wire(), i == 0)
		f.Add(ipvsfake.DestinationBody(ObservedDestination{Destination: Dest(addr)})[genHeader:],
			i == 0)
	}

	f.Fuzz(func(t *testing.T, data []byte, ipv4 bool) {
		family := map[bool]Family{true: FamilyIPv4, false: FamilyIPv6}[ipv4]
		d, err := ParseDestinationReply(data, family)
		if err != nil {
			require.ErrorIs(t, err, rawnl.ErrMalformed)
			return
		}

		back := ok(ParseDestinationReply(ipvsfake.DestinationBody(d)[genHeader:], family))(t)
		require.Equal(t, d.Destination, back.Destination)
		require.Equal(t, d.ActiveConns, back.ActiveConns)
	})
}

func timeoutBytes(t Timeouts) []byte {
	return ipvsfake.Body(0, func(b *rawnl.Batch) { PutTimeouts(b, t) })[genHeader:]
}

func TestTimeouts(t *testing.T) {
	t.Parallel()
	littleEndian(t)
	for want, timeouts := range map[string]Timeouts{
		"0800 0400 84030000 0800 0500 78000000 0800 0600 2c010000": {TCP: 15 * time.Minute,
			TCPFin: 2 * time.Minute, UDP: 5 * time.Minute},
		"0800 0600 01000000": {UDP: time.Second},
		"":                   {},
	} {
		require.NoError(t, timeouts.Validate())
		b := timeoutBytes(timeouts)
		require.Equal(t, Unhex(t, want), b)
		require.Equal(t, timeouts, ok(ParseTimeouts(b))(t))
	}

	for want, timeouts := range map[string]Timeouts{
		"TCP: -1s: want whole seconds, at most 2147483647": {TCP: -time.Second},
		"TCPFin: 1ms: want whole seconds":                  {TCPFin: time.Millisecond},
		"UDP: ":                                            {UDP: 1 << 31 * time.Second},
	} {
		require.ErrorContains(t, timeouts.Validate(), want)
	}
}

func FuzzParseTimeouts(f *testing.F) {
	f.Add(timeoutBytes(Timeouts{TCP: time.Second, TCPFin: time.Second, UDP: time.Second}))
	f.Add([]byte("\x08\x00\x01\x00\x01\x02\x01\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if timeouts, err := ParseTimeouts(data); err == nil {
			require.Equal(t, timeouts, ok(ParseTimeouts(timeoutBytes(timeouts)))(t))
		}
	})
}

// The numbers and names equal those in include/uapi/linux/ip_vs.h. Of each list of attributes, only
// the last is checked.
func TestEnumsHaveTheKernelsNumbersAndNames(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		value  any
		number uint64
		want   string
	}{
		{CommandNewService, 1, "new service"},
		{CommandGetDestination, 8, "get destination"},
		{CommandSetConfig, 12, "set config"},
		{Command(99), 99, "command 99"},
		{FamilyIPv4, 2, "IPv4"},
		{FamilyIPv6, 10, "IPv6"},
		{TCP, 6, "TCP"},
		{UDP, 17, "UDP"},
		{SCTP, 132, "SCTP"},
		{Protocol(50), 50, "protocol 50"},
		{ForwardMasquerade, 0, "masquerade"},
		{ForwardBypass, 4, "bypass"},
		{ForwardingMethod(0xffffffff), 0xffffffff, "forwarding method 4294967295"},
		{CmdAttrTimeoutUDP, 6, "6"}, {SvcAttrPEName, 11, "11"}, {SvcAttrStats64, 12, "12"},
		{DestAttrFamily, 11, "11"}, {DestAttrTunnelFlags, 15, "15"},
	} {
		require.Equal(t, tt.want, fmt.Sprint(tt.value))
		require.Equal(t, fmt.Sprint(tt.number), fmt.Sprintf("%d", tt.value), tt.want)
	}
}
