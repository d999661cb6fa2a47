package nft

import (
	"fmt"
	"strings"
	"time"

	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/servicemodel"
)

// The matches and statements of rules. Each is a rule, or a part of a rule. Their text and their
// expressions are defined here only, side by side.

// Matches of the flow.
var (
	CTStateNew     = ctBits("ct state new", ctState, ctStateNew, CmpNeq)
	CTStateRelated = ctBits("ct state related", ctState, ctStateRelated, CmpNeq)
	CTNotKnown     = ctBits("ct state ! established,related", ctState, ctStateEstablished|
		ctStateRelated, CmpEq)
	CTStatusDNAT   = ctBits("ct status dnat", ctStatus, ctDNAT, CmpNeq)
	CTDirOriginal  = ctDirectionIs("original", ctDirOriginal)
	CTDirReply     = ctDirectionIs("reply", ctDirReply)
	CTUnconfirmed  = ctBits("ct status ! confirmed", ctStatus, ctConfirmed, CmpEq)
	CTNotDNAT      = ctBits("ct status ! dnat", ctStatus, ctDNAT, CmpEq)
	CTUntranslated = ctBits(fmt.Sprintf("ct status & 0x%x == 0x0", ctSNAT|ctDNAT), ctStatus,
		ctSNAT|ctDNAT, CmpEq)
)

// ctBits compares bits of the flow's state or status in conntrack with zero.
func ctBits(text string, key, bits, op uint32) Rule {
	return rule(text, func(b *rawnl.Batch) {
		appendCT(b, Reg1, key)
		AppendBitwise(b, Native32(bits), nil)
		AppendCmp(b, op, Native32(0))
	})
}

func ctDirectionIs(name string, direction byte) Rule {
	return rule("ct direction "+name, func(b *rawnl.Batch) {
		appendCT(b, Reg1, ctDirection)
		AppendCmp(b, CmpEq, []byte{direction})
	})
}

// CTProtocol matches if the flow has one of the protocols.
func CTProtocol(protocols ...servicemodel.Protocol) Rule {
	l := make([]string, len(protocols))
	for i, p := range protocols {
		l[i] = p.String()
	}
	return Rule{{
		text:  "ct protocol { " + strings.Join(l, ", ") + " }",
		exprs: func(b *rawnl.Batch) { appendCT(b, Reg1, ctProtocol) },
		set:   &AnonymousSet{Protocols: protocols},
	}}
}

// Matches of the packet.
var (
	FIBSaddrLocal    = fibLocal("saddr type local", fibSaddr, CmpEq)
	FIBSaddrNotLocal = fibLocal("saddr type != local", fibSaddr, CmpNeq)
	FIBDaddrLocal    = fibLocal("daddr type local", fibDaddr, CmpEq)
	FIBDaddrNotLocal = fibLocal("daddr type != local", fibDaddr, CmpNeq)
	// FIBDaddrByIIF matches if the packet leaves by the interface through which it arrived.
	FIBDaddrByIIF = rule("fib daddr . iif oif exists", func(b *rawnl.Batch) {
		appendFIB(b, fibDaddr|fibIIF|fibPresent, fibInterface)
		AppendCmp(b, CmpEq, Native32(1)) // as nft does
	})
	L4ProtoTCP = L4Proto.IsProtocol(servicemodel.TCP)
)

// fibLocal matches if an address of the packet is local to this machine or, with CmpNeq, if it is
// not.
func fibLocal(text string, which, op uint32) Rule {
	return rule("fib "+text, func(b *rawnl.Batch) {
		appendFIB(b, which, fibAddrType)
		AppendCmp(b, op, Native32(rtnLocal))
	})
}

// IIFNameNot matches if the packet arrived through a different interface. A name that ends with "*"
// stands for all interfaces with that prefix.
func IIFNameNot(name string) Rule {
	return rule(fmt.Sprintf("iifname != %q", name), func(b *rawnl.Batch) {
		AppendMeta(b, Reg1, MetaIIFName)
		value, prefix := strings.CutSuffix(name, "*")
		v := []byte(value)
		if !prefix {
			v = append(v, make([]byte, interfaceNameLen-len(v))...)
		}
		AppendCmp(b, CmpNeq, v)
	})
}

// MarkIs matches if the masked bits of the mark are equal to bits.
func MarkIs(mask, bits uint32) Rule {
	return rule(fmt.Sprintf("meta mark & 0x%08x == 0x%08x", mask, bits), func(b *rawnl.Batch) {
		AppendMeta(b, Reg1, MetaMark)
		AppendBitwise(b, Native32(mask), nil)
		AppendCmp(b, CmpEq, Native32(bits))
	})
}

// MarkOr sets bits of the mark.
func MarkOr(bits uint32) Rule {
	return setMark(fmt.Sprintf("meta mark | 0x%08x", bits), ^bits, bits)
}

// MarkXor flips bits of the mark.
func MarkXor(bits uint32) Rule {
	return setMark(fmt.Sprintf("meta mark ^ 0x%08x", bits), ^uint32(0), bits)
}

