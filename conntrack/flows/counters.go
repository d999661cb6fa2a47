package flows

import (
	"context"
	"fmt"
	"iter"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/dataplane/counters"
	"github.com/kernlb/kernlb/servicemodel"
)

// Counters are what conntrack has of services: how many flows there are, and how many packets and
// bytes these have had, which the kernel counts if the sysctl nf_conntrack_acct is on. Unlike other
// counters, what they say of a frontend becomes less when a flow ends.
type Counters struct {
	// Table is asked for its flows, as *conntrack.Table is.
	Table interface {
		Flows(ctx context.Context, f conntrack.Filter) iter.Seq2[conntrack.Flow, error]
	}
}

var _ counters.Source = Counters{}

// Read reads the whole table, which takes about a second of CPU for a million flows. If no flow has
// counted packets, the reading has connections only.
func (c Counters) Read(ctx context.Context) (*counters.Reading, error) {
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
