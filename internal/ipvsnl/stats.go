package ipvsnl

import "github.com/kernlb/kernlb/internal/rawnl"

// Stats are the counters of a service or a destination (IPVS_STATS_ATTR_*,
// include/uapi/linux/ip_vs.h). The kernel updates all of them every two seconds. It also sends
// rates, which no caller needs.
type Stats struct {
	Connections uint64 // scheduled so far
	InPackets   uint64 // from clients
	OutPackets  uint64 // to clients; with direct routing and tunnels the kernel does not see them
	InBytes     uint64
	OutBytes    uint64
}

// Attributes of statistics, in the kernel's order.
const (
	StatsAttrConns    uint16 = iota + 1 // IPVS_STATS_ATTR_CONNS
	StatsAttrInPkts                     // IPVS_STATS_ATTR_INPKTS
	StatsAttrOutPkts                    // IPVS_STATS_ATTR_OUTPKTS
	StatsAttrInBytes                    // IPVS_STATS_ATTR_INBYTES
	StatsAttrOutBytes                   // IPVS_STATS_ATTR_OUTBYTES
)

// Counter returns the field of s for an attribute type, nil if there is none.
func (s *Stats) Counter(typ uint16) *uint64 {
	fields := [...]*uint64{&s.Connections, &s.InPackets, &s.OutPackets, &s.InBytes, &s.OutBytes}
	if typ == 0 || int(typ) > len(fields) {
		return nil
	}
	return fields[typ-1]
}

// stats parses the statistics in an attribute. Linux 4.1 and newer have an attribute whose numbers
// have 64 bits, beside one where most have 32 bits.
func stats(it *rawnl.AttrIter) (s Stats) {
	inner := rawnl.Attrs(it.Data())
	for inner.Next() {
		if p := s.Counter(inner.Type()); p != nil {
			*p = inner.NativeU64()
		}
	}
	if err := inner.Err(); err != nil {
		it.Fail("has statistics that are malformed: %v", err)
	}
	return s
}
