package nft

import (
	"time"

	"github.com/kernlb/kernlb/internal/rawnl"
)

// The expressions of nf_tables. Each function appends one expression, as an element of
// NFTA_RULE_EXPRESSIONS. All rules use this encoder: the fixed rules of the nftables and the ipvs
// backend, and the rules of the iptables backend. The latter are so many that no function may
// allocate.
//
// Tests decode the expressions with github.com/google/nftables/expr. That package cannot encode
// them, for three reasons. It compiles only on Linux (it needs golang.org/x/sys/unix.NFPROTO_IPV4
// and similar constants), but plans are printed and tested on other systems, too. It allocates some
// twenty times for each expression. Its Ct sends no direction with NFT_CT_SRC_IP and NFT_CT_DST_IP.
// With ports it sends a direction of four bytes, although the kernel reads only the first byte. We
// cannot replace its Ct by our own expression, because the methods of expr.Any are not exported.

// beginExpr begins an expression. The caller appends its attributes and calls endExpr.
func beginExpr(b *rawnl.Batch, name string) (elem, data rawnl.Mark) {
	elem = b.Nest(listElem)
	b.Text(exprName, name)
	return elem, b.Nest(exprData)
}

func endExpr(b *rawnl.Batch, elem, data rawnl.Mark) {
	b.End(data)
	b.End(elem)
}

// appendNumbers appends an expression whose attributes are numbers: each attribute is followed by
// its number.
func appendNumbers(b *rawnl.Batch, name string, attrs ...uint32) {
	elem, data := beginExpr(b, name)
	for ; len(attrs) > 0; attrs = attrs[2:] {
		b.U32(uint16(attrs[0]), attrs[1])
	}
	endExpr(b, elem, data)
}

// appendValue appends attribute typ with the value of a register.
func appendValue(b *rawnl.Batch, typ uint16, v []byte) {
	m := b.Nest(typ)
	b.Attr(DataValue, v)
	b.End(m)
}

// appendVerdict appends attribute typ with a verdict. chain is empty except for jump and goto.
func appendVerdict(b *rawnl.Batch, typ uint16, code int32, chain string) {
	m := b.Nest(typ)
	v := b.Nest(DataVerdict)
	b.U32(AttrVerdictCode, uint32(code))
	if chain != "" {
		b.Text(AttrVerdictChain, chain)
	}
	b.End(v)
	b.End(m)
}

// register returns the register for byte offset of a concatenation that begins in Reg1. Like nft,
// it returns the long register if one begins at the offset.
func register(offset int) uint32 {
	if offset%16 == 0 {
		return Reg1 + uint32(offset)/16
	}
	return reg32_00 + uint32(offset)/4
}

// offsetOf is the inverse of register.
func offsetOf(reg uint32) int {
	if reg < reg32_00 {
		return int(reg-Reg1) * 16
	}
	return int(reg-reg32_00) * 4
}

// AppendPayload loads bytes of a header into a register.
func AppendPayload(b *rawnl.Batch, reg, base, offset, length uint32) {
	appendNumbers(b, "payload", AttrPayloadDReg, reg, AttrPayloadBase, base,
		AttrPayloadOffset, offset, AttrPayloadLen, length)
}

// appendSetAddr replaces an address in the network header by the value in Reg1. The kernel corrects
// the checksums.
func appendSetAddr(b *rawnl.Batch, f *Family, offset uint32) {
	attrs := []uint32{attrPayloadSReg, Reg1, AttrPayloadBase, NetworkHeader,
		AttrPayloadOffset, offset, AttrPayloadLen, uint32(f.AddrLen)}
	if f == IPv4 {
		attrs = append(attrs, attrPayloadCSumType, csumInet, attrPayloadCSumOffset, ipv4CSumOffset)
	}
	appendNumbers(b, "payload", append(attrs, attrPayloadCSumFlags, csumL4)...)
}

