package kubeproxy

import (
	"cmp"
	"encoding/binary"
	"net/netip"

	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

// rule is the part of a rule that matters to frontends: its matches, and the destination of
// matching packets. Other conditions and statements are left out.
type rule struct {
	comment  string
	protocol servicemodel.Protocol
	port     uint16     // the destination port, or 0
	addr     netip.Addr // the destination address, or invalid
	within   bool       // the destination is in a range
	sourced  bool       // only packets from some address or interface

	chain  string         // the target of a jump or goto, or ""
	lookup string         // the map that has a verdict or an endpoint for each packet, or ""
	to     netip.AddrPort // the new destination, or invalid
}

// decodeRule decodes a rule of nf_tables, including rules of iptables-nft.
func decodeRule(f *nft.Family, info nft.RuleInfo) rule {
	d := decoder{family: f, loaded: map[uint32]operand{}}
	nft.EachExpr(info.Exprs, func(e nft.ExprInfo) bool {
		if kind := kinds[string(e.Name)]; kind != nil {
			into := kind()
			if expr.Unmarshal(f.NFProto, e.Attrs, into) == nil {
				d.add(into, e.Attrs)
			}
		}

		return true
	})

	d.comment = cmp.Or(d.comment, nft.CommentOf(info.UserData))
	return d.rule
}

// kinds return an empty expression of each kind that [decoder.add] knows.
var kinds = map[string]func() expr.Any{
	"payload":   empty[expr.Payload],
	"meta":      empty[expr.Meta],
	"fib":       empty[expr.Fib],
	"bitwise":   empty[expr.Bitwise],
	"immediate": empty[expr.Immediate],
	"cmp":       empty[expr.Cmp],
	"lookup":    empty[expr.Lookup],
	"nat":       empty[expr.NAT],
	"match":     empty[expr.Match],
	"target":    empty[expr.Target],
}

func empty[T any, E interface {
	*T
	expr.Any
}]() expr.Any {
	return E(new(T))
}

// decoder decodes the expressions of a rule, one after the other.
type decoder struct {
	rule
	family *nft.Family
	loaded map[uint32]operand // by register
}

// operand is the content of a register: a value, or the expression that loads it.
type operand struct {
	from   expr.Any
	masked bool
}

// add adds an expression, which has these attributes.
func (d *decoder) add(e expr.Any, attrs []byte) {
	switch e := e.(type) {
	case *expr.Payload:
		d.loaded[e.DestRegister] = operand{from: e}
	case *expr.Meta:
		d.loaded[e.Register] = operand{from: e}
	case *expr.Fib:
		d.loaded[e.Register] = operand{from: e}
	case *expr.Bitwise:
		d.loaded[e.DestRegister] = operand{d.loaded[e.SourceRegister].from, true}
	case *expr.Immediate:
		var v expr.Verdict
		if e.Register == unix.NFT_REG_VERDICT && expr.Unmarshal(0, attrs, &v) == nil {
			d.chain = v.Chain
		}
		d.loaded[e.Register] = operand{from: e}
	case *expr.Cmp:
		d.compare(d.loaded[e.Register], e)
	case *expr.Lookup:
		d.compare(d.loaded[e.SourceRegister], nil)
		if e.IsDestRegSet {
			d.lookup = e.SetName
		}
	case *expr.NAT:
		addr, _ := d.loaded[e.RegAddrMin].from.(*expr.Immediate)
		port, _ := d.loaded[e.RegProtoMin].from.(*expr.Immediate)
		if addr != nil && port != nil && len(port.Data) == 2 {
			d.translate(addr.Data, binary.BigEndian.Uint16(port.Data))
		}
	case *expr.Match:
		d.match(e)
	case *expr.Target:
		// The revision 2 of DNAT came with Linux 4.18, and iptables-nft writes no older revision.
		if info, ok := e.Info.(*xt.NatRange2); ok {
			d.translate(info.MinIP, info.MinPort)
		}
	}
}

// compare adds a comparison of an operand with a value, or with something else if c is nil.
func (d *decoder) compare(o operand, c *expr.Cmp) {
	equal := c != nil && c.Op == expr.CmpOpEq && !o.masked
	switch from := o.from.(type) {
	case *expr.Fib:
		d.sourced = d.sourced || from.FlagSADDR
	case *expr.Meta:
		switch {
		case from.Key == expr.MetaKeyIIF || from.Key == expr.MetaKeyIIFNAME:
			d.sourced = true
		case from.Key == expr.MetaKeyL4PROTO && equal && len(c.Data) == 1:
			d.protocol = servicemodel.Protocol(c.Data[0])
		}
	case *expr.Payload:
		d.compareHeader(from, equal, c)
	}
}

// compareHeader adds a comparison with a field of a header.
func (d *decoder) compareHeader(p *expr.Payload, equal bool, c *expr.Cmp) {
	source, protocol := uint32(12), uint32(9) // struct iphdr
	if d.family == nft.IPv6 {
		source, protocol = 8, 6 // struct ipv6hdr
	}
	length := uint32(d.family.AddrLen)
	switch network := p.Base == expr.PayloadBaseNetworkHeader; {
	case network && p.Offset >= source && p.Offset < source+length:
		d.sourced = true
	case network && p.Offset == source+length:
		addr, full := netip.Addr{}, false
		if equal && p.Len == length {
			addr, full = netip.AddrFromSlice(c.Data)
		}
		d.addr, d.within = addr, !full
	case network && p.Offset == protocol && equal && len(c.Data) == 1:
		d.protocol = servicemodel.Protocol(c.Data[0])
	case p.Base == expr.PayloadBaseTransportHeader && p.Offset == 2 && equal && len(c.Data) == 2:
		d.port = binary.BigEndian.Uint16(c.Data)
	}
}

func (d *decoder) match(m *expr.Match) {
	ports := func(p servicemodel.Protocol, least, most uint16) {
		d.protocol = p
		if least == most {
			d.port = least
		}
	}

	switch info := m.Info.(type) {
	case *xt.Comment:
		d.comment = string(*info)
	case *xt.AddrTypeV1:
		d.sourced = d.sourced || info.Source != 0
	case *xt.Tcp:
		ports(servicemodel.TCP, info.DstPorts[0], info.DstPorts[1])
	case *xt.Udp:
		ports(servicemodel.UDP, info.DstPorts[0], info.DstPorts[1])
	case *xt.Unknown: // struct xt_sctp_info begins with the destination ports
		if b := *info; m.Name == "sctp" && len(b) >= 4 {
			ports(servicemodel.SCTP, binary.NativeEndian.Uint16(b),
				binary.NativeEndian.Uint16(b[2:]))
		}
	}
}

func (d *decoder) translate(ip []byte, port uint16) {
	if addr, ok := netip.AddrFromSlice(ip); ok {
		d.to = netip.AddrPortFrom(addr, port)
	}
}
