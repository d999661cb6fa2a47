package conntrack

import "github.com/kernlb/kernlb/internal/rawnl"

// parseStats adds the counters of one CPU (IPCTNL_MSG_CT_GET_STATS_CPU) to s.
func (s *Stats) parseStats(attrs []byte) error {
	it := rawnl.Attrs(attrs)
	for it.Next() {
		if counter := s.counter(it.Type()); counter != nil {
			*counter += uint64(it.U32())
		}
	}
	return it.Err()
}

func (s *Stats) counter(typ uint16) *uint64 {
	switch typ {
	case attrStatsFound:
		return &s.Found
	case attrStatsInvalid:
		return &s.Invalid
	case attrStatsInsert:
		return &s.Inserted
	case attrStatsInsertFailed:
		return &s.InsertFailed
	case attrStatsDrop:
		return &s.Dropped
	case attrStatsEarlyDrop:
		return &s.EarlyDropped
	case attrStatsError:
		return &s.Errors
	case attrStatsSearchRestart:
		return &s.SearchRestarts
	case attrStatsClashResolve:
		return &s.ClashesResolved
	case attrStatsChainTooLong:
		return &s.ChainsTooLong
	}
	return nil
}

// parseEntries parses the answer to IPCTNL_MSG_CT_GET_STATS. Before Linux 4.19 it has no maximum,
// and limit is 0.
func parseEntries(attrs []byte) (entries, limit uint32, err error) {
	it := rawnl.Attrs(attrs)
	for it.Next() {
		switch it.Type() {
		case attrStatsEntries:
			entries = it.U32()
		case attrStatsMaxEntries:
			limit = it.U32()
		}
	}
	return entries, limit, it.Err()
}
