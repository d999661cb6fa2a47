package iptables

import (
	"bytes"
	"encoding/binary"
	"net/netip"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

// The matches and targets of x_tables that the rules use, and the layout of their structs. Each
// encoder stands beside its decoder. The kernel wants the size of a struct rounded up to the
// alignment of a 64-bit number (XT_ALIGN, include/uapi/linux/netfilter/x_tables.h). Numbers are in
// the byte order of the machine unless stated otherwise.

var (
	xtAddrtype   = nft.Extension{Name: "addrtype", Revision: 1}
	xtConntrack  = nft.Extension{Name: "conntrack", Revision: 3}
	xtStatistic  = nft.Extension{Name: "statistic", Revision: 0}
	xtRecent     = nft.Extension{Name: "recent", Revision: 1}
	xtSCTP       = nft.Extension{Name: "sctp", Revision: 0}
	xtDNAT       = nft.Extension{Name: "DNAT", Revision: 2}
	xtMasquerade = nft.Extension{Name: "MASQUERADE", Revision: 0}
	xtMARK       = nft.Extension{Name: "MARK", Revision: 2}
	xtREJECT     = nft.Extension{Name: "REJECT", Revision: 0}

	// These are only read. Our comments are user data of the rule. iptables before 1.8.8 writes the
	// others.
	xtComment = nft.Extension{Name: "comment", Revision: 0}
	xtTCP     = nft.Extension{Name: "tcp", Revision: 0}
	xtUDP     = nft.Extension{Name: "udp", Revision: 0}
	xtMark    = nft.Extension{Name: "mark", Revision: 1}
)

// decodeInfo reads the struct of an extension in a rule of a family. It returns false if the rules
// of this package have no such struct.
type decodeInfo func(info []byte, f *nft.Family, r *rule) bool

var (
	matches = map[nft.Extension]decodeInfo{xtAddrtype: decodeAddrtype, xtConntrack: decodeConntrack,
		xtStatistic: decodeStatistic, xtBPF: decodeBPF, xtRecent: decodeRecent, xtSCTP: decodeSCTP,
		xtTCP: decodeTCP, xtUDP: decodeUDP, xtComment: decodeComment, xtMark: decodeMark}
	targets = map[nft.Extension]decodeInfo{xtDNAT: decodeDNAT, xtMasquerade: decodeMasquerade,
		xtMARK: decodeMARK, xtREJECT: decodeREJECT}
)

var native = binary.NativeEndian

// Sizes of the structs, rounded up.
const (
	sizeAddrtype    = 8   // struct xt_addrtype_info_v1
	sizeConntrack   = 168 // struct xt_conntrack_mtinfo3
	sizeStatistic   = 24  // struct xt_statistic_info
	sizeRecent      = 232 // struct xt_recent_mtinfo_v1
	sizeSCTP        = 296 // struct xt_sctp_info
	sizeComment     = 256 // struct xt_comment_info
	sizePorts       = 16  // struct xt_tcp; struct xt_udp has its ports at the same place
	sizeMark        = 16  // struct xt_mark_mtinfo1
	sizeDNAT        = 48  // struct nf_nat_range2
	sizeMasquerade  = 24  // struct nf_nat_ipv4_multi_range_compat
	sizeMasquerade6 = 40  // struct nf_nat_range
	sizeMARK        = 8   // struct xt_mark_tginfo2
	sizeREJECT      = 8   // struct ipt_reject_info, struct ip6t_reject_info
	sizeLargest     = sizeBPF
)

// addrtypeLocal is XT_ADDRTYPE_LOCAL, 1 << RTN_LOCAL.
const addrtypeLocal = 1 << 2

// encodeAddrtype makes a struct xt_addrtype_info_v1: u16 source, u16 dest, u32 flags.
func encodeAddrtype(p []byte, r *rule) []byte {
	p = zeroed(p, sizeAddrtype)
	if r.srcLocal {
		native.PutUint16(p, addrtypeLocal)
	}
	if r.dstLocal {
		native.PutUint16(p[2:], addrtypeLocal)
	}
	return p
}

func decodeAddrtype(p []byte, _ *nft.Family, r *rule) bool {
	if len(p) != sizeAddrtype || native.Uint32(p[4:]) != 0 {
		return false
	}
	src, dst := native.Uint16(p), native.Uint16(p[2:])
	r.srcLocal = r.srcLocal || src == addrtypeLocal
	r.dstLocal = r.dstLocal || dst == addrtypeLocal
	return (src == 0 || src == addrtypeLocal) && (dst == 0 || dst == addrtypeLocal) && src|dst != 0
}

// conntrackState is XT_CONNTRACK_STATE: only the state is matched.
const conntrackState = 1 << 0

// Offsets in struct xt_conntrack_mtinfo3, after 8 addresses, 2 times, the protocol and 4 ports.
const (
	conntrackFlags  = 146
	conntrackInvert = 148
	conntrackStates = 150
)

func encodeConntrack(p []byte, m stateMatch) []byte {
	p = zeroed(p, sizeConntrack)
	native.PutUint16(p[conntrackFlags:], conntrackState)
	if m.not {
		native.PutUint16(p[conntrackInvert:], conntrackState)
	}
	native.PutUint16(p[conntrackStates:], uint16(m.states))
	return p
}

func decodeConntrack(p []byte, _ *nft.Family, r *rule) bool {
	if len(p) != sizeConntrack || native.Uint16(p[conntrackFlags:]) != conntrackState ||
		r.state.states != 0 {
		return false
	}
	invert := native.Uint16(p[conntrackInvert:])
	r.state = stateMatch{states: ctState(native.Uint16(p[conntrackStates:])),
		not: invert&conntrackState != 0}
	return invert&^conntrackState == 0 && r.state.states != 0
}

const (
	statisticRandom = 0 // XT_STATISTIC_MODE_RANDOM
	statisticNth    = 1 // XT_STATISTIC_MODE_NTH
)

// encodeStatistic makes a struct xt_statistic_info: u16 mode, u16 flags; for random u32
// probability, for nth u32 every, u32 packet, u32 count, where every is one less than the user's
// number; and a pointer for the kernel.
func encodeStatistic(p []byte, m statMatch) []byte {
	p = zeroed(p, sizeStatistic)
	if m.kind == statRandom {
		native.PutUint16(p, statisticRandom)
		native.PutUint32(p[4:], m.prob)
		// has no effect, but iptables always computes the count
		native.PutUint32(p[12:], m.prob)
		return p
	}
	native.PutUint16(p, statisticNth)
	native.PutUint32(p[4:], m.every-1)
	native.PutUint32(p[8:], m.packet)
	// iptables sets the counter so that the first packet is number 0 (libxt_statistic.c).
	native.PutUint32(p[12:], m.every-1-m.packet)
	return p
}

func decodeStatistic(p []byte, _ *nft.Family, r *rule) bool {
	// recent changes the list that it tests, so the order matters: statistic comes first in our
	// rules.
	if len(p) != sizeStatistic || native.Uint16(p[2:]) != 0 || r.stat.kind != statNone ||
		r.recent.kind != recentNone {
		return false
	}
	switch native.Uint16(p) {
	case statisticRandom:
		r.stat = statMatch{kind: statRandom, prob: native.Uint32(p[4:])}
		return true
	case statisticNth:
		r.stat = statMatch{kind: statNth, every: native.Uint32(p[4:]) + 1,
			packet: native.Uint32(p[8:])}
		return true
	}
	return false
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
	recentHits  = 4
	recentCheck = 8
	recentName  = 10
	recentSide  = recentName + recentNameLen
	recentMask  = 212
)

func encodeRecent(p []byte, f *nft.Family, m recentMatch) []byte {
	p = zeroed(p, sizeRecent)
	p[recentCheck] = recentFlagSet
	if m.kind == recentUpdate {
		native.PutUint32(p, m.seconds)
		p[recentCheck] = recentFlagUpdate | recentFlagReap
	}
	copy(p[recentName:recentSide-1], m.name)
	copy(p[recentMask:], m.mask(f.AddrLen*8))
	return p
}

func decodeRecent(p []byte, f *nft.Family, r *rule) bool {
	if len(p) != sizeRecent || r.recent.kind != recentNone || native.Uint32(p[recentHits:]) != 0 {
		return false
	}
	r.recent = recentMatch{name: cString(p[recentName:recentSide])}
	seconds := native.Uint32(p)
	switch {
	case p[recentCheck] == recentFlagSet && seconds == 0:
		r.recent.kind = recentSet
	case p[recentCheck] == recentFlagUpdate|recentFlagReap && seconds != 0:
		r.recent.kind, r.recent.seconds = recentUpdate, seconds
	default:
		return false
	}
	if p[recentCheck+1] != 0 || p[recentSide] != 0 { // inverted, or matching the destination
		return false
	}
	mask := p[recentMask : recentMask+f.AddrLen]
	n, all := 0, f.AddrLen*8
	for n < all && mask[n/8]&(0x80>>(n%8)) != 0 {
		n++
	}
	if n < all {
		r.recent.bits = uint8(n)
	}
	return n > 0 && bytes.Equal(mask, r.recent.mask(all))
}

const sctpDestPorts = 1 << 1 // XT_SCTP_DEST_PORTS

// Offsets in struct xt_sctp_info: u16 dpts[2], u16 spts[2], u32 chunkmap[64], u32 chunk_match_type,
// 4 times 3 bytes of chunk flags, int flag_count, u32 flags, u32 invflags.
const (
	sctpChunkFlags = 268
	sctpFlags      = 284
	sctpInvert     = 288
)

func encodeSCTP(p []byte, ports portRange) []byte {
	p = zeroed(p, sizeSCTP)
	native.PutUint16(p, ports.from)
	native.PutUint16(p[2:], ports.to)
	for i := range 4 { // no chunk type, as iptables initialises it
		p[sctpChunkFlags+3*i] = 0xff
	}
	native.PutUint32(p[sctpFlags:], sctpDestPorts)
	return p
}

func decodeSCTP(p []byte, _ *nft.Family, r *rule) bool {
	if r.proto != servicemodel.SCTP || len(p) != sizeSCTP ||
		native.Uint32(p[sctpFlags:]) != sctpDestPorts || native.Uint32(p[sctpInvert:]) != 0 {
		return false
	}
	return r.setPorts(native.Uint16(p), native.Uint16(p[2:]))
}

func decodeTCP(p []byte, _ *nft.Family, r *rule) bool {
	return r.proto == servicemodel.TCP && decodePorts(p, r)
}

func decodeUDP(p []byte, _ *nft.Family, r *rule) bool {
	return r.proto == servicemodel.UDP && decodePorts(p, r)
}

// decodePorts reads the common part of struct xt_tcp and struct xt_udp: u16 spts[2], u16 dpts[2];
// then of TCP u8 option, u8 flg_mask, u8 flg_cmp, u8 invflags, and of UDP u8 invflags.
func decodePorts(p []byte, r *rule) bool {
	if len(p) != sizePorts || native.Uint16(p) != 0 || native.Uint16(p[2:]) != 0xffff ||
		native.Uint32(p[8:]) != 0 {
		return false
	}
	from, to := native.Uint16(p[4:]), native.Uint16(p[6:])
	return from == 0 && to == 0xffff || r.setPorts(from, to)
}

// setPorts sets the destination ports, for every match that has some.
func (r *rule) setPorts(from, to uint16) bool {
	if !r.ports.any() || from > to || to == 0 {
		return false
	}
	r.ports = portRange{from, to}
	return true
}

func decodeComment(p []byte, _ *nft.Family, r *rule) bool {
	if len(p) != sizeComment || r.comment != "" {
		return false
	}
	r.comment = cString(p)
	return true
}

// decodeMark reads a struct xt_mark_mtinfo1: u32 mark, u32 mask, u8 invert.
func decodeMark(p []byte, _ *nft.Family, r *rule) bool {
	if len(p) != sizeMark || r.mark.mask != 0 {
		return false
	}
	r.mark = markMatch{value: native.Uint32(p), mask: native.Uint32(p[4:]), not: p[8] != 0}
	return r.mark.mask != 0
}

const (
	natMapIPs      = 1 << 0 // NF_NAT_RANGE_MAP_IPS
	natProto       = 1 << 1 // NF_NAT_RANGE_PROTO_SPECIFIED
	natFullyRandom = 1 << 4 // NF_NAT_RANGE_PROTO_RANDOM_FULLY
)

// encodeDNAT makes a struct nf_nat_range2: u32 flags, union nf_inet_addr min_addr and max_addr,
// then in network byte order u16 min_proto, max_proto and base_proto.
func encodeDNAT(p []byte, to netip.AddrPort) []byte {
	p = zeroed(p, sizeDNAT)
	native.PutUint32(p, natMapIPs|natProto)
	copy(p[4:], to.Addr().AsSlice())
	copy(p[20:], to.Addr().AsSlice())
	binary.BigEndian.PutUint16(p[36:], to.Port())
	binary.BigEndian.PutUint16(p[38:], to.Port())
	return p
}

func decodeDNAT(p []byte, f *nft.Family, r *rule) bool {
	if len(p) != sizeDNAT || native.Uint32(p) != natMapIPs|natProto {
		return false
	}
	n := f.AddrLen
	addr, _ := netip.AddrFromSlice(p[4 : 4+n])
	last, _ := netip.AddrFromSlice(p[20 : 20+n])
	port := binary.BigEndian.Uint16(p[36:])
	r.target, r.to = targetDNAT, netip.AddrPortFrom(addr, port)
	return addr == last && binary.BigEndian.Uint16(p[38:]) == port &&
		binary.BigEndian.Uint16(p[40:]) == 0
}

// encodeMasquerade makes a struct nf_nat_ipv4_multi_range_compat: u32 rangesize, u32 flags,
// addresses and ports; for IPv6 a struct nf_nat_range: u32 flags, addresses and ports.
func encodeMasquerade(p []byte, f *nft.Family) []byte {
	if f == nft.IPv6 {
		p = zeroed(p, sizeMasquerade6)
		native.PutUint32(p, natFullyRandom)
		return p
	}
	p = zeroed(p, sizeMasquerade)
	native.PutUint32(p, 1)
	native.PutUint32(p[4:], natFullyRandom)
	return p
}

func decodeMasquerade(p []byte, f *nft.Family, r *rule) bool {
	r.target = targetMasquerade
	if f == nft.IPv6 {
		return len(p) == sizeMasquerade6 && native.Uint32(p) == natFullyRandom
	}
	return len(p) == sizeMasquerade && native.Uint32(p) == 1 &&
		native.Uint32(p[4:]) == natFullyRandom
}

// encodeMARK makes a struct xt_mark_tginfo2: u32 mark, u32 mask.
func encodeMARK(p []byte, s markSet) []byte {
	p = zeroed(p, sizeMARK)
	native.PutUint32(p, s.value)
	native.PutUint32(p[4:], s.mask)
	return p
}

func decodeMARK(p []byte, _ *nft.Family, r *rule) bool {
	if len(p) != sizeMARK {
		return false
	}
	r.target, r.set = targetMark, markSet{native.Uint32(p), native.Uint32(p[4:])}
	return true
}

// rejectCode is the enum in the struct of REJECT: IPT_ICMP_PORT_UNREACHABLE or
// IP6T_ICMP6_PORT_UNREACH.
func rejectCode(f *nft.Family) uint32 {
	if f == nft.IPv6 {
		return 4
	}
	return 3
}

func encodeREJECT(p []byte, f *nft.Family) []byte {
	p = zeroed(p, sizeREJECT)
	native.PutUint32(p, rejectCode(f))
	return p
}

func decodeREJECT(p []byte, f *nft.Family, r *rule) bool {
	r.target = targetReject
	return len(p) == sizeREJECT && native.Uint32(p) == rejectCode(f)
}

// zeroed returns n zero bytes, in the memory of p.
func zeroed(p []byte, n int) []byte {
	p = p[:n]
	clear(p)
	return p
}
