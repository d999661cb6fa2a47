package netnstest

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
)

// openFiles counts the file descriptors of this process.
func openFiles(tb testing.TB) int {
	tb.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(tb, err)
	return len(entries)
}

// linkCount counts the links of a namespace.
func linkCount(tb testing.TB, ns *NS) int {
	tb.Helper()
	w := newWiring()
	defer w.close()
	count := 0
	w.do(ns, func(h *netlink.Handle) error {
		links, err := h.LinkList()
		count = len(links)
		return err
	}, "list links")
	require.NoError(tb, w.err)
	return count
}

// use does with a cluster all that could leave something behind.
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
		_, err := h.NS.Capture("")
		require.NoError(tb, err)
	}
	SendAll(context.Background(), probes)
	_, err := OpenConns(context.Background(), c.Outside[0], netip.AddrPortFrom(c.Pods[0].IPv4,
		8080), 50)
	require.NoError(tb, err)
}

// This test does not run in parallel with others: it counts what belongs to the process.
func TestClosingAClusterLeavesNothing(t *testing.T) {
	Require(t)
	// A link from each namespace of a cluster ends here, and vanishes only when that namespace
	// does.
	witness, err := NewNS("witness")
	require.NoError(t, err)
	defer witness.Close() //nolint:errcheck // tested elsewhere
	files, goroutines, links := openFiles(t), runtime.NumGoroutine(), linkCount(t, witness)
	for round, opts := range []Options{{}, {Bridge: "cni0"}} {
		c, err := New(context.Background(), opts)
		require.NoError(t, err)
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
		if c, err := New(ctx, Options{}); err == nil {
			require.NoError(t, c.Close())
		}
	}
	require.Eventually(t, func() bool {
		return openFiles(t) <= files
	}, patience, 10*time.Millisecond)
}

func TestFiftyClustersAtOnce(t *testing.T) {
	t.Parallel()
	Require(t)
	count := 50
	if os.Getenv("KERNLB_VM") != "" {
		count = 5 // an emulated machine is ten times slower
	}
	errs := make([]error, count)
	var all sync.WaitGroup
	for i := range count {
		all.Go(func() { errs[i] = buildAndProbe(fmt.Sprintf("cluster%d", i)) })
	}
	all.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
}

// buildAndProbe makes a cluster with a server of that name, and checks that it is the one that
// answers.
func buildAndProbe(name string) error {
	c, err := New(context.Background(), Options{})
	if err != nil {
		return err
	}
	defer c.Close() //nolint:errcheck // tested elsewhere
	for _, proto := range Protocols() {
		for _, addr := range addrsOf(c.Pods[0]) {
			to := netip.AddrPortFrom(addr, 8080)
			if _, err := c.Pods[0].NS.Serve(name, proto, to); err != nil {
				return err
			}
			for _, from := range c.Hosts() {
				p := Probe{From: from, Proto: proto, To: to}
				if o := p.Send(context.Background()); o.Server != name {
					return fmt.Errorf("%s: %s: %s", name, p, o)
				}
			}
		}
	}
	return nil
}
