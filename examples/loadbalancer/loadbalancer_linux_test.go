package main

import (
	"context"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/netnstest"
)

// nodeDialer dials in a namespace.
func nodeDialer(ns *netnstest.NS) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (c net.Conn, err error) {
		err = ns.Do(func() (err error) {
			c, err = (&net.Dialer{}).DialContext(ctx, network, addr)
			return err
		})
		return c, err
	}
}

// quick is a service whose checks take turns quickly.
const quick = `services:
- name: web
  addresses: [203.0.113.10]
  port: 80
  checks: [{type: tcp, interval: 10ms, timeout: 30s}]
`

// Who fails is left out, who recovers comes back, and the sorry server is for when nobody is left.
func TestBackendsThatFailAreLeftOut(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first, second := w.serve(0), w.serve(1)
	w.serve(2)
	w.write(quick + `  sorry: ["10.244.1.3:8080"]
  backends: [{address: 10.244.1.1:8080}, {address: 10.244.1.2:8080}]`)
	w.start()
	w.answers("pod1 pod2")
	require.NoError(t, second.Close())
	w.answers("pod1")
	require.NoError(t, first.Close())
	w.answers("pod3")
	second = w.serve(1)
	w.answers("pod2")
	require.NoError(t, second.Close())
	w.answers("pod3")
	require.Contains(t, w.get("/metrics"),
		`loadbalancer_backend_up{backend="10.244.1.2:8080",service="web"} 0`)
	require.Contains(t, w.get("/backends"), "connection refused")
	require.Contains(t, w.get("/"), "loadbalancer/web")
	require.Contains(t, w.get("/healthz"), `"healthy":true`)
}

// A program that is killed leaves the kernel as it is; the next one takes it over without a look
// at it by anybody: connections go on, and a backend that was out stays out.
func TestKilledAndStartedAgainIsInvisible(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(0)
	w.serve(1)
	w.write(quick + `  backends:
  - address: 10.244.1.1:8080
  - address: 10.244.1.2:8080
  - address: 10.244.1.3:8080`)
	w.start()
	w.answers("pod1 pod2")
	conns := w.connect(20)
	for range 3 {
		w.kill()
		require.Equal(t, "pod1 pod2", w.answer())
		w.start()
		for range 10 { // while it starts
			require.Equal(t, "pod1 pod2", w.answer())
		}
		w.soon(func() bool { return w.listens() }, "it runs")
		require.Equal(t, "pod1 pod2", w.answer())
	}
	require.Zero(t, conns.Ping(30*time.Second).Lost())
	require.NoError(t, w.program.Process.Signal(syscall.SIGTERM))
	require.NoError(t, <-w.ended)
	require.Equal(t, "pod1 pod2", w.answer())
}

// listens reports whether the program answers.
func (w *world) listens() bool {
	c, err := nodeDialer(w.Node.NS)(w.Context(), "tcp", "127.0.0.1:9095")
	if err == nil {
		_ = c.Close()
	}
	return err == nil
}

// A reload takes what changed, loses no connection, and a broken file changes nothing.
func TestReloadLosesNoConnection(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for pod := range 3 {
		w.serve(pod)
	}
	w.write(quick + "  backends: [{address: 10.244.1.1:8080}]")
	w.start()
	w.answers("pod1")
	conns := w.connect(20)
	w.write(quick + "  backends: [{address: 10.244.1.2:8080}, {address: 10.244.1.3:8080}]")
	w.reload(taken)
	w.answers("pod2 pod3")

	w.write(quick + "  backends:\n  - {address: 10.244.1.2:8080, wait: 3}")
	w.reload(`lb.yaml:7: services[0].backends[0].wait: no such field`)
	w.write(quick + "  scheduler: lc\n  backends: [{address: 10.244.1.2:8080}]")
	w.reload(`lb.yaml:6: services[0].scheduler: nftables cannot express`)
	require.Equal(t, "pod2 pod3", w.answer())
	require.Zero(t, conns.Ping(30*time.Second).Lost())
	require.Contains(t, w.get("/metrics"), `loadbalancer_reloads_total{result="broken"} 2`)

	w.write(quick + "  backends: [{address: 10.244.1.1:8080}]")
	w.reload(taken)
	w.answers("pod1")
	require.Zero(t, conns.Ping(30*time.Second).Lost())
}
