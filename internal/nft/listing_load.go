package nft

import (
	"fmt"

	"github.com/kernlb/kernlb/servicemodel"
)

// The expressions in this file load a field of the packet, of its metadata or of its flow.

// payload loads or sets a field of a header, or a part of one.
func (l *listing) payload(f fields) {
	base, offset, n := f.u32(AttrPayloadBase), f.u32(AttrPayloadOffset), f.u32(AttrPayloadLen)
	header := fmt.Sprint(base)
	if names := [...]string{"ll", "nh", "th", "ih"}; int(base) < len(names) {
		header = names[base]
	}
	o := operand{text: fmt.Sprintf("@%s,%d,%d", header, offset*8, n*8)}
	sets, known, ok := f[attrPayloadSReg] != nil, operand{}, false
	switch base {
	case TransportHeader:
		known, ok = l.transportField(offset, n)
	case NetworkHeader:
		known, ok = l.networkField(offset, n)
	}

	if ok {
		o = known
	}
	if sets {
		l.say("%s set %s", o.text, l.take(f.u32(attrPayloadSReg)).text)
		return
	}

	l.load(f.u32(AttrPayloadDReg), o)
}

// Fields of transport headers that rules often match.
const (
	flagsOffset = 13 // of TCP
	icmpTypeLen = 1
)

// transportField is a field of the transport header. If the rule has matched a protocol, the field
// belongs to that protocol.
func (l *listing) transportField(offset, n uint32) (operand, bool) {
	p, name := l.transport.protocol, "th"
	if p.Valid() {
		name = p.String()
	}
	o := operand{kind: valuePort}
	switch {
	case n == 2*portLen && offset == 0: // nft combined two comparisons
		o.text, o.second = name+" sport", name+" dport"
	case n == portLen && offset == 0:
		o.text = name + " sport"
	case n == portLen && offset == dportOffset:
		o.text = name + " dport"
	case p == servicemodel.TCP && offset == flagsOffset && n == 1:
		o = operand{text: "tcp flags", kind: valueTCPFlags}
	case (p == protocolICMP || p == protocolICMPv6) && offset == 0 && n == icmpTypeLen:
		o = operand{text: protocolName(p) + " type", kind: valueICMPType}
		if p == protocolICMPv6 {
			o.text, o.kind = "icmpv6 type", valueICMPv6Type
		}
		l.implied(&l.network)
	default:
		return operand{}, false
	}

	l.implied(&l.transport)
	return o, true
}

// networkField is a field of the network header. In a table of the family inet, the rule first
// matches the family. Without such a match, the length of a whole address shows the family.
func (l *listing) networkField(offset, n uint32) (operand, bool) {
	f := l.network.family
	for _, fam := range Families {
		if f == nil && int(n) == fam.AddrLen {
			f = fam
		}
	}

	if f == nil {
		return operand{}, false
	}
	o := operand{kind: valueAddr, full: f.AddrLen}
	switch {
	case offset == f.SaddrOffset && int(n) == 2*f.AddrLen:
		o.text, o.second, o.full = f.Name+" saddr", f.Name+" daddr", 0
	case f == IPv4 && offset == 9 && n == protocolLen:
		o = operand{text: "ip protocol", kind: valueProtocol, asks: &l.transport}
	case f == IPv6 && offset == 6 && n == protocolLen:
		o = operand{text: "ip6 nexthdr", kind: valueProtocol, asks: &l.transport}
	case offset == f.SaddrOffset && int(n) <= f.AddrLen:
		o.text = f.Name + " saddr"
	case offset == f.DaddrOffset && int(n) <= f.AddrLen:
		o.text = f.Name + " daddr"
	default:
		return operand{}, false
	}

	l.implied(&l.network)
	return o, true
}

const protoInet = 1 // NFPROTO_INET

// metaNames are the keys of meta that rules often match.
var metaNames = map[uint32]operand{
	MetaMark: {text: "meta mark", kind: valueMark}, 4: {text: "iif", kind: valueInterface},
	5: {text: "oif", kind: valueInterface}, MetaIIFName: {text: "iifname", kind: valueName},
	7: {text: "oifname", kind: valueName}, 10: {text: "meta skuid", kind: valueNumber},
	11: {text: "meta skgid", kind: valueNumber}, metaNFTrace: {text: "meta nftrace",
		kind: valueSmall}, metaNFProto: {text: "meta nfproto", kind: valueFamily},
	MetaL4Proto: {text: "meta l4proto", kind: valueProtocol}, 17: {text: "iifname (bridge)"},
}

func (l *listing) meta(f fields) {
	o, known := metaNames[f.u32(AttrMetaKey)]
	if !known {
		o.text = fmt.Sprintf("meta key %d", f.u32(AttrMetaKey))
	}
	if sreg, sets := f[attrMetaSReg]; sets && len(sreg) == 4 {
		v := l.take(f.u32(attrMetaSReg))
		if v.raw != nil {
			v.text = o.value(v.raw)
		}
		l.say("%s set %s", o.text, v.text)
		return
	}

	switch f.u32(AttrMetaKey) {
	case metaNFProto:
		o.asks = &l.network
	case MetaL4Proto:
		o.asks = &l.transport
	}

	l.load(f.u32(AttrMetaDReg), o)
}

// ctNames are the keys of ct that rules often match.
var ctNames = map[uint32]operand{
	ctState: {text: "state", kind: valueCTState}, ctDirection: {text: "direction"},
	ctStatus: {text: "status", kind: valueCTStatus}, 3: {text: "mark", kind: valueMark},
	ctProtocol: {text: "protocol", kind: valueProtocol},
	ctProtoSrc: {text: "proto-src", kind: valuePort},
	ctProtoDst: {text: "proto-dst", kind: valuePort}, ctSrcIP: {text: "ip saddr", kind: valueAddr},
	ctDstIP: {text: "ip daddr", kind: valueAddr}, ctSrcIP6: {text: "ip6 saddr", kind: valueAddr},
	ctDstIP6: {text: "ip6 daddr", kind: valueAddr},
}

func (l *listing) ct(f fields) {
	o, known := ctNames[f.u32(attrCTKey)]
	if !known {
		o.text = fmt.Sprintf("key %d", f.u32(attrCTKey))
	}
	direction := ""
	if d := f[attrCTDirection]; len(d) == 1 {
		direction = [...]string{"original ", "reply "}[d[0]&1]
	}
	o.text = "ct " + direction + o.text
	l.load(f.u32(attrCTDReg), o)
}

func (l *listing) fib(f fields) {
	which := "saddr"
	if f.u32(attrFIBFlags)&fibDaddr != 0 {
		which = "daddr"
	}
	if f.u32(attrFIBResult) == fibInterface {
		l.load(f.u32(attrFIBDReg), operand{text: "fib " + which + " . iif oif exists"})
		return
	}

	l.load(f.u32(attrFIBDReg), operand{text: "fib " + which + " type", kind: valueAddrType})
}
