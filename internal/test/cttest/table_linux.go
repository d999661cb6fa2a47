package cttest

//lint:file-ignore ST1001 helpers read like the tests that they serve, which import the package so

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	. "github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/test/nstest"
	"github.com/stretchr/testify/require"
)

// NewTable returns the table of a fresh namespace.
func NewTable(tb testing.TB) (*Table, *netnstest.NS) {
	tb.Helper()
	ns := nstest.New(tb)
	return OpenTable(tb, ns), ns
}

// OpenTable opens the table of a namespace.
func OpenTable(tb testing.TB, ns *netnstest.NS) *Table {
	tb.Helper()
	table, err := Open(&Config{NetNS: ns.NetNS()})
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, table.Close()) })
	return table
}

// Create creates flows. A flow without a timeout gets ten minutes.
func Create(tb testing.TB, table *Table, flows ...Flow) {
	tb.Helper()
	for i := range flows {
		if flows[i].Timeout == 0 {
			flows[i].Timeout = 10 * time.Minute
		}
	}

	c, err := table.Create(context.Background(), All(flows...))
	require.NoError(tb, err)
	require.Equal(tb, len(flows), c)
}

// List returns the flows that match a filter.
func List(tb testing.TB, table *Table, filter Filter) []Flow {
	tb.Helper()
	var all []Flow
	for f, err := range table.Flows(context.Background(), filter) {
		require.NoError(tb, err)
		all = append(all, f)
	}

	return all
}

// RandomFlows returns flows that differ in their tuples.
func RandomFlows(r *rand.Rand, n int) []Flow {
	seen := map[[2]Tuple]bool{}
	var flows []Flow
	for len(flows) < n {
		f := RandomFlow(r)
		f.Original.Src = netip.AddrPortFrom(f.Original.Src.Addr(), uint16(1024+len(flows)))
		f.Reply.Dst = f.Original.Src
		if r.IntN(3) == 0 {
			f.Reply.Dst = netip.AddrPortFrom(f.Reply.Dst.Addr().Next(), f.Original.Src.Port())
		}
		f.Status &= StatusAssured
		f.Timeout = 10 * time.Minute
		if f.Protocol == TCP {
			f.TCP = TCPEstablished
		}
		if seen[[2]Tuple{f.Original, f.Reply}] {
			continue
		}
		seen[[2]Tuple{f.Original, f.Reply}] = true
		flows = append(flows, f)
	}

	return flows
}
