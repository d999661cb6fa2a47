package conntrack

import "github.com/kernlb/kernlb/internal/rawnl"

// parseStats adds the counters of one CPU (IPCTNL_MSG_CT_GET_STATS_CPU) to s.
func (s *Stats) parseStats(attrs []byte) error {
	counters := map[uint16]*uint64{
		attrStatsFound: &s.Found, attrStatsInvalid: &s.Invalid, attrStatsInsert: &s.Inserted,
		attrStatsInsertFailed: &s.InsertFailed, attrStatsDrop: &s.Dropped,
		attrStatsEarlyDrop: &s.EarlyDropped, attrStatsError: &s.Errors,
		attrStatsSearchRestart: &s.SearchRestarts, attrStatsClashResolve: &s.ClashesResolved,
		attrStatsChainTooLong: &s.ChainsTooLong,
	}
	it := rawnl.Attrs(attrs)
	for it.Next() {
		if counter := counters[it.Type()]; counter != nil {
			*counter += uint64(it.U32())
		}
	}
	return it.Err()
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
