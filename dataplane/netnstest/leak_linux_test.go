package netnstest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
)

// openFiles counts the file descriptors of this process.
func openFiles(tb testing.TB) int {
	tb.Helper()
	entries := ok(os.ReadDir("/proc/self/fd"))(tb)
	return len(entries)
}

// linkCount counts the links of a namespace.
func linkCount(tb testing.TB, ns *NS) int {
	tb.Helper()
	w := newWiring()
	defer w.close()
	count := 0
	w.do(ns, func(h *netlink.Handle) error {
		var err error = netlink.ErrDumpInterrupted // by a link that is removed
		for errors.Is(err, netlink.ErrDumpInterrupted) {
			var links []netlink.Link
			links, err = h.LinkList()
			count = len(links)
		}

		return err
	}, "list links")

	require.NoError(tb, w.err)
	return count
}

// use creates everything in a cluster that could leave something behind.
func use(tb testing.TB, c *Cluster) {
	tb.Helper()
	serveAll(tb, c, 8080)
	var probes []Probe
	for _, h := range c.Hosts() {
		for _, proto := range Protocols() {
			for _, port := range []uint16{8080, 9} {
				probes = append(probes,
					Probe{From: h, Proto: proto, To: netip.AddrPortFrom(c.Pods[0].IPv6, port)})
			}
		}
	}

	SendAll(context.Background(), probes)
	ok(OpenConns(context.Background(), c.Outside[0], netip.AddrPortFrom(c.Pods[0].IPv4,
		8080), 50))(tb)
}

// This test does not run in parallel with other tests, because it counts resources of the process.
func TestClosingAClusterLeavesNothing(t *testing.T) {
	Require(t)

	// Each namespace of a cluster has a link whose other end is here, and which vanishes only with
	// that namespace.
	witness := ok(NewNS("witness"))(t)
	defer witness.Close() //nolint:errcheck // tested elsewhere
	files, goroutines, links := openFiles(t), runtime.NumGoroutine(), linkCount(t, witness)
	for round, opts := range []Options{{}, {Bridge: "cni0"}} {
		c := ok(New(context.Background(), opts))(t)
		w := newWiring()
		for i, ns := range c.namespaces {
			w.veth(iface{witness, fmt.Sprintf("w%d.%d", round, i)}, iface{ns, "witness"})
		}
		w.close()
		require.NoError(t, w.err)
		use(t, c)
		require.GreaterOrEqual(t, linkCount(t, witness), links+len(c.namespaces))
		require.NoError(t, c.Close())
		require.NoError(t, c.Close(), "closing twice is no error")
	}

	// One kernel worker removes the namespaces of the whole machine (cleanup_net), in batches.
	const cleanup = 4 * patience
	require.Eventually(t, func() bool {
		return linkCount(t, witness) == links
	}, cleanup, 10*time.Millisecond,
		"namespaces are still there")

	require.Eventually(t, func() bool {
		return runtime.NumGoroutine() <= goroutines+1
	}, patience, 10*time.Millisecond,
		"goroutines are still there: %d before", goroutines)

	require.Eventually(t, func() bool {
		return openFiles(t) <= files
	}, patience, 10*time.Millisecond,
		"files are still open: %d before", files)
}

func TestAClusterThatFailsToBuildLeavesNothing(t *testing.T) {
	Require(t)
	files := openFiles(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for range 10 {
		c, err := New(ctx, Options{})
		if err == nil { // every link was up before anything had to wait
			require.NoError(t, c.Close())
			continue
		}

		require.ErrorIs(t, err, context.Canceled)
	}

	require.Eventually(t, func() bool {
		return openFiles(t) <= files
	}, patience, 10*time.Millisecond)
}
