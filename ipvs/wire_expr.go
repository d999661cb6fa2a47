package ipvs

import (
	"encoding/binary"

	"github.com/kernlb/kernlb/internal/nfnl"
)

// expr appends one expression of a rule to a batch, as the data of NFTA_LIST_ELEM.
type expr func(b *nfnl.Batch)

// The attributes are those of enum nft_expr_attributes and the enums of each
// expression in include/uapi/linux/netfilter/nf_tables.h.

func expression(name string, data func(b *nfnl.Batch)) expr {
	return func(b *nfnl.Batch) {
		e := b.Nest(1) // NFTA_LIST_ELEM
		b.Text(1, name)
		d := b.Nest(2) // NFTA_EXPR_DATA
		data(b)
		b.End(d)
		b.End(e)
	}
}

// word returns the register that holds byte off of a concatenation which begins in NFT_REG_1. That one is 16 bytes long
// and is the same as the four-byte registers NFT_REG32_00 (8) and the three after it; nft names it by the long register where it starts on one.
func word(off int) uint32 {
	if off%16 == 0 {
		return 1 + uint32(off)/16
	}
	return 8 + uint32(off)/4
}

const (
	baseNetwork   = 1 // NFT_PAYLOAD_NETWORK_HEADER
	baseTransport = 2 // NFT_PAYLOAD_TRANSPORT_HEADER
)

func payload(base, offset uint32, length int, reg uint32) expr {
	return expression("payload", func(b *nfnl.Batch) {
		b.U32(1, reg) // NFTA_PAYLOAD_DREG
		b.U32(2, base)
		b.U32(3, offset)
		b.U32(4, uint32(length))
	})
}

// Keys of meta (enum nft_meta_keys).
const (
	metaMark    = 3
	metaIIFName = 6
	metaL4Proto = 16
)

func meta(key, reg uint32) expr {
	return expression("meta", func(b *nfnl.Batch) {
		b.U32(2, key) // NFTA_META_KEY
		b.U32(1, reg) // NFTA_META_DREG
	})
}

func metaSet(key, reg uint32) expr {
	return expression("meta", func(b *nfnl.Batch) {
		b.U32(2, key)
		b.U32(3, reg) // NFTA_META_SREG
	})
}

// Keys of ct (enum nft_ct_keys); those of addresses are in family.
const (
	ctState     = 0
	ctDirection = 1
	ctStatus    = 2
	ctProtocol  = 10
	ctProtoDst  = 12
)

func ct(key, reg uint32) expr {
	return expression("ct", func(b *nfnl.Batch) {
		b.U32(2, key) // NFTA_CT_KEY
		b.U32(1, reg) // NFTA_CT_DREG
	})
}

// ctOriginal loads a key of the flow's original direction.
func ctOriginal(key, reg uint32) expr {
	return expression("ct", func(b *nfnl.Batch) {
		b.U32(2, key)
		b.U32(1, reg)
		b.U8(3, 0) // NFTA_CT_DIRECTION: IP_CT_DIR_ORIGINAL
	})
}

const (
	cmpEq  = 0 // NFT_CMP_EQ
	cmpNeq = 1 // NFT_CMP_NEQ
)

func compare(op, reg uint32, value []byte) expr {
	return expression("cmp", func(b *nfnl.Batch) {
		b.U32(1, reg) // NFTA_CMP_SREG
		b.U32(2, op)
		dataValue(b, 3, value)
	})
}

// bitwise computes (reg & mask) ^ xor into reg.
func bitwise(reg uint32, mask, xor []byte) expr {
	return expression("bitwise", func(b *nfnl.Batch) {
		b.U32(1, reg) // NFTA_BITWISE_SREG
		b.U32(2, reg) // NFTA_BITWISE_DREG
		b.U32(3, uint32(len(mask)))
		dataValue(b, 4, mask)
		dataValue(b, 5, xor)
	})
}

func dataValue(b *nfnl.Batch, typ uint16, value []byte) {
	d := b.Nest(typ)
	b.Attr(1, value) // NFTA_DATA_VALUE
	b.End(d)
}

// lookup goes on with the rule if the key in register 1 is in the set; with inverted, if it is not.
func lookup(set string, inverted bool) expr {
	return expression("lookup", func(b *nfnl.Batch) {
		b.U32(2, 1) // NFTA_LOOKUP_SREG
		b.Text(1, set)
		if inverted {
			b.U32(5, 1) // NFTA_LOOKUP_FLAGS: NFT_LOOKUP_F_INV
		}
	})
}

// lookupMap replaces the key in register 1 by the map's data, or ends the rule.
func lookupMap(name string) expr {
	return expression("lookup", func(b *nfnl.Batch) {
		b.U32(2, 1)
		b.U32(3, 1) // NFTA_LOOKUP_DREG
		b.Text(1, name)
	})
}

func masquerade() expr {
	return expression("masq", func(b *nfnl.Batch) {
		b.U32(1, 0x10) // NFTA_MASQ_FLAGS: NF_NAT_RANGE_PROTO_RANDOM_FULLY
	})
}

func reject(code uint8) expr {
	return expression("reject", func(b *nfnl.Batch) {
		b.U32(1, 0) // NFTA_REJECT_TYPE: NFT_REJECT_ICMP_UNREACH
		b.U8(2, code)
	})
}

// resetTCP answers a segment with a reset, as if this machine had no such connection.
func resetTCP() expr {
	return expression("reject", func(b *nfnl.Batch) { b.U32(1, 1) }) // NFTA_REJECT_TYPE: NFT_REJECT_TCP_RST
}

// Address types of fib (RTN_* in include/uapi/linux/rtnetlink.h).
const rtnLocal = 2

const (
	fibSaddr = 1 // NFTA_FIB_F_SADDR
	fibDaddr = 2 // NFTA_FIB_F_DADDR
)

func fibType(flags, reg uint32) expr {
	return expression("fib", func(b *nfnl.Batch) {
		b.U32(3, flags) // NFTA_FIB_FLAGS
		b.U32(2, 3)     // NFTA_FIB_RESULT: NFT_FIB_RESULT_ADDRTYPE
		b.U32(1, reg)   // NFTA_FIB_DREG
	})
}

// Verdicts (NF_DROP in include/uapi/linux/netfilter.h; enum nft_verdicts).
const (
	verdictDrop   = 0
	verdictAccept = 1
	verdictJump   = -3
	verdictGoto   = -4
)

func verdict(code int32, chain string) expr {
	return expression("immediate", func(b *nfnl.Batch) {
		b.U32(1, 0) // NFTA_IMMEDIATE_DREG: NFT_REG_VERDICT
		d := b.Nest(2)
		v := b.Nest(2) // NFTA_DATA_VERDICT
		b.U32(1, uint32(code))
		if chain != "" {
			b.Text(2, chain)
		}
		b.End(v)
		b.End(d)
	})
}

func native32(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }
