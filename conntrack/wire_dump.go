package conntrack

import "github.com/kernlb/kernlb/internal/nfnl"

// appendDump appends the request for a dump of the table.
func appendDump(b *nfnl.Batch, d dumpRequest) {
	b.Message(nfnl.SubsysConntrack, msgGet, 0, uint8(d.family), 0,
		nfnl.Object{Verb: "dump", Kind: "flows"})
	if d.statusMask != 0 {
		b.U32(attrStatus, uint32(d.status))
		b.U32(attrStatusMask, uint32(d.statusMask))
	}
	if d.markMask != 0 {
		b.U32(attrMark, d.mark)
		b.U32(attrMarkMask, d.markMask)
	}
	if d.zone != nil {
		b.U16(attrZone, *d.zone)
	}
	if !d.filtersTuple() {
		return
	}
	typ, flagsType := attrTupleOrig, attrFilterOrig
	if d.reply {
		typ, flagsType = attrTupleReply, attrFilterReply
	}
	flags := appendTupleFilter(b, typ, d)
	filter := b.Nest(attrFilter)
	b.NativeU32(flagsType, flags) // alone here in not being in network byte order
	b.End(filter)
}

// appendTupleFilter appends the tuple to compare with and returns the flags that say what of it
// counts.
func appendTupleFilter(b *nfnl.Batch, typ uint16, d dumpRequest) (flags uint32) {
	tuple := b.Nest(typ)
	ip := b.Nest(attrTupleIP)
	appendAddrs(b, d.src, d.dst)
	b.End(ip)
	if d.src.IsValid() {
		flags |= filterIPSrc
	}
	if d.dst.IsValid() {
		flags |= filterIPDst
	}
	if d.protocol != 0 {
		proto := b.Nest(attrTupleProto)
		flags |= filterProto
		b.U8(attrProtoNum, uint8(d.protocol))
		if d.srcPort != 0 {
			flags |= filterSrcPort
			b.U16(attrProtoSrcPort, d.srcPort)
		}
		if d.dstPort != 0 {
			flags |= filterDstPort
			b.U16(attrProtoDstPort, d.dstPort)
		}
		b.End(proto)
	}
	b.End(tuple)
	return flags
}
