package conntrack

import "github.com/kernlb/kernlb/internal/rawnl"

// appendDump appends the request for a dump of the table.
func appendDump(b *rawnl.Batch, d dumpRequest) {
	b.Message(rawnl.SubsysConntrack, msgGet, 0, uint8(d.Family), 0,
		rawnl.Object{Verb: "dump", Kind: "flows"})
	if d.StatusMask != 0 {
		b.U32(attrStatus, uint32(d.Status))
		b.U32(attrStatusMask, uint32(d.StatusMask))
	}

	if d.MarkMask != 0 {
		b.U32(attrMark, d.Mark)
		b.U32(attrMarkMask, d.MarkMask)
	}

	if d.Zone != nil {
		b.U16(attrZone, *d.Zone)
	}
	if !d.filtersTuple() {
		return
	}
	typ, flagsType := attrTupleOrig, attrFilterOrig
	if d.Reply {
		typ, flagsType = attrTupleReply, attrFilterReply
	}
	flags := appendTupleFilter(b, typ, d)
	filter := b.Nest(attrFilter)
	b.NativeU32(flagsType, flags) // the only number here that is not in network byte order
	b.End(filter)
}

// appendTupleFilter appends the tuple for the comparison. It returns the flags that select the
// fields to compare.
func appendTupleFilter(b *rawnl.Batch, typ uint16, d dumpRequest) (flags uint32) {
	tuple := b.Nest(typ)
	ip := b.Nest(attrTupleIP)
	appendAddrs(b, d.Src, d.Dst)
	b.End(ip)
	if d.Src.IsValid() {
		flags |= filterIPSrc
	}
	if d.Dst.IsValid() {
		flags |= filterIPDst
	}
	if d.Protocol != 0 {
		proto := b.Nest(attrTupleProto)
		flags |= filterProto
		b.U8(attrProtoNum, uint8(d.Protocol))
		if d.SrcPort != 0 {
			flags |= filterSrcPort
			b.U16(attrProtoSrcPort, d.SrcPort)
		}

		if d.DstPort != 0 {
			flags |= filterDstPort
			b.U16(attrProtoDstPort, d.DstPort)
		}

		b.End(proto)
	}

	b.End(tuple)
	return flags
}
