package conntrack

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFilterMatch(t *testing.T) {
	t.Parallel()
	base := flow(UDP, "10.0.0.1:4000", "10.96.0.10:53", "10.244.0.5:5353", "192.0.2.10:1024")
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
		{"its family", Filter{Family: IPv4}, base, true},
		{"another family", Filter{Family: IPv6}, base, false},
		{"its protocol", Filter{Protocol: UDP}, base, true},
		{"another protocol", Filter{Protocol: TCP}, base, false},
		{"its client", Filter{OriginalSrc: addr("10.0.0.1")}, base, true},
		{"another client", Filter{OriginalSrc: addr("10.0.0.2")}, base, false},
		{"its frontend", Filter{OriginalDst: addr("10.96.0.10"), OriginalDstPort: 53}, base, true},
		{"its frontend written as IPv6", Filter{OriginalDst: addr("::ffff:10.96.0.10")},
			base, true},
		{"another port", Filter{OriginalDst: addr("10.96.0.10"), OriginalDstPort: 54}, base, false},
		{"its endpoint", Filter{ReplySrc: addr("10.244.0.5"), ReplySrcPort: 5353}, base, true},
		{"another endpoint", Filter{ReplySrc: addr("10.244.0.6")}, base, false},
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
		{"a zone of one direction", Filter{Zone: ptr(uint16(7))}, zoned, true},
		{"not the default zone", Filter{Zone: new(uint16)}, zoned, false},
	} {
		require.Equal(t, tc.want, tc.filter.Match(&tc.flow), tc.name)
	}
}

func ptr[T any](v T) *T { return &v }

func TestFilterDumps(t *testing.T) {
	t.Parallel()
	vip, vip6, pod := addr("10.96.0.10"), addr("fd00::10"), addr("10.244.0.5")
	for _, tc := range []struct {
		name   string
		filter Filter
		want   []dumpRequest
	}{
		{"nothing to filter", Filter{}, []dumpRequest{{}}},
		{"a family", Filter{Family: IPv6}, []dumpRequest{{family: IPv6}}},
		{"a protocol needs a family: both in turn", Filter{Protocol: UDP},
			[]dumpRequest{{family: IPv4, protocol: UDP}, {family: IPv6, protocol: UDP}}},
		{"an IPv6 address is a family to the kernel", Filter{OriginalDst: vip6},
			[]dumpRequest{{family: IPv6}}},
		{"an IPv6 frontend is a port", Filter{Protocol: UDP, OriginalDst: vip6,
			OriginalDstPort: 53},
			[]dumpRequest{{family: IPv6, protocol: UDP, dstPort: 53}}},
		{"an address has a family", Filter{OriginalDst: vip},
			[]dumpRequest{{family: IPv4, dst: vip}}},
		{"a frontend", Filter{Protocol: UDP, OriginalDst: vip, OriginalDstPort: 53},
			[]dumpRequest{{family: IPv4, protocol: UDP, dst: vip, dstPort: 53}}},
		{"the kernel does not compare SCTP ports", Filter{Protocol: SCTP, OriginalDst: vip,
			OriginalDstPort: 53},
			[]dumpRequest{{family: IPv4, protocol: SCTP, dst: vip}}},
		{"nor ports without a protocol", Filter{OriginalDst: vip, OriginalDstPort: 53},
			[]dumpRequest{{family: IPv4, dst: vip}}},
		{"an endpoint", Filter{Protocol: TCP, ReplySrc: pod, ReplySrcPort: 80},
			[]dumpRequest{{family: IPv4, protocol: TCP, src: pod, srcPort: 80, reply: true}}},
		{"never both directions", Filter{Protocol: TCP, OriginalDst: vip, ReplySrc: pod},
			[]dumpRequest{{family: IPv4, protocol: TCP, dst: vip}}},
		{"status, mark and zone", Filter{Status: StatusAssured, Mark: 1, Zone: ptr(uint16(3))},
			[]dumpRequest{{
				status: StatusAssured, statusMask: StatusAssured, mark: 1, markMask: 0xffffffff,
				zone: ptr(uint16(3)),
			}}},
	} {
		got, err := tc.filter.dumps()
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
		{"Family: family 7 is not a family", Filter{Family: 7}},
		{"OriginalDst: 10.0.0.1 is not an address of ipv6",
			Filter{Family: IPv6, OriginalDst: addr("10.0.0.1")}},
		{"ReplySrc: fd00::1 is not an address of ipv4", Filter{OriginalSrc: addr("10.0.0.1"),
			ReplySrc: addr("fd00::1")}},
		{"OriginalSrc: fe80::1%eth0 has a zone", Filter{OriginalSrc: addr("fe80::1%eth0")}},
	} {
		_, err := tc.filter.dumps()
		require.ErrorIs(t, err, ErrBadFilter)
		require.ErrorContains(t, err, tc.want)
	}
}

