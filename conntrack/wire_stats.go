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
