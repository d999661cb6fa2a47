package flows

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/dataplane/counters"
	"github.com/kernlb/kernlb/servicemodel"
)

// Counters reads counters of services from the conntrack table: the number of flows, their packets
// and their bytes. The kernel counts packets and bytes only if the sysctl nf_conntrack_acct is on.
// Unlike other counters, these decrease when a flow ends.
type Counters struct {
	// Table is the conntrack table, such as a *conntrack.Table.
	Table Lister
}

// Lister lists flows.
type Lister interface {
	Flows(ctx context.Context, f conntrack.Filter) iter.Seq2[conntrack.Flow, error]
}

var _ counters.Source = Counters{}

// Read reads the whole table. This takes about a second of CPU for a million flows. If the kernel
// did not count packets, the reading contains only connections.
func (c Counters) Read(ctx context.Context) (*counters.Reading, error) {
	if c.Table == nil {
		return nil, errors.New("flows: count: no conntrack table")
	}
	r := &counters.Reading{Pairs: map[counters.Pair]counters.Values{}, OnlyConnections: true}
	for f, err := range c.Table.Flows(ctx, conntrack.Filter{}) {
		if err != nil {
			return nil, fmt.Errorf("flows: count: %w", err)
		}
		if !f.Translated() {
			continue
		}
		p := counters.Pair{Protocol: servicemodel.Protocol(f.Protocol), Dst: f.Original.Dst,
			Endpoint: f.Reply.Src}
		in, out := f.OriginalCount, f.ReplyCount
		r.OnlyConnections = r.OnlyConnections && in.Packets == 0
		r.Pairs[p] = r.Pairs[p].Plus(counters.Values{Connections: 1, PacketsIn: in.Packets,
			BytesIn: in.Bytes, PacketsOut: out.Packets, BytesOut: out.Bytes})
	}

	return r, nil
}
