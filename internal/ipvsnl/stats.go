package ipvsnl

import (
	"fmt"

	"github.com/kernlb/kernlb/internal/rawnl"
)

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
	StatsAttrConns    uint16 = iota + 1 // IPVS_STATS_ATTR_CONNS
	StatsAttrInPkts                     // IPVS_STATS_ATTR_INPKTS
	StatsAttrOutPkts                    // IPVS_STATS_ATTR_OUTPKTS
	StatsAttrInBytes                    // IPVS_STATS_ATTR_INBYTES
	StatsAttrOutBytes                   // IPVS_STATS_ATTR_OUTBYTES
	StatsAttrCPS                        // IPVS_STATS_ATTR_CPS
	StatsAttrInPPS                      // IPVS_STATS_ATTR_INPPS
	StatsAttrOutPPS                     // IPVS_STATS_ATTR_OUTPPS
	StatsAttrInBPS                      // IPVS_STATS_ATTR_INBPS
	StatsAttrOutBPS                     // IPVS_STATS_ATTR_OUTBPS
)

// Counter returns the field of s for an attribute type, nil if there is none.
func (s *Stats) Counter(typ uint16) *uint64 {
	fields := [...]*uint64{
		&s.Connections, &s.InPackets, &s.OutPackets, &s.InBytes, &s.OutBytes,
		&s.ConnectionRate, &s.InPacketRate, &s.OutPacketRate, &s.InByteRate, &s.OutByteRate,
	}
	if typ == 0 || int(typ) > len(fields) {
		return nil
	}
	return fields[typ-1]
}

// parseStats parses the attributes inside one of the two attributes of statistics: those of 64 bits
// (Linux 4.1) if they are there.
func parseStats(narrow, wide []byte) (s Stats, err error) {
	it := rawnl.Attrs(narrow)
	if wide != nil {
		it = rawnl.Attrs(wide)
	}
	for it.Next() {
		if p := s.Counter(it.Type()); p != nil {
			*p = count(&it)
		}
	}
	if err = it.Err(); err != nil {
		err = fmt.Errorf("statistics: %w", err)
	}
	return s, err
}

// finish ends the walk over the attributes of an object, which says what it is, with those of its
// statistics.
func finish(it *rawnl.AttrIter, what string, narrow, wide []byte) (s Stats, err error) {
	if err = it.Err(); err == nil {
		s, err = parseStats(narrow, wide)
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", what, err)
	}
	return s, err
}