// MarkAnd keeps some bits of the mark and clears all other bits.
func MarkAnd(keep uint32) Rule {
	return setMark(fmt.Sprintf("meta mark & 0x%08x", keep), keep, 0)
}

// MarkAndOr keeps some bits of the mark, clears all other bits, and then sets bits.
func MarkAndOr(keep, set uint32) Rule {
	return setMark(fmt.Sprintf("meta mark & 0x%08x | 0x%08x", keep, set), keep, set)
}

// setMark sets the mark to (mark & mask) ^ xor.
func setMark(text string, mask, xor uint32) Rule {
	return rule("meta mark set "+text, func(b *rawnl.Batch) {
		AppendMeta(b, Reg1, MetaMark)
		AppendBitwise(b, Native32(mask), Native32(xor))
		appendMetaSet(b, MetaMark)
	})
}

// SetMark sets the mark to the data in a map.
func SetMark(to Mapped) Rule {
	return rule("meta mark set "+to.text(), func(b *rawnl.Batch) {
		to.load(b)
		appendMetaSet(b, MetaMark)
	})
}

// DNAT translates the destination to the address and port in a map.
func (f *Family) DNAT(to Mapped) Rule {
	return rule("dnat "+f.Name+" to "+to.text(), func(b *rawnl.Batch) {
		to.load(b)
		appendNumbers(b, "nat", attrNATType, natDNAT, attrNATFamily, uint32(f.NFProto),
			attrNATRegAddrMin, Reg1, attrNATRegProtoMin, register(f.AddrLen))
	})
}

// DNATAddr translates the destination address to the address in a map. The port stays.
func (f *Family) DNATAddr(to Mapped) Rule {
	return rule("dnat "+f.Name+" to "+to.text(), func(b *rawnl.Batch) {
		to.load(b)
		appendNumbers(b, "nat", attrNATType, natDNAT, attrNATFamily, uint32(f.NFProto),
			attrNATRegAddrMin, Reg1)
	})
}

// DNATAddrPort translates the destination to the address in one map and the port in another map.
// Like nft, it loads each of them into a register of 16 bytes.
func (f *Family) DNATAddrPort(addr, port Mapped) Rule {
	const after = 16
	return rule("dnat "+f.Name+" to "+addr.text()+" : "+port.text(), func(b *rawnl.Batch) {
		addr.load(b)
		port.loadAt(b, after)
		appendNumbers(b, "nat", attrNATType, natDNAT, attrNATFamily, uint32(f.NFProto),
			attrNATRegAddrMin, Reg1, attrNATRegProtoMin, register(after))
	})
}

// SNATAddr translates the source address to the address in a map, and the port to any free port.
func (f *Family) SNATAddr(to Mapped) Rule {
	return rule("snat "+f.Name+" to "+to.text()+" fully-random", func(b *rawnl.Batch) {
		to.load(b)
		appendNumbers(b, "nat", attrNATType, natSNAT, attrNATFamily, uint32(f.NFProto),
			attrNATRegAddrMin, Reg1, attrNATFlags, natFullyRandom)
	})
}

// SetSaddr replaces the source address of the packet by the data in a map.
func (f *Family) SetSaddr(to Mapped) Rule { return f.setAddr("saddr", f.SaddrOffset, to) }

// SetDaddr replaces the destination address of the packet by the data in a map.
func (f *Family) SetDaddr(to Mapped) Rule { return f.setAddr("daddr", f.DaddrOffset, to) }

func (f *Family) setAddr(name string, offset uint32, to Mapped) Rule {
	return rule(f.Name+" "+name+" set "+to.text(), func(b *rawnl.Batch) {
		to.load(b)
		appendSetAddr(b, f, offset)
	})
}

// ReplyDaddr sets the destination address of the packet to the source address of the flow's reply
// direction.
func (f *Family) ReplyDaddr() Rule { return f.resetAddr("daddr", f.DaddrOffset, f.CTReplySaddr) }

// ResetSaddr restores the source address of the packet from the flow's original direction.
func (f *Family) ResetSaddr() Rule { return f.resetAddr("saddr", f.SaddrOffset, f.CTSaddr) }

// ResetDaddr restores the destination address of the packet from the flow's original direction.
func (f *Family) ResetDaddr() Rule { return f.resetAddr("daddr", f.DaddrOffset, f.CTDaddr) }

func (f *Family) resetAddr(name string, offset uint32, to Selector) Rule {
	return rule(f.Name+" "+name+" set "+to.text, func(b *rawnl.Batch) {
		to.load(b, Reg1)
		appendSetAddr(b, f, offset)
	})
}

// ReplyDPort sets the destination port of the packet to the source port of the flow's reply
// direction. It does not change the checksum, which is right again then: see [OriginalDPort].
var ReplyDPort = setDPort(CTReplySPort)

// OriginalDPort restores the destination port of the packet from the flow's original direction, and
// does not change the checksum. So the same chains must contain [ReplyDPort].
var OriginalDPort = setDPort(CTOriginalDPort)

