package conntrack

import (
	"context"
	"errors"
	"fmt"

	"github.com/kernlb/kernlb/internal/rawnl"
)

// Usage reports how full the table is, and counts the consequences of a full table.
type Usage struct {
	// Count is the number of flows in this network namespace.
	Count uint32 `json:"count"`
	// Max is nf_conntrack_max: one number for the machine, which applies to each namespace
	// separately. 0 means no limit or, before Linux 4.18, that the limit is unknown.
	Max uint32 `json:"max"`
	// Stats are counters since the namespace was created.
	Stats Stats `json:"stats"`
}

// Fraction is Count divided by Max: the figure to alert on. From about 0.95 on, the kernel starts
// to evict flows that are not [StatusAssured]. At 1 it drops new connections. If there is no limit,
// Fraction is 0.
func (u Usage) Fraction() float64 {
	if u.Max == 0 {
		return 0
	}
	return float64(u.Count) / float64(u.Max)
}

// Advice tells an administrator how to find out what fills the table, and how to double its size.
func (u Usage) Advice() string {
	return fmt.Sprintf("kernlb flows shows who uses it; sysctl -w "+
		"net.netfilter.nf_conntrack_max=%d, or kernlb tune -plan", 2*uint64(u.Max))
}

// Stats are event counters, summed over all CPUs. The kernel uses 32-bit counters on each CPU,
// which wrap around.
type Stats struct {
	Found    uint64 `json:"found"`    // found: unexpected hits of lookups
	Invalid  uint64 `json:"invalid"`  // invalid: packets that could not be tracked
	Inserted uint64 `json:"inserted"` // insert: flows that programs added to the table
	// insert_failed: flows not put into the table, because another flow had taken their tuple
	InsertFailed uint64 `json:"insertFailed"`
	// Dropped counts packets lost because the table was full, or because of a clash that could not
	// be resolved. Alert when it grows.
	Dropped uint64 `json:"dropped"` // drop
	// EarlyDropped counts flows that were evicted to make room. It grows some time before Dropped
	// does.
	EarlyDropped uint64 `json:"earlyDropped"` // early_drop
	Errors       uint64 `json:"errors"`       // error: ICMP errors that could not be tracked
	// search_restart: lookups restarted because the table changed
	SearchRestarts  uint64 `json:"searchRestarts"`
	ClashesResolved uint64 `json:"clashesResolved"` // clash_resolve, since Linux 5.6
	// chaintoolong, since Linux 5.15: flows not inserted because their hash bucket was full
	ChainsTooLong uint64 `json:"chainsTooLong"`
}

// Usage reads how full the table is.
func (t *Table) Usage(ctx context.Context) (Usage, error) {
	u, err := t.usage(ctx)
	if err != nil {
		return Usage{}, fmt.Errorf("read the usage of the conntrack table: %w", explain(err))
	}
	return u, nil
}

func (t *Table) usage(ctx context.Context) (u Usage, err error) {
	var b rawnl.Batch
	b.Message(rawnl.SubsysConntrack, msgGetStats, 0, 0, 0,
		rawnl.Object{Verb: "get", Kind: "table usage"})
	replies, err := t.conn.Query(ctx, &b)
	if err != nil {
		return u, err
	}
	if len(replies) == 0 {
		return u, errors.New("the kernel did not answer")
	}
	it := rawnl.Attrs(replies[0].Attrs)
	for it.Next() {
		switch it.Type() {
		case attrStatsEntries:
			u.Count = it.U32()
		case attrStatsMaxEntries: // since Linux 4.18
			u.Max = it.U32()
		}
	}

	if err := it.Err(); err != nil {
		return u, err
	}
	b.Reset()
	b.Message(rawnl.SubsysConntrack, msgGetStatsCPU, 0, 0, 0,
		rawnl.Object{Verb: "dump", Kind: "conntrack statistics"})
	return u, t.conn.Dump(ctx, &b, func(m rawnl.Message) error {
		return u.Stats.parseStats(m.Attrs)
	})
}
