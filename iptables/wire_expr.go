package iptables

import (
	"bytes"
	"encoding/binary"

	"github.com/kernlb/kernlb/internal/nfnl"
)

// The native expressions that iptables-nft writes, one function each. Numbers are those of
// include/uapi/linux/netfilter/nf_tables.h. All of them use one register: every load is followed by
// what compares it.

const reg1 = 1 // NFT_REG_1, where iptables-nft loads everything

const (
	baseNetwork   = 1 // NFT_PAYLOAD_NETWORK_HEADER
	baseTransport = 2 // NFT_PAYLOAD_TRANSPORT_HEADER

	metaMark    = 3  // NFT_META_MARK
	metaIIFName = 6  // NFT_META_IIFNAME
	metaL4Proto = 16 // NFT_META_L4PROTO

	cmpEq  = 0 // NFT_CMP_EQ
	cmpNeq = 1 // NFT_CMP_NEQ
	cmpLt  = 2 // NFT_CMP_LT
	cmpLte = 3 // NFT_CMP_LTE
	cmpGt  = 4 // NFT_CMP_GT
	cmpGte = 5 // NFT_CMP_GTE

	rangeEq = 0 // NFT_RANGE_EQ

	verdictDrop   = 0  // NF_DROP
	verdictAccept = 1  // NF_ACCEPT
	verdictJump   = -3 // NFT_JUMP
	verdictGoto   = -4 // NFT_GOTO
	verdictReturn = -5 // NFT_RETURN

	dataValue   = 1 // NFTA_DATA_VALUE
	dataVerdict = 2 // NFTA_DATA_VERDICT
)

// beginExpr begins an expression; its attributes follow, then endExpr.
func beginExpr(b *nfnl.Batch, name string) (elem, data nfnl.Mark) {
	elem = b.Nest(1) // NFTA_LIST_ELEM
	b.Text(1, name)  // NFTA_EXPR_NAME
	data = b.Nest(2) // NFTA_EXPR_DATA
	return elem, data
}

func endExpr(b *nfnl.Batch, elem, data nfnl.Mark) {
	b.End(data)
	b.End(elem)
}

// appendPayload loads bytes of a header.
func appendPayload(b *nfnl.Batch, base, offset, length uint32) {
	elem, data := beginExpr(b, "payload")
	b.U32(1, reg1)   // NFTA_PAYLOAD_DREG
	b.U32(2, base)   // NFTA_PAYLOAD_BASE
	b.U32(3, offset) // NFTA_PAYLOAD_OFFSET
	b.U32(4, length) // NFTA_PAYLOAD_LEN
	endExpr(b, elem, data)
}

// appendMeta loads something the kernel knows of the packet.
func appendMeta(b *nfnl.Batch, key uint32) {
	elem, data := beginExpr(b, "meta")
	b.U32(2, key)  // NFTA_META_KEY
	b.U32(1, reg1) // NFTA_META_DREG
	endExpr(b, elem, data)
}

// appendBitwise masks what was loaded.
func appendBitwise(b *nfnl.Batch, mask []byte) {
	elem, data := beginExpr(b, "bitwise")
	b.U32(1, reg1)              // NFTA_BITWISE_SREG
	b.U32(2, reg1)              // NFTA_BITWISE_DREG
	b.U32(3, uint32(len(mask))) // NFTA_BITWISE_LEN
	appendValue(b, 4, mask)     // NFTA_BITWISE_MASK
	var zero [16]byte
	appendValue(b, 5, zero[:len(mask)]) // NFTA_BITWISE_XOR
	endExpr(b, elem, data)
}

// appendCmp compares what was loaded.
func appendCmp(b *nfnl.Batch, op uint32, v []byte) {
	elem, data := beginExpr(b, "cmp")
	b.U32(1, reg1)       // NFTA_CMP_SREG
	b.U32(2, op)         // NFTA_CMP_OP
	appendValue(b, 3, v) // NFTA_CMP_DATA
	endExpr(b, elem, data)
}

// appendRange compares what was loaded with a range.
func appendRange(b *nfnl.Batch, from, to []byte) {
	elem, data := beginExpr(b, "range")
	b.U32(1, reg1)          // NFTA_RANGE_SREG
	b.U32(2, rangeEq)       // NFTA_RANGE_OP
	appendValue(b, 3, from) // NFTA_RANGE_FROM_DATA
	appendValue(b, 4, to)   // NFTA_RANGE_TO_DATA
	endExpr(b, elem, data)
}