func setDPort(to Selector) Rule {
	return rule("th dport set "+to.text, func(b *rawnl.Batch) {
		to.load(b, Reg1)
		appendNumbers(b, "payload", attrPayloadSReg, Reg1, AttrPayloadBase, TransportHeader,
			AttrPayloadOffset, dportOffset, AttrPayloadLen, portLen)
	})
}

// Reject answers with ICMP port unreachable.
func (f *Family) Reject() Rule {
	return rule("reject with "+f.icmp+" port-unreachable", func(b *rawnl.Batch) {
		elem, data := beginExpr(b, "reject")
		b.U32(attrRejectType, rejectICMPUnreach)
		b.U8(attrRejectCode, f.portUnreachable)
		endExpr(b, elem, data)
	})
}

// Statements without parameters.
var (
	Accept     = Verdict{Code: VerdictAccept}.rule()
	Drop       = Verdict{Code: VerdictDrop}.rule()
	Return     = Verdict{Code: VerdictReturn}.rule()
	Counter    = rule("counter packets 0 bytes 0", AppendCounter)
	Masquerade = rule("masquerade fully-random", func(b *rawnl.Batch) {
		appendNumbers(b, "masq", attrMasqFlags, natFullyRandom)
	})
	ResetTCP = rule("reject with tcp reset", func(b *rawnl.Batch) {
		appendNumbers(b, "reject", attrRejectType, rejectTCPReset)
	})
)

// Verdict decides about a packet; jump and goto name a chain.
type Verdict struct {
	Code  int32 // such as VerdictDrop
	Chain string
}

func (v Verdict) text() string {
	switch v.Code {
	case VerdictAccept:
		return "accept"
	case VerdictJump:
		return "jump " + v.Chain
	case VerdictGoto:
		return "goto " + v.Chain
	case VerdictReturn:
		return "return"
	}

	return "drop"
}

func (v Verdict) rule() Rule {
	return rule(v.text(), func(b *rawnl.Batch) { AppendVerdict(b, v.Code, v.Chain) })
}

// Jump continues in a chain and returns at its end.
func Jump(chain string) Rule { return Verdict{VerdictJump, chain}.rule() }

// Goto continues in a chain and does not return.
func Goto(chain string) Rule { return Verdict{VerdictGoto, chain}.rule() }

// JHashVMap hashes the selected value and executes the verdict with that number.
func JHashVMap(s Selector, seed uint32, verdicts []Verdict) Rule {
	l := make([]string, len(verdicts))
	for i, v := range verdicts {
		l[i] = fmt.Sprintf("%d : %s", i, v.text())
	}
	n := uint32(len(verdicts))
	return Rule{{
		text: fmt.Sprintf("jhash %s mod %d seed 0x%x vmap { %s }", s.text, n, seed,
			strings.Join(l, ", ")),
		exprs: func(b *rawnl.Batch) {
			s.load(b, register(hashed))
			appendJHash(b, Reg1, hashed, uint32(s.len), n, seed)
		},
		set: &AnonymousSet{Verdicts: verdicts},
	}}
}

// Update puts data into a map under a key, with a timeout of whole seconds. If the key exists, its
// data stay and its timeout starts over. If the map is full, the rule does not match.
func Update(name string, key Concat, timeout time.Duration, data Concat) Rule {
	text := fmt.Sprintf("update @%s { %s timeout %s : %s }", name, key.text(), duration(timeout),
		data.text())
	return rule(text, func(b *rawnl.Batch) {
		end := key.load(b, 0)
		if len(data) == 1 {
			end = (end + 15) &^ 15 // nft gives a single value a long register
		}
		data.load(b, end)
		appendUpdate(b, name, register(end), timeout, nil)
	})
}

// Remember puts a key into a set, with a timeout of whole seconds. If the key exists, its timeout
// starts over. If the set is full, the rule does not match.
func Remember(name string, key Concat, timeout time.Duration) Rule {
	text := fmt.Sprintf("update @%s { %s timeout %s }", name, key.text(), duration(timeout))
	return rule(text, func(b *rawnl.Batch) {
		key.load(b, 0)
		appendUpdate(b, name, 0, timeout, nil)
	})
}

// Count counts packets and bytes of a key in a set. An element expires after the timeout, in whole
// seconds, without a packet. If the set is full, further keys are not counted, and the rule does
// not match.
func Count(name string, key Concat, timeout time.Duration) Rule {
	text := fmt.Sprintf("update @%s { %s timeout %s counter }", name, key.text(),
		duration(timeout))
	return rule(text, func(b *rawnl.Batch) {
		key.load(b, 0)
		appendUpdate(b, name, 0, timeout, func(b *rawnl.Batch) {
			appendCounterAs(b, attrDynsetExpr)
		})
	})
}

// duration writes a duration of whole seconds as nft does: "3h", "1m30s".
func duration(d time.Duration) string {
	var s string
	for _, u := range []struct {
		unit time.Duration
		name string
	}{{24 * time.Hour, "d"}, {time.Hour, "h"}, {time.Minute, "m"}, {time.Second, "s"}} {
		if n := d / u.unit; n > 0 {
			s += fmt.Sprintf("%d%s", n, u.name)
			d -= n * u.unit
		}
	}

	return s
}
