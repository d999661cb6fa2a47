package iptables

import (
	"bytes"
	"encoding/binary"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/servicemodel"
)

// maxComment is the maximum length of a comment: NFT_USERDATA_MAXLEN less type, length and the
// final NUL.
const maxComment = 253

// protocolOffset is the offset of the protocol in the IPv4 header.
const protocolOffset = 9

// encoder appends messages about the objects of the tables.
type encoder struct {
	batch   *rawnl.Batch
	tables  [tableCount]*nft.Encoder
	f       *nft.Family // of the rule that is being encoded
	rules   int         // rules added, changed or deleted one by one
	scratch [sizeLargest]byte
}

func newEncoder(b *rawnl.Batch) *encoder {
	e := &encoder{batch: b}
	for t := range tableCount {
		e.tables[t] = nft.NewEncoder(b, t.family(), t.kind().String())
		e.tables[t].DescribeRule = ruleOf
	}

	return e
}

// of returns the encoder of a chain's table.
func (e *encoder) of(id chainID) *nft.Encoder { return e.tables[id.table] }

// ruleOf names the rule of a message, for errors.
var ruleOf = rawnl.DescribeFunc(func(msg []byte, _ int) string {
	const header, familyAt = 20, 16 // struct nlmsghdr and struct nfgenmsg; nfgen_family
	if len(msg) < header {
		return "rule"
	}
	f := nft.IPv4
	if msg[familyAt] == nft.IPv6.NFProto {
		f = nft.IPv6
	}
	found, err := newDecoder(f).decodeRuleMessage(msg[header:])
	if err != nil || found.rule == (rule{}) {
		return "rule"
	}
	return "rule " + found.rule.text(f.Model)
})

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

// appendMatches puts cheap matches that rarely succeed first. iptables-save lists matches in the
// same order.
func (e *encoder) appendMatches(r *rule) {
	b := e.batch
	if r.dst.IsValid() {
		nft.AppendPrefix(b, e.f.DaddrOffset, eqOrNot(r.notDst), r.dst)
	}
	if r.src.IsValid() {
		nft.AppendPrefix(b, e.f.SaddrOffset, eqOrNot(r.notSrc), r.src)
	}
	if r.in != "" { // the name with its NUL, or only its beginning
		name, prefix := bytes.CutSuffix(append(e.scratch[:0], r.in...), []byte("+"))
		if !prefix {
			name = append(name, 0)
		}
		nft.AppendMeta(b, nft.Reg1, nft.MetaIIFName)
		nft.AppendCmp(b, eqOrNot(r.notIn), name)
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
		e.extension(xtAddrtype, r)
	}
	if r.state.states != 0 {
		e.extension(xtConntrack, r)
	}
	switch r.stat.kind {
	case statNone:
	case statHash:
		e.extension(xtBPF, r)
	default:
		e.extension(xtStatistic, r)
	}

	if r.recent.kind != recentNone {
		e.extension(xtRecent, r)
	}
}

func eqOrNot(not bool) uint32 {
	if not {
		return nft.CmpNeq
	}
	return nft.CmpEq
}

func (e *encoder) appendPorts(r *rule) {
	b := e.batch

	// iptables reads ports of TCP and UDP only from native expressions
	if r.proto == servicemodel.SCTP {
		e.extension(xtSCTP, r)
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
	switch r.target {
	case targetNone:
	case targetReject, targetReset:
		e.extension(xtREJECT, r)
	case targetDNAT:
		e.extension(xtDNAT, r)
	case targetMasquerade:
		e.extension(xtMasquerade, r)
	case targetMark:
		e.extension(xtMARK, r)
	default:
		nft.AppendVerdict(e.batch, verdicts[r.target].code, r.chain)
	}
}

// extension appends a match or target of x_tables.
func (e *encoder) extension(x *extension, r *rule) {
	info := x.info(e.scratch[:], e.f, r)
	if x.target {
		x.AppendTarget(e.batch, info)
	} else {
		x.AppendMatch(e.batch, info)
	}
}