func appendValue(b *nfnl.Batch, typ uint16, v []byte) {
	m := b.Nest(typ)
	b.Attr(dataValue, v)
	b.End(m)
}

// appendCounter counts packets and bytes, from zero.
func appendCounter(b *nfnl.Batch) {
	elem, data := beginExpr(b, "counter")
	b.U64(1, 0) // NFTA_COUNTER_BYTES
	b.U64(2, 0) // NFTA_COUNTER_PACKETS
	endExpr(b, elem, data)
}

// appendVerdict ends the rule, or goes to a chain.
func appendVerdict(b *nfnl.Batch, code int32, chain string) {
	elem, data := beginExpr(b, "immediate")
	b.U32(1, 0) // NFTA_IMMEDIATE_DREG: NFT_REG_VERDICT
	m := b.Nest(2)
	v := b.Nest(dataVerdict)
	b.U32(1, uint32(code)) // NFTA_VERDICT_CODE
	if chain != "" {
		b.Text(2, chain) // NFTA_VERDICT_CHAIN
	}
	b.End(v)
	b.End(m)
	endExpr(b, elem, data)
}

// appendMatch is a match of x_tables, through nft_compat.
func appendMatch(b *nfnl.Batch, x extension, info []byte) { appendExtension(b, "match", x, info) }

// appendTarget is a target of x_tables, through nft_compat.
func appendTarget(b *nfnl.Batch, x extension, info []byte) { appendExtension(b, "target", x, info) }

func appendExtension(b *nfnl.Batch, kind string, x extension, info []byte) {
	elem, data := beginExpr(b, kind)
	b.Text(1, x.name)    // NFTA_MATCH_NAME, NFTA_TARGET_NAME
	b.U32(2, x.revision) // NFTA_MATCH_REV
	b.Attr(3, info)      // NFTA_MATCH_INFO
	endExpr(b, elem, data)
}

// expr is an expression as the kernel tells it.
type expr struct {
	name string
	data []byte // its attributes
}

// parseExprs calls fn for each expression of a rule, and stops when it returns false. It reports
// whether all of the list could be read and fn never returned false.
func parseExprs(list []byte, fn func(e expr) bool) bool {
	it := nfnl.Attrs(list)
	for it.Next() {
		var e expr
		sub := it.Nest()
		for sub.Next() {
			switch sub.Type() {
			case 1:
				e.name = exprName(sub.Data())
			case 2:
				e.data = sub.Data()
			}
		}
		if sub.Err() != nil || !fn(e) {
			return false
		}
	}
	return it.Err() == nil
}

// exprNames are the names that a rule of iptables-nft has, so that reading many rules does not
// allocate them.
var exprNames = [...]string{"payload", "meta", "cmp", "bitwise", "range", "counter", "immediate",
	"match", "target"}

func exprName(b []byte) string {
	if n := len(b); n > 0 && b[n-1] == 0 {
		b = b[:n-1]
	}
	for _, name := range exprNames {
		if string(b) == name {
			return name
		}
	}
	return string(b)
}

// attrs are the attributes of an expression by their type. Those of types above 7 are passed over:
// no expression here needs them.
type attrs [8][]byte

// parse reads the attributes in data.
func (a *attrs) parse(data []byte) bool {
	*a = attrs{}
	it := nfnl.Attrs(data)
	for it.Next() {
		if t := it.Type(); int(t) < len(a) {
			a[t] = it.Data()
		}
	}
	return it.Err() == nil
}

// u32 returns an attribute that is a number; a wrong length reads as a number that means nothing.
func (a *attrs) u32(t int) uint32 {
	if len(a[t]) != 4 {
		return 1<<32 - 1
	}
	return binary.BigEndian.Uint32(a[t])
}

// value returns the bytes in the NFTA_DATA_VALUE of an attribute; nil if there are none.
func (a *attrs) value(t int) []byte {
	var d attrs
	if !d.parse(a[t]) {
		return nil
	}
	return d[dataValue]
}

// cString returns the bytes up to the first NUL.
func cString(b []byte) string {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	return string(b)
}
