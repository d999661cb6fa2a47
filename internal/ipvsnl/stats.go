package ipvsnl

// Stats are the counters of a service or a destination (IPVS_STATS_ATTR_*,
// include/uapi/linux/ip_vs.h). The kernel sums them up every two seconds, the totals too. Rates are
// per second, and smoothed.
type Stats struct {
	Connections uint64 // scheduled so far
	InPackets   uint64 // from clients
	OutPackets  uint64 // to clients; with direct routing and tunnels the kernel does not see them
	InBytes     uint64
	OutBytes    uint64

	ConnectionRate uint64
	InPacketRate   uint64
	OutPacketRate  uint64
	InByteRate     uint64
	OutByteRate    uint64
}

// Attributes of statistics, in the kernel's order.
const (
	statsAttrConns    uint16 = iota + 1 // IPVS_STATS_ATTR_CONNS
	statsAttrInPkts                     // IPVS_STATS_ATTR_INPKTS
	statsAttrOutPkts                    // IPVS_STATS_ATTR_OUTPKTS
	statsAttrInBytes                    // IPVS_STATS_ATTR_INBYTES
	statsAttrOutBytes                   // IPVS_STATS_ATTR_OUTBYTES
	statsAttrCPS                        // IPVS_STATS_ATTR_CPS
	statsAttrInPPS                      // IPVS_STATS_ATTR_INPPS
	statsAttrOutPPS                     // IPVS_STATS_ATTR_OUTPPS
	statsAttrInBPS                      // IPVS_STATS_ATTR_INBPS
	statsAttrOutBPS                     // IPVS_STATS_ATTR_OUTBPS
)

// counter returns the field of s for an attribute type, nil if there is none.
func (s *Stats) counter(typ uint16) *uint64 {
	fields := [...]*uint64{
		&s.Connections, &s.InPackets, &s.OutPackets, &s.InBytes, &s.OutBytes,
		&s.ConnectionRate, &s.InPacketRate, &s.OutPacketRate, &s.InByteRate, &s.OutByteRate,
	}
	if typ == 0 || int(typ) > len(fields) {
		return nil
	}
	return fields[typ-1]
}

// appendStats64 appends s as the attribute typ, IPVS_SVC_ATTR_STATS64 or IPVS_DEST_ATTR_STATS64.
func appendStats64(b []byte, typ uint16, s Stats) []byte {
	b, mark := beginNest(b, typ)
	for at := statsAttrConns; at <= statsAttrOutBPS; at++ {
		b = appendU64(b, at, *s.counter(at))
	}
	return endNest(b, mark)
}

// appendStats appends s as the attribute typ, IPVS_SVC_ATTR_STATS or IPVS_DEST_ATTR_STATS, which
// has 32 bits for all but the bytes so far.
func appendStats(b []byte, typ uint16, s Stats) []byte {
	b, mark := beginNest(b, typ)
	for at := statsAttrConns; at <= statsAttrOutBPS; at++ {
		if at == statsAttrInBytes || at == statsAttrOutBytes {
			b = appendU64(b, at, *s.counter(at))
		} else {
			b = appendU32(b, at, uint32(*s.counter(at)))
		}
	}
	return endNest(b, mark)
}

// decodeStats decodes the attributes inside one of the two attributes of statistics: those of 64
// bits (Linux 4.1) if they are there.
func decodeStats(narrow, wide []byte) (s Stats, err error) {
	a := attrs{what: "statistics", rest: narrow}
	if wide != nil {
		a.rest = wide
	}
	for a.next() {
		if p := s.counter(a.typ); p != nil {
			*p = a.count()
		}
	}
	return s, a.err
}
