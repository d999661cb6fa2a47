package nft

import (
	"encoding/binary"

	"github.com/kernlb/kernlb/internal/nfnl"
)

// Expr appends one expression of a rule to a batch, as the data of NFTA_LIST_ELEM.
type Expr func(b *nfnl.Batch)

// The attributes are those of enum nft_expr_attributes and the enums of each
// expression in include/uapi/linux/netfilter/nf_tables.h.

func expression(name string, data func(b *nfnl.Batch)) Expr {
	return func(b *nfnl.Batch) {
		e := b.Nest(1) // NFTA_LIST_ELEM
		b.Text(1, name)
		d := b.Nest(2) // NFTA_EXPR_DATA
		data(b)
		b.End(d)
		b.End(e)
	}
}

// Word returns the register that holds byte off of a concatenation which begins in NFT_REG_1. That
// one is 16 bytes long and is the same as the four-byte registers NFT_REG32_00 (8) and the three
// after it; nft names it by the long register where it starts on one.
func Word(off int) uint32 {
	if off%16 == 0 {
		return 1 + uint32(off)/16
	}
	return 8 + uint32(off)/4
}

// Where payload counts from (enum nft_payload_bases).
const (
	BaseNetwork   = 1 // NFT_PAYLOAD_NETWORK_HEADER
	BaseTransport = 2 // NFT_PAYLOAD_TRANSPORT_HEADER
)

// Payload loads bytes of the packet into a register.
func Payload(base, offset uint32, length int, reg uint32) Expr {
	return expression("payload", func(b *nfnl.Batch) {
		b.U32(1, reg) // NFTA_PAYLOAD_DREG
		b.U32(2, base)
		b.U32(3, offset)
		b.U32(4, uint32(length))
	})
}

// Keys of meta (enum nft_meta_keys).
const (
	MetaMark    = 3
	MetaIIFName = 6
	MetaL4Proto = 16
)

// Meta loads a key of meta into a register.
func Meta(key, reg uint32) Expr {
	return expression("meta", func(b *nfnl.Batch) {
		b.U32(2, key) // NFTA_META_KEY
		b.U32(1, reg) // NFTA_META_DREG
	})
}

// MetaSet sets a key of meta from a register.
func MetaSet(key, reg uint32) Expr {
	return expression("meta", func(b *nfnl.Batch) {
		b.U32(2, key)
		b.U32(3, reg) // NFTA_META_SREG
	})
}

// Keys of ct (enum nft_ct_keys); those of addresses are in [Family].
const (
	CTState     = 0
	CTDirection = 1
	CTStatus    = 2
	CTProtocol  = 10
	CTProtoDst  = 12
)

// CT loads a key of ct into a register.
func CT(key, reg uint32) Expr {
	return expression("ct", func(b *nfnl.Batch) {
		b.U32(2, key) // NFTA_CT_KEY
		b.U32(1, reg) // NFTA_CT_DREG
	})
}

// CTOriginal loads a key of the flow's original direction.
func CTOriginal(key, reg uint32) Expr {
	return expression("ct", func(b *nfnl.Batch) {
		b.U32(2, key)
		b.U32(1, reg)
		b.U8(3, 0) // NFTA_CT_DIRECTION: IP_CT_DIR_ORIGINAL
	})
}

// How to compare (enum nft_cmp_ops).
const (
	CmpEq  = 0 // NFT_CMP_EQ
	CmpNeq = 1 // NFT_CMP_NEQ
)

// Compare goes on with the rule if a register compares with a value.
func Compare(op, reg uint32, value []byte) Expr {
	return expression("cmp", func(b *nfnl.Batch) {
		b.U32(1, reg) // NFTA_CMP_SREG
		b.U32(2, op)
		dataValue(b, 3, value)
	})
}

