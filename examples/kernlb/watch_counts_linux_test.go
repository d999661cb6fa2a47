package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/internal/test/must"
	"github.com/kernlb/kernlb/nftables"
)

// Services that ask for least connections get shares, without a flag.
func TestWatchCountsConnections(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "-backend", "nftables")
	w.write("a.yaml", serviceManifest("a", "10.96.0.1",
		"annotations: {kernlb.io/scheduler: lc}", ""))
	w.start()
	w.holds("10.96.0.1")
	backend := must.OK(nftables.New(&nftables.Config{NetNS: w.ns.NetNS()}))(t)
	defer backend.Close()
	require.Eventually(t, func() bool {
		o, err := backend.Observe(t.Context(), nil)
		if err != nil {
			require.ErrorIs(t, err, kernelerr.ErrConflict, "a commit interrupted it")
			return false
		}
		for p := range o.Table.Pools() {
			return p.UnitCounts() != nil
		}
		return false
	}, time.Minute, 50*time.Millisecond, w.log)
}
