package conntrack_test

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	. "github.com/kernlb/kernlb/conntrack"
	. "github.com/kernlb/kernlb/internal/test/cttest"
)

func TestFilterMatch(t *testing.T) {
	t.Parallel()
	base := NewFlow(UDP, "10.0.0.1:4000", "10.96.0.10:53", "10.244.0.5:5353", "192.0.2.10:1024")
	base.Status = StatusSeenReply | StatusConfirmed | StatusDstNAT
	base.Mark = 0x4001
	zoned := base
	zoned.Reply.Zone = 7

	for _, tc := range []struct {
		name   string
		filter Filter
		flow   Flow
		want   bool
	}{
		{"the zero filter wants everything", Filter{}, base, true},
		{"an address of another family", Filter{ReplySrc: Addr("fd00::5")}, base, false},
		{"its protocol", Filter{Protocol: UDP}, base, true},
		{"another protocol", Filter{Protocol: TCP}, base, false},
		{"its client", Filter{OriginalSrc: Addr("10.0.0.1")}, base, true},
		{"another client", Filter{OriginalSrc: Addr("10.0.0.2")}, base, false},
		{"its frontend", Filter{OriginalDst: Addr("10.96.0.10"), OriginalDstPort: 53}, base, true},
		{"its frontend written as IPv6", Filter{OriginalDst: Addr("::ffff:10.96.0.10")},
			base, true},
		{"another port", Filter{OriginalDst: Addr("10.96.0.10"), OriginalDstPort: 54}, base, false},
		{"its endpoint", Filter{ReplySrc: Addr("10.244.0.5"), ReplySrcPort: 5353}, base, true},
		{"another endpoint", Filter{ReplySrc: Addr("10.244.0.6")}, base, false},
		{"another endpoint port", Filter{ReplySrcPort: 53}, base, false},
		{"a status bit it has", Filter{Status: StatusDstNAT}, base, true},
		{"status bits of which it has one", Filter{Status: StatusDstNAT | StatusAssured}, base,
			false},
		{"a status bit that must be clear", Filter{StatusMask: StatusAssured}, base, true},
		{"a status bit that must be clear and is not", Filter{StatusMask: StatusSeenReply}, base,
			false},
		{"a status bit outside the mask", Filter{Status: StatusAssured | StatusDstNAT,
			StatusMask: StatusDstNAT}, base, true},
		{"its mark", Filter{Mark: 0x4001}, base, true},
		{"a part of its mark", Filter{Mark: 0x4000, MarkMask: 0x4000}, base, true},
		{"a mark of zero in some bits", Filter{MarkMask: 0x8000}, base, true},
		{"another mark", Filter{Mark: 0x4000}, base, false},
		{"the default zone", Filter{Zone: new(uint16)}, base, true},
		{"a zone of one direction", Filter{Zone: new(uint16(7))}, zoned, true},
		{"not the default zone", Filter{Zone: new(uint16)}, zoned, false},
	} {
		require.Equal(t, tc.want, tc.filter.Match(&tc.flow), tc.name)
	}
}

func TestFilterDumps(t *testing.T) {
	t.Parallel()
	vip, vip6, pod := Addr("10.96.0.10"), Addr("fd00::10"), Addr("10.244.0.5")
	for _, tc := range []struct {
		name   string
		filter Filter
		want   []DumpRequest
	}{
		{"nothing to filter", Filter{}, []DumpRequest{{}}},
		{"a protocol needs a family: both in turn", Filter{Protocol: UDP},
			[]DumpRequest{{Family: IPv4, Protocol: UDP}, {Family: IPv6, Protocol: UDP}}},
		{"an IPv6 address is a family to the kernel", Filter{OriginalDst: vip6},
			[]DumpRequest{{Family: IPv6}}},
		{"an IPv6 frontend is a port", Filter{Protocol: UDP, OriginalDst: vip6,
			OriginalDstPort: 53},
			[]DumpRequest{{Family: IPv6, Protocol: UDP, DstPort: 53}}},
		{"an address has a family", Filter{OriginalDst: vip},
			[]DumpRequest{{Family: IPv4, Dst: vip}}},
		{"a frontend", Filter{Protocol: UDP, OriginalDst: vip, OriginalDstPort: 53},
			[]DumpRequest{{Family: IPv4, Protocol: UDP, Dst: vip, DstPort: 53}}},
		{"the kernel does not compare SCTP ports", Filter{Protocol: SCTP, OriginalDst: vip,
			OriginalDstPort: 53},
			[]DumpRequest{{Family: IPv4, Protocol: SCTP, Dst: vip}}},
		{"nor ports without a protocol", Filter{OriginalDst: vip, OriginalDstPort: 53},
			[]DumpRequest{{Family: IPv4, Dst: vip}}},
		{"an endpoint", Filter{Protocol: TCP, ReplySrc: pod, ReplySrcPort: 80},
			[]DumpRequest{{Family: IPv4, Protocol: TCP, Src: pod, SrcPort: 80, Reply: true}}},
		{"never both directions", Filter{Protocol: TCP, OriginalDst: vip, ReplySrc: pod},
			[]DumpRequest{{Family: IPv4, Protocol: TCP, Dst: vip}}},
		{"status, mark and zone", Filter{Status: StatusAssured, Mark: 1, Zone: new(uint16(3))},
			[]DumpRequest{{
				Status: StatusAssured, StatusMask: StatusAssured, Mark: 1, MarkMask: 0xffffffff,
				Zone: new(uint16(3)),
			}}},
	} {
		got, err := tc.filter.Dumps()
		require.NoError(t, err, tc.name)
		require.Equal(t, tc.want, got, tc.name)
	}
}