// AppendMeta loads metadata of the packet, such as its mark, into a register.
func AppendMeta(b *rawnl.Batch, reg, key uint32) {
	appendNumbers(b, "meta", AttrMetaKey, key, AttrMetaDReg, reg)
}

// appendMetaSet sets metadata of the packet, such as its mark, to the value in Reg1.
func appendMetaSet(b *rawnl.Batch, key uint32) {
	appendNumbers(b, "meta", AttrMetaKey, key, attrMetaSReg, Reg1)
}

// appendCT loads a property of the flow in conntrack into a register.
func appendCT(b *rawnl.Batch, reg, key uint32) {
	appendNumbers(b, "ct", attrCTKey, key, attrCTDReg, reg)
}

// appendCTOf loads a property of one direction of the flow in conntrack into a register.
func appendCTOf(b *rawnl.Batch, reg, key uint32, direction uint8) {
	elem, data := beginExpr(b, "ct")
	b.U32(attrCTKey, key)
	b.U32(attrCTDReg, reg)
	b.U8(attrCTDirection, direction)
	endExpr(b, elem, data)
}

// AppendCmp compares Reg1 with a value. op is CmpEq or another comparison.
func AppendCmp(b *rawnl.Batch, op uint32, v []byte) {
	elem, data := beginExpr(b, "cmp")
	b.U32(AttrCmpSReg, Reg1)
	b.U32(AttrCmpOp, op)
	appendValue(b, AttrCmpData, v)
	endExpr(b, elem, data)
}

// AppendBitwise sets Reg1 to (Reg1 & mask) ^ xor. Both have the same length, at most 16 bytes; a
// nil xor is zero.
func AppendBitwise(b *rawnl.Batch, mask, xor []byte) { appendBitwiseIn(b, Reg1, mask, xor) }

func appendBitwiseIn(b *rawnl.Batch, reg uint32, mask, xor []byte) {
	var zero [16]byte
	if xor == nil {
		xor = zero[:len(mask)]
	}
	elem, data := beginExpr(b, "bitwise")
	b.U32(AttrBitwiseSReg, reg)
	b.U32(AttrBitwiseDReg, reg)
	b.U32(attrBitwiseLen, uint32(len(mask)))
	appendValue(b, AttrBitwiseMask, mask)
	appendValue(b, AttrBitwiseXor, xor)
	endExpr(b, elem, data)
}

// AppendRange matches if Reg1 is in a range, both ends included.
func AppendRange(b *rawnl.Batch, from, to []byte) {
	elem, data := beginExpr(b, "range")
	b.U32(AttrRangeSReg, Reg1)
	b.U32(AttrRangeOp, RangeEq)
	appendValue(b, AttrRangeFrom, from)
	appendValue(b, AttrRangeTo, to)
	endExpr(b, elem, data)
}

// AppendCounter appends a counter of packets and bytes, which begins at zero.
func AppendCounter(b *rawnl.Batch) { appendCounterAs(b, listElem) }

// appendCounterAs appends a counter as attribute typ: as an element of a list, or as the expression
// of a set's elements.
func appendCounterAs(b *rawnl.Batch, typ uint16) {
	elem := b.Nest(typ)
	b.Text(exprName, "counter")
	data := b.Nest(exprData)
	b.U64(attrCounterBytes, 0)
	b.U64(attrCounterPackets, 0)
	endExpr(b, elem, data)
}

// AppendVerdict ends the rule with a verdict, such as VerdictDrop. chain is empty except for jump
// and goto.
func AppendVerdict(b *rawnl.Batch, code int32, chain string) {
	elem, data := beginExpr(b, "immediate")
	b.U32(AttrImmediateDReg, RegVerdict)
	appendVerdict(b, AttrImmediateData, code, chain)
	endExpr(b, elem, data)
}

// Extension is a match or a target of x_tables and its revision.
type Extension struct {
	Name     string
	Revision uint32
}

// AppendMatch appends the extension as a match, through nft_compat. info is its struct.
func (x Extension) AppendMatch(b *rawnl.Batch, info []byte) { x.append(b, "match", info) }

