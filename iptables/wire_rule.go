package iptables

import (
	"encoding/binary"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

// maxComment is the maximum length of a comment: NFT_USERDATA_MAXLEN less type, length and the
// final NUL.
const maxComment = 253

// protocolOffset is the offset of the protocol in the IPv4 header.
const protocolOffset = 9

// rule appends a message that puts a rule into a chain.
func (e *encoder) rule(id chainID, at nft.Place, handle uint64, r *rule) {
	e.rules++
	e.f = id.table.family()
	table := e.of(id)
	table.BeginRule(id.name, at, handle)
	e.appendMatches(r)
	nft.AppendCounter(e.batch)
	e.appendTarget(r)
	table.EndRule(uint8(r.proto), r.comment)
}

// appendMatches puts cheap matches that rarely succeed first. iptables-save lists matches in this
// order, too.
func (e *encoder) appendMatches(r *rule) {
	b := e.batch
	if r.dst.IsValid() {
		nft.AppendPrefix(b, e.f.DaddrOffset, eqOrNot(r.notDst), r.dst)
	}
	if r.src.IsValid() {
		nft.AppendPrefix(b, e.f.SaddrOffset, eqOrNot(r.notSrc), r.src)
	}
	if r.in != "" {
		e.appendInterface(r)
	}
	if r.proto != 0 {
		// like iptables since 1.8.10: the kernel evaluates this expression inline
		if e.f.Model == servicemodel.IPv4 {
			nft.AppendPayload(b, nft.Reg1, nft.NetworkHeader, protocolOffset, 1)
		} else {
			nft.AppendMeta(b, nft.Reg1, nft.MetaL4Proto)
		}
		nft.AppendCmp(b, nft.CmpEq, append(e.scratch[:0], byte(r.proto)))
	}
	if !r.ports.any() {
		e.appendPorts(r)
	}
	if r.mark.mask != 0 {
		nft.AppendMeta(b, nft.Reg1, nft.MetaMark)
		nft.AppendBitwise(b, native.AppendUint32(e.scratch[:0], r.mark.mask), nil)
		nft.AppendCmp(b, eqOrNot(r.mark.not), native.AppendUint32(e.scratch[:0], r.mark.value))
	}
	if r.srcLocal || r.dstLocal {
		xtAddrtype.AppendMatch(b, encodeAddrtype(e.scratch[:], r))
	}
	if r.state.states != 0 {
		xtConntrack.AppendMatch(b, encodeConntrack(e.scratch[:], r.state))
	}
	switch r.stat.kind {
	case statNone:
	case statHash:
		xtBPF.AppendMatch(b, encodeBPF(e.scratch[:], e.f, r.stat))
	default:
		xtStatistic.AppendMatch(b, encodeStatistic(e.scratch[:], r.stat))
	}
	if r.recent.kind != recentNone {
		xtRecent.AppendMatch(b, encodeRecent(e.scratch[:], e.f, r.recent))
	}
}

func eqOrNot(not bool) uint32 {
	if not {
		return nft.CmpNeq
	}
	return nft.CmpEq
}

// appendInterface matches the name with its NUL, or only its beginning.
func (e *encoder) appendInterface(r *rule) {
	name := append(e.scratch[:0], r.in...)
	if last := len(name) - 1; name[last] == '+' {
		name = name[:last]
	} else {
		name = append(name, 0)
	}
	nft.AppendMeta(e.batch, nft.Reg1, nft.MetaIIFName)
	nft.AppendCmp(e.batch, eqOrNot(r.notIn), name)
}

func (e *encoder) appendPorts(r *rule) {
	b := e.batch
	// iptables reads ports of TCP and UDP only from native expressions
	if r.proto == servicemodel.SCTP {
		xtSCTP.AppendMatch(b, encodeSCTP(e.scratch[:], r.ports))
		return
	}
	nft.AppendPayload(b, nft.Reg1, nft.TransportHeader, 2, 2)
	from := binary.BigEndian.AppendUint16(e.scratch[:0], r.ports.from)
	to := binary.BigEndian.AppendUint16(e.scratch[2:2], r.ports.to)
	switch {
	case r.ports.from == r.ports.to:
		nft.AppendCmp(b, nft.CmpEq, from)
	case r.ports.from == 0:
		nft.AppendCmp(b, nft.CmpLte, to)
	default:
		nft.AppendRange(b, from, to)
	}
}

func (e *encoder) appendTarget(r *rule) {
	b := e.batch
	switch r.target {
	case targetAccept:
		nft.AppendVerdict(b, nft.VerdictAccept, "")
	case targetDrop:
		nft.AppendVerdict(b, nft.VerdictDrop, "")
	case targetReturn:
		nft.AppendVerdict(b, nft.VerdictReturn, "")
	case targetJump:
		nft.AppendVerdict(b, nft.VerdictJump, r.chain)
	case targetGoto:
		nft.AppendVerdict(b, nft.VerdictGoto, r.chain)
	case targetReject:
		xtREJECT.AppendTarget(b, encodeREJECT(e.scratch[:], e.f))
	case targetDNAT:
		xtDNAT.AppendTarget(b, encodeDNAT(e.scratch[:], r.to))
	case targetMasquerade:
		xtMasquerade.AppendTarget(b, encodeMasquerade(e.scratch[:], e.f))
	case targetMark:
		xtMARK.AppendTarget(b, encodeMARK(e.scratch[:], r.set))
	}
}