func TestFilterThatContradictsItself(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		want   string
		filter Filter
	}{
		{"OriginalDst: 10.0.0.1 is not an address of ipv6",
			Filter{OriginalSrc: Addr("fd00::1"), OriginalDst: Addr("10.0.0.1")}},
		{"ReplySrc: fd00::1 is not an address of ipv4", Filter{OriginalSrc: Addr("10.0.0.1"),
			ReplySrc: Addr("fd00::1")}},
		{"OriginalSrc: fe80::1%eth0 has a zone", Filter{OriginalSrc: Addr("fe80::1%eth0")}},
	} {
		_, err := tc.filter.Dumps()
		require.ErrorIs(t, err, ErrBadFilter)
		require.ErrorContains(t, err, tc.want)
	}
}

// The kernel may only leave out flows that the filter would leave out, too.
func TestDumpRequestsLoseNothing(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 1))
	for range 5000 {
		f, fl := randomFilter(r), RandomFlow(r)
		requests, err := f.Dumps()
		if err != nil {
			continue
		}
		answers := 0
		for _, d := range requests {
			if kernelMatch(d, &fl) {
				answers++
			}
		}

		require.LessOrEqual(t, answers, 1, "seed %d: requests overlap", seed)
		if f.Match(&fl) {
			require.Equal(t, 1, answers, "seed %d: filter %+v, flow %s", seed, f, fl)
		}
	}
}

// kernelMatch is ctnetlink_filter_match, in Go.
func kernelMatch(d DumpRequest, f *Flow) bool {
	tuple := f.Original
	if d.Reply {
		tuple = f.Reply
	}
	return (d.Family == AnyFamily || d.Family == f.Family()) &&
		(d.Zone == nil || *d.Zone == f.Zone()) &&
		(d.Protocol == 0 || d.Protocol == f.Protocol) && kernelMatchTuple(d, f.Protocol, tuple) &&
		f.Mark&d.MarkMask == d.Mark && f.Status&d.StatusMask == d.Status
}

// kernelMatchTuple is ctnetlink_filter_match_tuple, in Go.
func kernelMatchTuple(d DumpRequest, p Protocol, tuple Tuple) bool {
	ports := p == TCP || p == UDP
	return (!d.Src.IsValid() || d.Src == tuple.Src.Addr()) &&
		(!d.Dst.IsValid() || d.Dst == tuple.Dst.Addr()) &&
		(!ports || d.SrcPort == 0 || d.SrcPort == tuple.Src.Port()) &&
		(!ports || d.DstPort == 0 || d.DstPort == tuple.Dst.Port())
}

func randomFilter(r *rand.Rand) Filter {
	f := Filter{
		Protocol: Pick(r, 0, 0, TCP, UDP, SCTP),
		Status:   Pick(r, 0, 0, StatusAssured), StatusMask: Pick(r, 0, 0, StatusAssured,
			StatusDstNAT),
		Mark: Pick(r, uint32(0), 0, 1), MarkMask: Pick(r, uint32(0), 0, 1, 2),
		OriginalDstPort: Pick(r, uint16(0), 53), ReplySrcPort: Pick(r, uint16(0), 53),
	}
	for _, a := range []*netip.Addr{&f.OriginalSrc, &f.OriginalDst, &f.ReplySrc} {
		*a = Pick(r, netip.Addr{}, netip.Addr{}, Addr("10.0.0.1"), Addr("10.0.0.2"),
			Addr("fd00::1"))
	}

	if r.IntN(4) == 0 {
		f.Zone = new(uint16(r.IntN(2)))
	}
	return f
}

func TestTheQuestionFitsTheTable(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		flows, narrow int
		want          Scan
	}{
		{0, 1, ScanNarrow}, {0, 2, ScanAll}, {10_000, 2, ScanNarrow}, {10_000, 4, ScanAll},
		{100_000, 1, ScanNarrow}, {100_000, 4, ScanNarrow},
		{100_000, 5, ScanProtocol}, {50_000, 5, ScanProtocol}, {20_000, 5, ScanAll},
		{100_001, 1, ScanProtocol}, {1_000_000, 1, ScanProtocol},
	} {
		require.Equal(t, c.want, ChooseScan(c.flows, c.narrow), "%d flows, %d questions", c.flows,
			c.narrow)
	}
}
