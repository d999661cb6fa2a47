package iptables

import (
	"bytes"
	"encoding/binary"
	"net/netip"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

// The matches and targets of x_tables that the rules use, and the layout of their structs. The
// kernel requires the size of a struct rounded up to the alignment of a 64-bit number (XT_ALIGN,
// include/uapi/linux/netfilter/x_tables.h). Numbers are in the byte order of the machine unless
// stated otherwise.

// extension is a match or target with its struct.
type extension struct {
	nft.Extension
	target bool
	size   int // of the struct, rounded up
	size6  int // the same for IPv6; 0: as size
	// put fills in the struct for a rule of a family. It is nil for extensions that are only read.
	put func(p []byte, f *nft.Family, r *rule)
	// take reads the struct into the rule. It returns false if the rules of this package have no
	// such struct.
	take func(d *decoder, p []byte) bool
}

var (
	xtAddrtype = &extension{Extension: nft.Extension{Name: "addrtype", Revision: 1},
		size: 8, put: putAddrtype, take: (*decoder).addrtype} // struct xt_addrtype_info_v1
	xtConntrack = &extension{Extension: nft.Extension{Name: "conntrack", Revision: 3},
		size: 168, put: putConntrack, take: (*decoder).conntrack} // struct xt_conntrack_mtinfo3
	xtStatistic = &extension{Extension: nft.Extension{Name: "statistic", Revision: 0},
		size: 24, put: putStatistic, take: (*decoder).statistic} // struct xt_statistic_info
	xtBPF = &extension{Extension: nft.Extension{Name: "bpf", Revision: 1},
		size: sizeBPF, put: putBPF, take: (*decoder).bpf} // struct xt_bpf_info_v1
	xtRecent = &extension{Extension: nft.Extension{Name: "recent", Revision: 1},
		size: 232, put: putRecent, take: (*decoder).recent} // struct xt_recent_mtinfo_v1
	xtSCTP = &extension{Extension: nft.Extension{Name: "sctp", Revision: 0},
		size: 296, put: putSCTP, take: (*decoder).sctp} // struct xt_sctp_info
	xtDNAT = &extension{Extension: nft.Extension{Name: "DNAT", Revision: 2}, target: true,
		size: 48, put: putDNAT, take: (*decoder).dnat} // struct nf_nat_range2
	// struct nf_nat_ipv4_multi_range_compat, for IPv6 struct nf_nat_range
	xtMasquerade = &extension{Extension: nft.Extension{Name: "MASQUERADE", Revision: 0},
		target: true, size: 24, size6: 40, put: putMasquerade, take: (*decoder).masquerade}
	xtMARK = &extension{Extension: nft.Extension{Name: "MARK", Revision: 2}, target: true,
		size: 8, put: putMARK, take: (*decoder).setMark} // struct xt_mark_tginfo2
	xtREJECT = &extension{Extension: nft.Extension{Name: "REJECT", Revision: 0}, target: true,
		size: 8, put: putREJECT, take: (*decoder).reject} // struct ipt_reject_info and ip6t_

	// These are only read. Our comments are user data of the rule. iptables before 1.8.8 writes the
	// other three.
	xtComment = &extension{Extension: nft.Extension{Name: "comment", Revision: 0},
		size: 256, take: (*decoder).comment} // struct xt_comment_info
	xtTCP = &extension{Extension: nft.Extension{Name: "tcp", Revision: 0},
		size: 16, take: (*decoder).tcp} // struct xt_tcp
	xtUDP = &extension{Extension: nft.Extension{Name: "udp", Revision: 0},
		size: 16, take: (*decoder).udp} // struct xt_udp
	xtMark = &extension{Extension: nft.Extension{Name: "mark", Revision: 1},
		size: 16, take: (*decoder).matchMark} // struct xt_mark_mtinfo1
)

// extensions are all extensions.
var extensions = []*extension{xtConntrack, xtAddrtype, xtStatistic, xtDNAT, xtMasquerade, xtMARK,
	xtREJECT, xtRecent, xtSCTP, xtBPF, xtComment, xtTCP, xtUDP, xtMark}

// info builds the struct for a rule, in the memory of p.
func (x *extension) info(p []byte, f *nft.Family, r *rule) []byte {
	p = p[:x.sizeIn(f)]
	clear(p)
	x.put(p, f, r)
	return p
}

func (x *extension) sizeIn(f *nft.Family) int {
	if f == nft.IPv6 && x.size6 != 0 {
		return x.size6
	}
	return x.size
}

// extension reads the match or target that the attributes name.
func (d *decoder) extension(target bool) bool {
	name, revision := nft.CString(d.a[nft.AttrExtensionName]), d.a.u32(nft.AttrExtensionRev)
	for _, x := range extensions {
		if x.target == target && x.Revision == revision && x.Name == string(name) {
			info := d.a[nft.AttrExtensionInfo]
			return len(info) == x.sizeIn(d.f) && x.take(d, info)
		}
	}

	return false
}

// made reports whether put writes exactly p for the rule.
func (d *decoder) made(p []byte, put func([]byte, *nft.Family, *rule)) bool {
	again := d.scratch[:len(p)]
	clear(again)
	put(again, d.f, &d.r)
	return bytes.Equal(again, p)
}

var native = binary.NativeEndian

// sizeLargest is the size of the largest struct.
const sizeLargest = sizeBPF

// addrtypeLocal is XT_ADDRTYPE_LOCAL, 1 << RTN_LOCAL.
const addrtypeLocal = 1 << 2

// putAddrtype writes u16 source, u16 dest, u32 flags.
func putAddrtype(p []byte, _ *nft.Family, r *rule) {
	if r.srcLocal {
		native.PutUint16(p, addrtypeLocal)
	}
	if r.dstLocal {
		native.PutUint16(p[2:], addrtypeLocal)
	}
}

func (d *decoder) addrtype(p []byte) bool {
	first := !d.r.srcLocal && !d.r.dstLocal
	d.r.srcLocal, d.r.dstLocal = native.Uint16(p) != 0, native.Uint16(p[2:]) != 0
	return first && (d.r.srcLocal || d.r.dstLocal) && d.made(p, putAddrtype)
}

// conntrackState is XT_CONNTRACK_STATE: only the state is matched.
const conntrackState = 1 << 0

// Offsets in struct xt_conntrack_mtinfo3, after 8 addresses, 2 times, the protocol and 4 ports.
const (
	conntrackFlags  = 146
	conntrackInvert = 148
	conntrackStates = 150
)

func putConntrack(p []byte, _ *nft.Family, r *rule) {
	native.PutUint16(p[conntrackFlags:], conntrackState)
	if r.state.not {
		native.PutUint16(p[conntrackInvert:], conntrackState)
	}
	native.PutUint16(p[conntrackStates:], uint16(r.state.states))
}

// conntrack ignores the fields that conntrackFlags does not match.
func (d *decoder) conntrack(p []byte) bool {
	invert := native.Uint16(p[conntrackInvert:])
	if native.Uint16(p[conntrackFlags:]) != conntrackState || d.r.state.states != 0 {
		return false
	}
	d.r.state = stateMatch{states: ctState(native.Uint16(p[conntrackStates:])),
		not: invert == conntrackState}
	return invert&^conntrackState == 0 && d.r.state.states != 0
}

const (
	statisticRandom = 0 // XT_STATISTIC_MODE_RANDOM
	statisticNth    = 1 // XT_STATISTIC_MODE_NTH
)

// putStatistic writes u16 mode, u16 flags; for random u32 probability, for nth u32 every, u32
// packet, u32 count, where every is one less than the user's number; and a pointer for the kernel.
func putStatistic(p []byte, _ *nft.Family, r *rule) {
	if r.stat.kind == statRandom {
		native.PutUint16(p, statisticRandom)
		native.PutUint32(p[4:], r.stat.prob)

		// has no effect, but iptables always computes the count
		native.PutUint32(p[12:], r.stat.prob)
		return
	}

	native.PutUint16(p, statisticNth)
	native.PutUint32(p[4:], r.stat.every-1)
	native.PutUint32(p[8:], r.stat.packet)

	// iptables sets the counter so that the first packet is number 0 (libxt_statistic.c).
	native.PutUint32(p[12:], r.stat.every-1-r.stat.packet)
}

// statistic ignores the count, which only sets the kernel's starting point. recent changes the list
// that it tests, so the order matters: statistic comes first in our rules.
func (d *decoder) statistic(p []byte) bool {
	if native.Uint16(p[2:]) != 0 || d.r.stat.kind != statNone || d.r.recent.kind != recentNone {
		return false
	}
	switch native.Uint16(p) {
	case statisticRandom:
		d.r.stat = statMatch{kind: statRandom, prob: native.Uint32(p[4:])}
	case statisticNth:
		d.r.stat = statMatch{kind: statNth, every: native.Uint32(p[4:]) + 1,
			packet: native.Uint32(p[8:])}
	}

	return d.r.stat.kind != statNone
}

const (
	recentFlagSet    = 1 << 1 // XT_RECENT_SET
	recentFlagUpdate = 1 << 2 // XT_RECENT_UPDATE
	recentFlagReap   = 1 << 5 // XT_RECENT_REAP

	recentNameLen = 200 // XT_RECENT_NAME_LEN
)

// Offsets in struct xt_recent_mtinfo_v1: u32 seconds, u32 hit_count, u8 check_set, u8 invert, char
// name[200], u8 side, union nf_inet_addr mask.
const (
	recentCheck = 8
	recentName  = 10
	recentSide  = recentName + recentNameLen
	recentMask  = 212
)

func putRecent(p []byte, f *nft.Family, r *rule) {
	p[recentCheck] = recentFlagSet
	if r.recent.kind == recentUpdate {
		native.PutUint32(p, r.recent.seconds)
		p[recentCheck] = recentFlagUpdate | recentFlagReap
	}

	copy(p[recentName:recentSide-1], r.recent.name)
	copy(p[recentMask:], r.recent.mask(f.AddrLen*8))
}

// recent ignores the end of the mask, which IPv4 does not use: iptables fills it without --mask.
func (d *decoder) recent(p []byte) bool {
	if d.r.recent.kind != recentNone {
		return false
	}
	m := recentMatch{kind: recentSet, name: cString(p[recentName:recentSide])}
	if m.seconds = native.Uint32(p); m.seconds != 0 {
		m.kind = recentUpdate
	}
	end := recentMask + d.f.AddrLen
	n, ok := maskBits(p[recentMask:end])
	if n < d.f.AddrLen*8 {
		m.bits = uint8(n)
	}
	d.r.recent = m
	return ok && n > 0 && d.made(p[:end], putRecent)
}

const sctpDestPorts = 1 << 1 // XT_SCTP_DEST_PORTS

// Offsets in struct xt_sctp_info: u16 dpts[2], u16 spts[2], u32 chunkmap[64], u32 chunk_match_type,
// 4 times 3 bytes of chunk flags, int flag_count, u32 flags, u32 invflags.
const (
	sctpChunkFlags = 268
	sctpFlags      = 284
	sctpInvert     = 288
)

func putSCTP(p []byte, _ *nft.Family, r *rule) {
	native.PutUint16(p, r.ports.from)
	native.PutUint16(p[2:], r.ports.to)
	for i := range 4 { // no chunk type, as iptables initialises it
		p[sctpChunkFlags+3*i] = 0xff
	}
	native.PutUint32(p[sctpFlags:], sctpDestPorts)
}

func (d *decoder) sctp(p []byte) bool {
	return d.r.proto == servicemodel.SCTP && native.Uint32(p[sctpFlags:]) == sctpDestPorts &&
		native.Uint32(p[sctpInvert:]) == 0 && d.r.setPorts(native.Uint16(p), native.Uint16(p[2:]))
}

func (d *decoder) tcp(p []byte) bool { return d.r.proto == servicemodel.TCP && d.ports(p) }

func (d *decoder) udp(p []byte) bool { return d.r.proto == servicemodel.UDP && d.ports(p) }

// ports reads the common part of struct xt_tcp and struct xt_udp: u16 spts[2], u16 dpts[2]; then of
// TCP u8 option, u8 flg_mask, u8 flg_cmp, u8 invflags, and of UDP u8 invflags.
func (d *decoder) ports(p []byte) bool {
	if native.Uint16(p) != 0 || native.Uint16(p[2:]) != 0xffff || native.Uint32(p[8:]) != 0 {
		return false
	}
	from, to := native.Uint16(p[4:]), native.Uint16(p[6:])
	return from == 0 && to == 0xffff || d.r.setPorts(from, to)
}

// setPorts sets the destination ports, for every match that has ports.
func (r *rule) setPorts(from, to uint16) bool {
	if !r.ports.any() || from > to || to == 0 {
		return false
	}
	r.ports = portRange{from, to}
	return true
}

func (d *decoder) comment(p []byte) bool {
	first := d.r.comment == ""
	d.r.comment = cString(p)
	return first
}

// matchMark reads u32 mark, u32 mask, u8 invert.
func (d *decoder) matchMark(p []byte) bool {
	first := d.r.mark.mask == 0
	d.r.mark = markMatch{value: native.Uint32(p), mask: native.Uint32(p[4:]), not: p[8] != 0}
	return first && d.r.mark.mask != 0
}

const (
	natMapIPs      = 1 << 0 // NF_NAT_RANGE_MAP_IPS
	natProto       = 1 << 1 // NF_NAT_RANGE_PROTO_SPECIFIED
	natFullyRandom = 1 << 4 // NF_NAT_RANGE_PROTO_RANDOM_FULLY
	natOffset      = 1 << 5 // NF_NAT_RANGE_PROTO_OFFSET, since Linux 4.18
)

// putDNAT writes u32 flags, union nf_inet_addr min_addr and max_addr, then in network byte order
// u16 min_proto, max_proto and base_proto. Without natProto, the kernel never changes the port of a
// destination (nf_nat_l4proto_unique_tuple). With natOffset, base_proto becomes min_proto, and so
// on.
func putDNAT(p []byte, _ *nft.Family, r *rule) {
	flags := uint32(natMapIPs)
	if r.to.Port() != 0 {
		flags |= natProto
	}
	if !r.shift.any() {
		flags |= natOffset
	}
	native.PutUint32(p, flags)
	copy(p[4:], r.to.Addr().AsSlice())
	copy(p[20:], r.to.Addr().AsSlice())
	binary.BigEndian.PutUint16(p[36:], r.to.Port())
	binary.BigEndian.PutUint16(p[38:], r.lastTarget())
	binary.BigEndian.PutUint16(p[40:], r.shift.from)
}

// lastTarget returns the last port to which a rule with targetDNAT sends packets.
func (r *rule) lastTarget() uint16 { return r.to.Port() + (r.shift.to - r.shift.from) }

func (d *decoder) dnat(p []byte) bool {
	addr, _ := netip.AddrFromSlice(p[4 : 4+d.f.AddrLen])
	first, last := binary.BigEndian.Uint16(p[36:]), binary.BigEndian.Uint16(p[38:])
	d.r.target, d.r.to = targetDNAT, netip.AddrPortFrom(addr, first)
	if native.Uint32(p)&natOffset != 0 {
		base := binary.BigEndian.Uint16(p[40:])
		d.r.shift = portRange{base, base + (last - first)}
	}
	return d.made(p, putDNAT)
}

// putMasquerade writes u32 rangesize, u32 flags, addresses and ports; for IPv6 without rangesize.
func putMasquerade(p []byte, f *nft.Family, _ *rule) {
	if f == nft.IPv4 {
		native.PutUint32(p, 1)
		p = p[4:]
	}

	native.PutUint32(p, natFullyRandom)
}

func (d *decoder) masquerade(p []byte) bool {
	d.r.target = targetMasquerade
	return d.made(p, putMasquerade)
}

// putMARK writes u32 mark, u32 mask.
func putMARK(p []byte, _ *nft.Family, r *rule) {
	native.PutUint32(p, r.set.value)
	native.PutUint32(p[4:], r.set.mask)
}

func (d *decoder) setMark(p []byte) bool {
	d.r.target, d.r.set = targetMark, markSet{native.Uint32(p), native.Uint32(p[4:])}
	return true
}

// putREJECT writes the enum: IPT_ICMP_PORT_UNREACHABLE or IPT_TCP_RESET, or for IPv6
// IP6T_ICMP6_PORT_UNREACH or IP6T_TCP_RESET.
func putREJECT(p []byte, f *nft.Family, r *rule) {
	icmp, reset := uint32(3), uint32(7)
	if f == nft.IPv6 {
		icmp, reset = 4, 6
	}
	if r.target == targetReset {
		icmp = reset
	}
	native.PutUint32(p, icmp)
}

func (d *decoder) reject(p []byte) bool {
	d.r.target = targetReset
	if d.made(p, putREJECT) {
		return true
	}
	d.r.target = targetReject
	return d.made(p, putREJECT)
}
