package conntrack_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	. "github.com/kernlb/kernlb/conntrack"
	. "github.com/kernlb/kernlb/conntrack/internal/cttest"
	"github.com/kernlb/kernlb/conntrack/mirror"
)

// way is a way to clean. The outcome must be the same.
type way struct {
	name      string
	mirrored  bool
	protocols []Protocol
	late      bool // the mirror begins when there are flows, and finds them in a list
	mixed     bool // there are frontends of protocols that the mirror does not note
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

// begin is to be called before there are flows.
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
	got, err := c.table.Clean(context.Background(), m, opts)
	require.NoError(t, err)
	if c.mirrored && (!c.mixed || len(c.protocols) == 3) {
		require.Zero(t, got.Dumps, "the mirror knows")
	}
	return got
}

// startMirror returns a mirror that knows all flows, and runs until the test ends.
func startMirror(t testing.TB, table *Table, cfg *mirror.Config) *mirror.Mirror {
	t.Helper()
	x, err := mirror.New(table, cfg)
	require.NoError(t, err)
	RunMirror(t, table, x)
	WaitFor(t, func() bool { return x.Stats().Synced })
	return x
}
