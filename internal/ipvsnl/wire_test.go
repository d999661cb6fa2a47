package ipvsnl

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/rawnl"
)

func TestAttributesThatAreNotWhatTheyMustBeAreRefused(t *testing.T) {
	t.Parallel()
	LittleEndian(t)
	for _, tt := range []struct {
		name, data, want string
		read             func(it *rawnl.AttrIter)
	}{
		{"a string without NUL", "0600 0600 7272 0000", "attribute 6 is not a terminated string",
			func(it *rawnl.AttrIter) { text(it, 15) }},
		{"a string of no bytes", "0400 0600", "is not a terminated string",
			func(it *rawnl.AttrIter) { text(it, 15) }},
		{"a string that is too long", "0800 0600 77777700", "string of 3 bytes, want at most 2",
			func(it *rawnl.AttrIter) { text(it, 2) }},
		{"an address that is too long", "1800 0300 " + "0000000000000000000000000000000000000000",
			"has 20 bytes of data, want at most 16", func(it *rawnl.AttrIter) { addr(it) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			it := rawnl.Attrs(Unhex(t, tt.data))
			for it.Next() {
				tt.read(&it)
			}
			require.ErrorIs(t, it.Err(), rawnl.ErrMalformed)
			require.ErrorContains(t, it.Err(), tt.want)
		})
	}
}

func TestAnAddressNeedsTheBytesOfItsFamily(t *testing.T) {
	t.Parallel()
	four := wireAddr{10, 0, 0, 1}
	for _, tt := range []struct {
		name string
		addr wireAddr
		in   Family
		want string
		fail string
	}{
		{name: "four bytes are an IPv4 address", addr: four, in: FamilyIPv4, want: "10.0.0.1"},
		{name: "of sixteen, IPv4 takes the first four",
			addr: wireAddr{10, 0, 0, 1, 9, 15: 0}, in: FamilyIPv4,
			want: "10.0.0.1"},
		{name: "three bytes are none", addr: wireAddr{1, 2, 3}, in: FamilyIPv4,
			fail: "has 3 bytes"},
		{name: "no bytes are none", in: FamilyIPv4, fail: "has 0 bytes"},
		{name: "four bytes are no IPv6 address", addr: four, in: FamilyIPv6, fail: "has 4 bytes"},
		{name: "other families have none", addr: four, in: 7, fail: "an address of family 7"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := tt.addr.in(tt.in)
			if tt.fail != "" {
				require.ErrorIs(t, err, rawnl.ErrMalformed)
				require.ErrorContains(t, err, tt.fail)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tt.want, got.String())
		})
	}
}

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
		b.Attr(11, nil) // IPVS_STATS_ATTR_PAD
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

func TestTimeouts(t *testing.T) {
	t.Parallel()
	LittleEndian(t)
	for _, tt := range []struct {
		name     string
		timeouts Timeouts
		want     string
	}{
		{"all of them", Timeouts{TCP: 15 * time.Minute, TCPFin: 2 * time.Minute,
			UDP: 5 * time.Minute},
			"0800 0400 84030000 0800 0500 78000000 0800 0600 2c010000"},
		{"those that are zero are left out", Timeouts{UDP: time.Second}, "0800 0600 01000000"},
		{"none", Timeouts{}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			require.NoError(t, tt.timeouts.Validate())
			b := Attrs(func(b *rawnl.Batch) { PutTimeouts(b, tt.timeouts) })
			require.Equal(t, len(Unhex(t, tt.want)), len(b))
			require.Equal(t, string(Unhex(t, tt.want)), string(b))
			back := ok(ParseTimeouts(b))(t)
			require.Equal(t, tt.timeouts, back)
		})
	}
}

func TestTimeoutsThatTheKernelCannotHaveAreRefused(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		timeouts Timeouts
		want     string
	}{
		{Timeouts{TCP: -time.Second}, "TCP: -1s: want whole seconds, at most 2147483647"},
		{Timeouts{TCPFin: time.Millisecond}, "TCPFin: 1ms: want whole seconds"},
		{Timeouts{UDP: 1 << 31 * time.Second}, "UDP: "},
	} {
		require.ErrorContains(t, tt.timeouts.Validate(), tt.want)
	}
}

func FuzzParseSettings(f *testing.F) {
	f.Add(Attrs(func(b *rawnl.Batch) {
		PutTimeouts(b, Timeouts{TCP: time.Second, TCPFin: time.Second, UDP: time.Second})
	}))
	f.Add([]byte("\x08\x00\x01\x00\x01\x02\x01\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if timeouts, err := ParseTimeouts(data); err == nil {
			back := ok(ParseTimeouts(Attrs(func(b *rawnl.Batch) { PutTimeouts(b, timeouts) })))(t)
			require.Equal(t, timeouts, back)
		}
	})
}

func TestEnumsHaveTheKernelsNumbersAndNames(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		value  fmt.Stringer
		number uint64
		want   string
	}{
		{CommandNewService, 1, "new service"},
		{CommandGetDestination, 8, "get destination"},
		{CommandSetConfig, 12, "set config"},
		{Command(99), 99, "command 99"},
		{FamilyIPv4, 2, "IPv4"},
		{FamilyIPv6, 10, "IPv6"},
		{Family(1), 1, "family 1"},
		{TCP, 6, "TCP"},
		{UDP, 17, "UDP"},
		{SCTP, 132, "SCTP"},
		{Protocol(50), 50, "protocol 50"},
		{ForwardMasquerade, 0, "masquerade"},
		{ForwardBypass, 4, "bypass"},
		{ForwardingMethod(0xffffffff), 0xffffffff, "forwarding method 4294967295"},
	} {
		require.Equal(t, tt.want, tt.value.String())
		require.Equal(t, fmt.Sprint(tt.number), fmt.Sprintf("%d", tt.value), tt.want)
	}
}

// The numbers of include/uapi/linux/ip_vs.h. The test checks the last one of each list.
func TestAttributesHaveTheKernelsNumbers(t *testing.T) {
	t.Parallel()
	require.Equal(t, uint16(6), CmdAttrTimeoutUDP)
	require.Equal(t, uint16(11), SvcAttrPEName)
	require.Equal(t, uint16(12), SvcAttrStats64)
	require.Equal(t, uint16(11), DestAttrFamily)
	require.Equal(t, uint16(15), DestAttrTunnelFlags)
	require.Equal(t, uint16(5), StatsAttrOutBytes)
}