// AppendTarget appends the extension as a target, through nft_compat. info is its struct.
func (x Extension) AppendTarget(b *rawnl.Batch, info []byte) { x.append(b, "target", info) }

func (x Extension) append(b *rawnl.Batch, kind string, info []byte) {
	elem, data := beginExpr(b, kind)
	b.Text(AttrExtensionName, x.Name)
	b.U32(AttrExtensionRev, x.Revision)
	b.Attr(AttrExtensionInfo, info)
	endExpr(b, elem, data)
}

// appendLookup matches if the key in Reg1 is in the set or, with inverted, if it is not.
func appendLookup(b *rawnl.Batch, set string, inverted bool) {
	elem, data := beginExpr(b, "lookup")
	b.U32(attrLookupSReg, Reg1)
	b.Text(attrLookupSet, set)
	if inverted {
		b.U32(attrLookupFlags, lookupInvert)
	}
	endExpr(b, elem, data)
}

// appendLookupMap looks up the key in the register from, and stores the data of the map in the
// register to. Data in RegVerdict are a verdict, which the kernel executes. Without an entry, the
// rule does not match.
func appendLookupMap(b *rawnl.Batch, name string, from, to uint32) {
	elem, data := beginExpr(b, "lookup")
	b.U32(attrLookupSReg, from)
	b.U32(attrLookupDReg, to)
	b.Text(attrLookupSet, name)
	endExpr(b, elem, data)
}

// appendLookupAnonymous looks up an anonymous set of the same transaction. A map returns a verdict.
func appendLookupAnonymous(b *rawnl.Batch, a *AnonymousSet, id uint32) {
	elem, data := beginExpr(b, "lookup")
	b.U32(attrLookupSReg, Reg1)
	if a.isMap() {
		b.U32(attrLookupDReg, RegVerdict)
	}
	b.Text(attrLookupSet, a.name())
	b.U32(attrLookupSetID, id)
	endExpr(b, elem, data)
}

// hashed is the offset of the registers with the input of a hash: like nft, it leaves room for the
// hash before the input.
const hashed = 16

// appendJHash hashes length bytes of the registers at an offset into a number below mod.
func appendJHash(b *rawnl.Batch, reg uint32, from int, length, mod, seed uint32) {
	appendNumbers(b, "hash", attrHashSReg, register(from), attrHashDReg, reg, attrHashLen, length,
		attrHashModulus, mod, attrHashSeed, seed, attrHashOffset, 0, attrHashType, hashJenkins)
}

// appendNumgen generates a number below mod, by counting or at random.
func appendNumgen(b *rawnl.Batch, reg, mod, typ uint32) {
	appendNumbers(b, "numgen", attrNumgenDReg, reg, attrNumgenModulus, mod, attrNumgenType, typ,
		attrNumgenOffset, 0)
}

// appendFIB loads the result of a route lookup for an address of the packet into Reg1.
func appendFIB(b *rawnl.Batch, flags, result uint32) {
	appendNumbers(b, "fib", attrFIBFlags, flags, attrFIBResult, result, attrFIBDReg, Reg1)
}

// appendUpdate puts the data into the map under the key in Reg1. If the key exists, it renews the
// timeout and keeps the data. For a set, dataReg is 0, because a set has no data. each appends an
// expression of the element, such as a counter.
func appendUpdate(b *rawnl.Batch, name string, dataReg uint32, timeout time.Duration,
	each func(*rawnl.Batch)) {
	elem, data := beginExpr(b, "dynset")
	b.U32(attrDynsetKeyReg, Reg1)
	if dataReg != 0 {
		b.U32(attrDynsetDataReg, dataReg)
	}
	b.U32(attrDynsetOp, dynsetUpdate)
	if timeout != 0 {
		b.U64(attrDynsetTimeout, uint64(timeout.Milliseconds()))
	}
	b.Text(attrDynsetSet, name)
	if each != nil {
		each(b)
	}
	endExpr(b, elem, data)
}
