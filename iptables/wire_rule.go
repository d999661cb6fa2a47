package iptables

import (
	"encoding/binary"
	"net/netip"

	"github.com/kernlb/kernlb/servicemodel"
)

// Attributes of a rule (NFTA_RULE_*).
const (
	attrRuleTable       = 1
	attrRuleChain       = 2
	attrRuleHandle      = 3
	attrRuleExpressions = 4
	attrRuleCompat      = 5
	attrRulePosition    = 6
	attrRuleUserData    = 7
)

// udataComment is the type of the comment in a rule's user data (NFTNL_UDATA_RULE_COMMENT in
// libnftnl/udata.h). iptables reads it since 1.8.0 and shows it as "-m comment", nft shows it as
// the rule's comment; unlike that match it costs no packet anything.
const udataComment = 0

// maxComment is how long a comment can be: NFT_USERDATA_MAXLEN less type, length and the final NUL.
const maxComment = 253

// protocolOffset is where the IPv4 header has its protocol.
const protocolOffset = 9

// appendRule appends what a message says of a rule after its place: expressions, protocol, comment.
func (e *encoder) appendRule(r *rule) {
	b := e.batch
	list := b.Nest(attrRuleExpressions)
	e.appendRuleMatches(r)
	appendCounter(b)
	e.appendRuleTarget(r)
	b.End(list)
	// What checks a match or target learns from here which protocol the rule is about.
	if r.proto != 0 {
		m := b.Nest(attrRuleCompat)
		b.U32(1, uint32(r.proto)) // NFTA_RULE_COMPAT_PROTO
		b.U32(2, 0)               // NFTA_RULE_COMPAT_FLAGS
		b.End(m)
	}
	if r.comment != "" {
		ud := append(e.scratch[:0], udataComment, byte(len(r.comment)+1))
		ud = append(append(ud, r.comment...), 0)
		b.Attr(attrRuleUserData, ud)
	}
}

// appendRuleMatches puts what is cheap and rare first. iptables-save lists matches in this order,
// too.
func (e *encoder) appendRuleMatches(r *rule) {
	b := e.batch
	e.appendPrefix(r.dst, r.notDst, e.f.dstOffset)
	e.appendPrefix(r.src, r.notSrc, e.f.srcOffset)
	if r.in != "" {
		e.appendInterface(r)
	}
	if r.proto != 0 {
		// as iptables does since 1.8.10: the kernel reads it in line
		if e.f.model == servicemodel.IPv4 {
			appendPayload(b, baseNetwork, protocolOffset, 1)
		} else {
			appendMeta(b, metaL4Proto)
		}
		appendCmp(b, cmpEq, append(e.scratch[:0], byte(r.proto)))
	}
	if !r.ports.any() {
		e.appendPorts(r)
	}
	if r.mark.mask != 0 {
		appendMeta(b, metaMark)
		appendBitwise(b, native.AppendUint32(e.scratch[:0], r.mark.mask))
		appendCmp(b, eqOrNot(r.mark.not), native.AppendUint32(e.scratch[:0], r.mark.value))
	}
	if r.srcLocal || r.dstLocal {
		appendMatch(b, xtAddrtype, encodeAddrtype(e.scratch[:], r))
	}
	if r.state.states != 0 {
		appendMatch(b, xtConntrack, encodeConntrack(e.scratch[:], r.state))
	}
	if r.stat.kind != statNone {
		appendMatch(b, xtStatistic, encodeStatistic(e.scratch[:], r.stat))
	}
	if r.recent.kind != recentNone {
		appendMatch(b, xtRecent, encodeRecent(e.scratch[:], e.f.model, r.recent))
	}
}

func eqOrNot(not bool) uint32 {
	if not {
		return cmpNeq
	}
	return cmpEq
}

// appendPrefix matches an address as iptables-nft does: where the prefix ends at a byte, only the
// bytes it has are loaded.
func (e *encoder) appendPrefix(p netip.Prefix, not bool, offset uint32) {
	if !p.IsValid() {
		return
	}
	addr := p.Addr().AsSlice()
	n := len(addr)
	if p.Bits()%8 == 0 && p.Bits() > 0 {
		n = p.Bits() / 8
	}
	appendPayload(e.batch, baseNetwork, offset, uint32(n))
	if p.Bits() < n*8 {
		mask := zeroed(e.scratch[:], n)
		for i := range p.Bits() {
			mask[i/8] |= 0x80 >> (i % 8)
		}
		appendBitwise(e.batch, mask)
	}
	appendCmp(e.batch, eqOrNot(not), addr[:n])
}

// appendInterface matches the name with its NUL, or only its beginning.
func (e *encoder) appendInterface(r *rule) {
	name := append(e.scratch[:0], r.in...)
	if last := len(name) - 1; name[last] == '+' {
		name = name[:last]
	} else {
		name = append(name, 0)
	}
	appendMeta(e.batch, metaIIFName)
	appendCmp(e.batch, eqOrNot(r.notIn), name)
}

func (e *encoder) appendPorts(r *rule) {
	b := e.batch
	// iptables reads ports of TCP and UDP only from native expressions
	if r.proto == servicemodel.SCTP {
		appendMatch(b, xtSCTP, encodeSCTP(e.scratch[:], r.ports))
		return
	}
	appendPayload(b, baseTransport, 2, 2)
	from := binary.BigEndian.AppendUint16(e.scratch[:0], r.ports.from)
	to := binary.BigEndian.AppendUint16(e.scratch[2:2], r.ports.to)
	switch {
	case r.ports.from == r.ports.to:
		appendCmp(b, cmpEq, from)
	case r.ports.from == 0:
		appendCmp(b, cmpLte, to)
	default:
		appendRange(b, from, to)
	}
}

func (e *encoder) appendRuleTarget(r *rule) {
	b := e.batch
	switch r.target {
	case targetAccept:
		appendVerdict(b, verdictAccept, "")
	case targetDrop:
		appendVerdict(b, verdictDrop, "")
	case targetReturn:
		appendVerdict(b, verdictReturn, "")
	case targetJump:
		appendVerdict(b, verdictJump, r.chain)
	case targetGoto:
		appendVerdict(b, verdictGoto, r.chain)
	case targetReject:
		appendTarget(b, xtREJECT, encodeREJECT(e.scratch[:], e.f.model))
	case targetDNAT:
		appendTarget(b, xtDNAT, encodeDNAT(e.scratch[:], r.to))
	case targetMasquerade:
		appendTarget(b, xtMasquerade, encodeMasquerade(e.scratch[:], e.f.model))
	case targetMark:
		appendTarget(b, xtMARK, encodeMARK(e.scratch[:], r.set))
	}
}