// Bitwise computes (reg & mask) ^ xor into reg.
func Bitwise(reg uint32, mask, xor []byte) Expr {
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

// Lookup goes on with the rule if the key in register 1 is in the set; with inverted, if it is not.
func Lookup(set string, inverted bool) Expr {
	return expression("lookup", func(b *nfnl.Batch) {
		b.U32(2, 1) // NFTA_LOOKUP_SREG
		b.Text(1, set)
		if inverted {
			b.U32(5, 1) // NFTA_LOOKUP_FLAGS: NFT_LOOKUP_F_INV
		}
	})
}

// Names of anonymous sets and maps. The kernel fills in a number.
const (
	anonymousSet = "__set%d"
	anonymousMap = "__map%d"
)

// LookupID is [Lookup] in an anonymous set of the same transaction.
func LookupID(id uint32) Expr {
	return expression("lookup", func(b *nfnl.Batch) {
		b.U32(2, 1)
		b.Text(1, anonymousSet)
		b.U32(4, id) // NFTA_LOOKUP_SET_ID
	})
}

// LookupVerdict does what an anonymous map of verdicts says of the number in register 1.
func LookupVerdict(id uint32) Expr {
	return expression("lookup", func(b *nfnl.Batch) {
		b.U32(2, 1)
		b.U32(3, 0) // NFTA_LOOKUP_DREG: NFT_REG_VERDICT
		b.Text(1, anonymousMap)
		b.U32(4, id)
	})
}

// Hashed is where what is to be hashed is loaded: nft leaves room for the hash in front.
const Hashed = 16

// JHash hashes what is in register 2, of a length, into a number below mod in register 1.
func JHash(length int, mod, seed uint32) Expr {
	return expression("hash", func(b *nfnl.Batch) {
		b.U32(1, Word(Hashed)) // NFTA_HASH_SREG
		b.U32(2, Word(0))      // NFTA_HASH_DREG
		b.U32(3, uint32(length))
		b.U32(4, mod)  // NFTA_HASH_MODULUS
		b.U32(5, seed) // NFTA_HASH_SEED
		b.U32(6, 0)    // NFTA_HASH_OFFSET
		b.U32(7, 0)    // NFTA_HASH_TYPE: NFT_HASH_JENKINS
	})
}

// LookupMap replaces the key in register 1 by the map's data, or ends the rule.
func LookupMap(name string) Expr {
	return expression("lookup", func(b *nfnl.Batch) {
		b.U32(2, 1)
		b.U32(3, 1) // NFTA_LOOKUP_DREG
		b.Text(1, name)
	})
}

// NumgenRandom draws a number below mod.
func NumgenRandom(mod int, reg uint32) Expr {
	return expression("numgen", func(b *nfnl.Batch) {
		b.U32(1, reg)         // NFTA_NG_DREG
		b.U32(2, uint32(mod)) // NFTA_NG_MODULUS
		b.U32(3, 1)           // NFTA_NG_TYPE: NFT_NG_RANDOM
		b.U32(4, 0)           // NFTA_NG_OFFSET
	})
}

// DNAT translates the destination to what is in the registers.
func DNAT(nfproto uint8, addrReg, portReg uint32) Expr {
	return expression("nat", func(b *nfnl.Batch) {
		b.U32(1, 1) // NFTA_NAT_TYPE: NFT_NAT_DNAT
		b.U32(2, uint32(nfproto))
		b.U32(3, addrReg) // NFTA_NAT_REG_ADDR_MIN
		b.U32(5, portReg) // NFTA_NAT_REG_PROTO_MIN
	})
}

// Masquerade translates the source to an address of the interface, with random ports.
func Masquerade() Expr {
	return expression("masq", func(b *nfnl.Batch) {
		b.U32(1, 0x10) // NFTA_MASQ_FLAGS: NF_NAT_RANGE_PROTO_RANDOM_FULLY
	})
}

// Reject answers with an ICMP error of the code.
func Reject(code uint8) Expr {
	return expression("reject", func(b *nfnl.Batch) {
		b.U32(1, 0) // NFTA_REJECT_TYPE: NFT_REJECT_ICMP_UNREACH
		b.U8(2, code)
	})
}

// Address types of fib (RTN_* in include/uapi/linux/rtnetlink.h).
const RTNLocal = 2

// Which address fib looks up (enum nft_fib_flags).
const (
	FIBSaddr = 1 // NFTA_FIB_F_SADDR
	FIBDaddr = 2 // NFTA_FIB_F_DADDR
)

// FIBType loads the type of an address into a register.
func FIBType(flags, reg uint32) Expr {
	return expression("fib", func(b *nfnl.Batch) {
		b.U32(3, flags) // NFTA_FIB_FLAGS
		b.U32(2, 3)     // NFTA_FIB_RESULT: NFT_FIB_RESULT_ADDRTYPE
		b.U32(1, reg)   // NFTA_FIB_DREG
	})
}

// VerdictTo is a verdict, and the chain that it leads to.
type VerdictTo struct {
	Code  int32
	Chain string
}

// Verdicts (NF_DROP in include/uapi/linux/netfilter.h; enum nft_verdicts).
const (
	VerdictDrop   = 0
	VerdictAccept = 1
	VerdictJump   = -3
	VerdictGoto   = -4
)

// Verdict ends the rule with a verdict.
func Verdict(code int32, chain string) Expr {
	return expression("immediate", func(b *nfnl.Batch) {
		b.U32(1, 0) // NFTA_IMMEDIATE_DREG: NFT_REG_VERDICT
		d := b.Nest(2)
		dataVerdict(b, VerdictTo{code, chain})
		b.End(d)
	})
}

// dataVerdict appends NFTA_DATA_VERDICT.
func dataVerdict(b *nfnl.Batch, to VerdictTo) {
	v := b.Nest(2)
	b.U32(1, uint32(to.Code))
	if to.Chain != "" {
		b.Text(2, to.Chain)
	}
	b.End(v)
}

// LearnClient remembers the data under the key, or renews the timeout of a key that is there, whose
// data it leaves alone.
func LearnClient(name string, keyReg, dataReg uint32, timeoutMillis uint64) Expr {
	return expression("dynset", func(b *nfnl.Batch) {
		b.U32(4, keyReg) // NFTA_DYNSET_SREG_KEY
		b.U32(5, dataReg)
		b.U32(3, 1) // NFTA_DYNSET_OP: NFT_DYNSET_OP_UPDATE
		b.U64(6, timeoutMillis)
		b.Text(1, name) // NFTA_DYNSET_SET_NAME
	})
}

// Counter counts the packets that come so far in the rule.
func Counter() Expr {
	return expression("counter", func(b *nfnl.Batch) {
		b.U64(1, 0) // NFTA_COUNTER_BYTES
		b.U64(2, 0) // NFTA_COUNTER_PACKETS
	})
}

// Native32 returns a number in the byte order of the machine.
func Native32(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

// ResetTCP answers a segment with a reset, as if this machine had no such connection.
func ResetTCP() Expr {
	// NFTA_REJECT_TYPE: NFT_REJECT_TCP_RST
	return expression("reject", func(b *nfnl.Batch) { b.U32(1, 1) })
}