// The kernel may only drop what the filter would drop, too.
func TestDumpRequestsLoseNothing(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 1))
	for range 5000 {
		f, fl := randomFilter(r), randomFlow(r)
		requests, err := f.dumps()
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
func kernelMatch(d dumpRequest, f *Flow) bool {
	tuple := f.Original
	if d.reply {
		tuple = f.Reply
	}
	ports := f.Protocol == TCP || f.Protocol == UDP
	return (d.family == AnyFamily || d.family == f.Family()) &&
		(d.zone == nil || *d.zone == f.Zone()) &&
		(!d.src.IsValid() || d.src == tuple.Src.Addr()) &&
		(!d.dst.IsValid() || d.dst == tuple.Dst.Addr()) &&
		(d.protocol == 0 || d.protocol == f.Protocol) &&
		(!ports || d.srcPort == 0 || d.srcPort == tuple.Src.Port()) &&
		(!ports || d.dstPort == 0 || d.dstPort == tuple.Dst.Port()) &&
		f.Mark&d.markMask == d.mark && f.Status&d.statusMask == d.status
}

func randomFilter(r *rand.Rand) Filter {
	f := Filter{
		Family:   pick(r, AnyFamily, AnyFamily, IPv4, IPv6),
		Protocol: pick(r, 0, 0, TCP, UDP, SCTP),
		Status:   pick(r, 0, 0, StatusAssured), StatusMask: pick(r, 0, 0, StatusAssured,
			StatusDstNAT),
		Mark: pick(r, uint32(0), 0, 1), MarkMask: pick(r, uint32(0), 0, 1, 2),
		OriginalDstPort: pick(r, uint16(0), 53), ReplySrcPort: pick(r, uint16(0), 53),
	}
	for _, a := range []*netip.Addr{&f.OriginalSrc, &f.OriginalDst, &f.ReplySrc} {
		*a = pick(r, netip.Addr{}, netip.Addr{}, addr("10.0.0.1"), addr("10.0.0.2"),
			addr("fd00::1"))
	}
	if r.IntN(4) == 0 {
		f.Zone = ptr(uint16(r.IntN(2)))
	}
	return f
}

func randomFlow(r *rand.Rand) Flow {
	v4, v6 := []string{"10.0.0.1", "10.0.0.2"}, []string{"fd00::1", "fd00::2"}
	from := pick(r, v4, v6)
	end := func() netip.AddrPort {
		return netip.AddrPortFrom(addr(pick(r, from...)), pick(r, uint16(53), 54))
	}
	zone := uint16(r.IntN(2))
	return Flow{
		Protocol: pick(r, TCP, UDP, SCTP),
		Original: Tuple{Src: end(), Dst: end(), Zone: zone},
		Reply:    Tuple{Src: end(), Dst: end(), Zone: zone},
		Status:   pick(r, 0, StatusAssured, StatusAssured|StatusDstNAT),
		Mark:     uint32(r.IntN(4)),
	}
}

func pick[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

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
		require.Equal(t, c.want, chooseScan(c.flows, c.narrow), "%d flows, %d questions", c.flows,
			c.narrow)
	}
}
