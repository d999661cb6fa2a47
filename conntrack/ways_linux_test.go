package conntrack

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
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
	table  *Table
	mirror *Mirror
}

// begin is to be called before there are flows.
func (w way) begin(t *testing.T, table *Table) *wayCleaner {
	t.Helper()
	c := &wayCleaner{way: w, table: table}
	if w.mirrored && !w.late {
		c.mirror = startMirror(t, table, MirrorOptions{Protocols: w.protocols})
	}
	return c
}

func (c *wayCleaner) clean(t *testing.T, m *Matcher, opts CleanOptions) CleanResult {
	t.Helper()
	if !c.mirrored {
		got, err := c.table.Clean(context.Background(), m, opts)
		require.NoError(t, err)
		return got
	}
	if c.mirror == nil {
		c.mirror = startMirror(t, c.table, MirrorOptions{Protocols: c.protocols})
	}
	got, err := c.mirror.Clean(context.Background(), m, opts)
	require.NoError(t, err)
	if !c.mixed || len(c.protocols) == 3 {
		require.Zero(t, got.Dumps, "the mirror knows")
	}
	return got
}

// startMirror returns a mirror that is in step, until the test ends.
func startMirror(t testing.TB, table *Table, o MirrorOptions) *Mirror {
	t.Helper()
	x, err := NewMirror(table, o)
	require.NoError(t, err)
	runMirror(t, x)
	waitSynced(t, x)
	return x
}

// runMirror runs a mirror until the test ends, or the function it returns is called.
func runMirror(t testing.TB, x *Mirror) (stop func()) {
	t.Helper()
	if err := x.checkEvents(context.Background()); err != nil {
		// before Linux 5.19, user namespaces do not see the setting
		t.Skipf("the kernel makes no events in this namespace: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- x.Run(ctx) }()
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			cancel()
			require.NoError(t, <-done)
		}
	}
	t.Cleanup(stop)
	return stop
}

func waitSynced(t testing.TB, x *Mirror) {
	t.Helper()
	require.Eventually(t, func() bool { return x.Stats().Synced }, 5*time.Minute, time.Millisecond)
}
