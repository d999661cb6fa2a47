package conntrack_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	. "github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/conntrack/mirror"
	. "github.com/kernlb/kernlb/internal/test/cttest"
)

// way is a way to clean. All ways must have the same result.
type way struct {
	name      string
	mirrored  bool
	protocols []Protocol
	late      bool // the mirror begins after the flows, and lists them
	mixed     bool // some frontends have protocols that the mirror does not note
}

var ways = []way{
	{name: "by a pass"},
	{name: "by events", mirrored: true},
	{name: "by a list", mirrored: true, late: true},
	{name: "by events of three protocols", mirrored: true, protocols: []Protocol{TCP, UDP, SCTP}},
}

// wayCleaner cleans in one way.
type wayCleaner struct {
	way
	table *Table
	index *mirror.Mirror
}

// begin must be called before there are flows.
func (w way) begin(t *testing.T, table *Table) *wayCleaner {
	t.Helper()
	c := &wayCleaner{way: w, table: table}
	if w.mirrored && !w.late {
		c.index = startMirror(t, table, &mirror.Config{Protocols: w.protocols})
	}
	return c
}

func (c *wayCleaner) clean(t *testing.T, m *Matcher, opts CleanOptions) CleanResult {
	t.Helper()
	if c.mirrored && c.index == nil {
		c.index = startMirror(t, c.table, &mirror.Config{Protocols: c.protocols})
	}
	if c.mirrored {
		opts.Index = c.index
	}
	got := OK(c.table.Clean(context.Background(), m, opts))(t)
	if c.mirrored && (!c.mixed || len(c.protocols) == 3) {
		require.Zero(t, got.Dumps, "the mirror knows")
	}
	return got
}

// startMirror returns a mirror that knows all flows, and runs until the test ends.
func startMirror(t testing.TB, table *Table, cfg *mirror.Config) *mirror.Mirror {
	t.Helper()
	x := OK(mirror.New(table, cfg))(t)
	RunMirror(t, table, x)
	WaitFor(t, func() bool { return x.Stats().Synced })
	return x
}
