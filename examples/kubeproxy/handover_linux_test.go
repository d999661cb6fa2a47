package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/test/nstest"
	"github.com/kernlb/kernlb/servicemodel"
)

// kubeProxyArgs returns the arguments of kube-proxy on a node.
func (p *controlPlane) kubeProxyArgs(node, mode string) []string {
	args := p.proxyArgs(node, mode)
	args[0] = "--kubeconfig=" + p.kubeconfig(kubeProxyToken)
	return append([]string{"kube-proxy", "--conntrack-tcp-timeout-established=0",
		"--conntrack-tcp-timeout-close-wait=0"}, args...)
}

// nftIPTables returns a PATH in which iptables is the variant on nf_tables, whatever the machine's
// default.
func nftIPTables(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"iptables", "ip6tables"} {
		for _, part := range []string{"", "-save", "-restore"} {
			program, err := exec.LookPath(name + "-nft" + part)
			require.NoError(t, err)
			program, err = filepath.EvalSymlinks(program) // its behaviour depends on its name
			require.NoError(t, err)
			require.NoError(t, os.Symlink(program, filepath.Join(dir, name+part)))
		}
	}

	return dir + ":" + os.Getenv("PATH")
}

// watched is a service of both families with an endpoint on the node. It is in use all the time,
// over open connections and over new ones.
type watched struct {
	*corev1.Service
	*traffic
	t     *testing.T
	c     *netnstest.Cluster
	conns []*netnstest.Conns
}

// watch starts the connections once both addresses of the service answer: open connections from one
// host and new connections from another.
func watch(t *testing.T, c *netnstest.Cluster, s *corev1.Service, open, anew *netnstest.Host,
) *watched {
	t.Helper()
	w := &watched{Service: s, t: t, c: c}
	to := []string{at(s.Spec.ClusterIPs[0], 80), at(s.Spec.ClusterIPs[1], 80)}
	for _, a := range to {
		answers(t, open, a, "answered pod1")
		conns := ok(netnstest.OpenConns(t.Context(), open, netip.MustParseAddrPort(a), 25))(t)
		t.Cleanup(func() { conns.Close() })
		w.conns = append(w.conns, conns)
	}

	w.traffic = startTraffic(t, anew, to...)
	return w
}

// lives requires that all connections from the beginning still work.
func (w *watched) lives() {
	w.t.Helper()
	for _, c := range w.conns {
		require.Zero(w.t, c.Ping(patience).Lost())
	}
}

// gaps sends HTTP requests all the time. The returned function returns the longest time without a
// good answer.
func gaps(ns *netnstest.NS, what string) func() time.Duration {
	ctx, cancel := context.WithCancel(context.Background())
	var longest atomic.Int64
	var wg sync.WaitGroup
	wg.Go(func() {
		last := time.Now()
		for ctx.Err() == nil {
			answer, err := nstest.Get(ns, what)
			if err == nil && strings.HasPrefix(answer, "200") {
				longest.Store(max(longest.Load(), int64(time.Since(last))))
				last = time.Now()
			}

			time.Sleep(2 * time.Millisecond)
		}
	})

	return func() time.Duration {
		cancel()
		wg.Wait()
		return time.Duration(longest.Load())
	}
}

// actions returns the actions of the programs' events with a reason, by the names of their nodes.
// It returns nothing if the API server does not answer.
func (p *controlPlane) actions(reason string) map[string][]string {
	p.t.Helper()
	events, err := p.client.EventsV1().Events("").List(p.t.Context(), metav1.ListOptions{})
	if err != nil {
		return nil
	}
	actions := map[string][]string{}
	for _, e := range events.Items {
		if e.ReportingController == reporter && e.Reason == reason {
			actions[e.Regarding.Name] = append(actions[e.Regarding.Name], e.Action)
		}
	}

	return actions
}

// hasEvent waits for an event about this number of nodes.
func (p *controlPlane) hasEvent(reason string, nodes int) {
	p.t.Helper()
	require.Eventually(p.t, func() bool { return len(p.actions(reason)) >= nodes }, patience,
		50*time.Millisecond, "event %s", reason)
}

// handover is a node on which one proxy replaces the other.
type handover struct {
	*controlPlane
	c        *netnstest.Cluster
	from, to rules
}

// rules are texts in the ruleset of a mode: one of kube-proxy, one of its rules for the watched
// service, and one of this program.
type rules struct{ mode, theirs, service, ours string }

var (
	nftablesRules = rules{"nftables", " kube-proxy {", "/web/tcp/", " kernlb {"}
	iptablesRules = rules{"iptables", "KUBE-SERVICES", "KUBE-SVC-", "KERNLB-SERVICES"}
)

// has waits until the ruleset of each family contains the text yes, and not the text no.
func (h *handover) has(yes, no string) {
	h.t.Helper()
	require.Eventually(h.t, func() bool {
		for _, family := range []string{"ip", "ip6"} {
			text := ruleset(h.t, h.c.Node.NS, family)
			if !strings.Contains(text, yes) || no != "" && strings.Contains(text, no) {
				return false
			}
		}

		return true
	}, patience, 50*time.Millisecond, "%s, without %q", yes, no)
}

// asked returns the addresses that load balancers query: healthz, and the health check node port of
// the service.
func (h *handover) asked(w *watched) []string {
	return []string{at(netnstest.Net.NodeIPv4, 10256) + "/healthz",
		at(netnstest.Net.NodeIPv4, w.Spec.HealthCheckNodePort) + "/"}
}

// forth starts this program while kube-proxy runs, and then ends kube-proxy.
func (h *handover) forth(w *watched, kubeProxy *process) (ours *process) {
	h.t.Helper()
	outside := h.c.Outside[0].NS
	var silent []func() time.Duration
	for _, what := range h.asked(w) {
		eventually(h.t, outside, what, "200", "")
		silent = append(silent, gaps(outside, what))
	}

	ours = h.start("kernlb", h.c, h.to.mode)
	h.hasEvent("KubeProxyRuns", 1) // all services are in the kernel
	h.has(h.to.ours, "")
	h.has(h.from.service, "") // the running kube-proxy is left alone
	w.lives()
	h.compares()
	h.t.Logf("both run: %s", w.lap(h.t))
	kubeProxy.end()
	h.has(h.to.ours, h.from.theirs)
	h.hasEvent("TookOver", 1)
	for _, what := range h.asked(w) {
		eventually(h.t, outside, what, "200", "")
	}
	w.lives()
	h.t.Logf("handed over: %s", w.lap(h.t))
	h.t.Logf("longest time from one good answer to the next, of healthz %.0f ms, of a health "+
		"check node port %.0f ms", ms(silent[0]()), ms(silent[1]()))
	return ours
}

// compares requires that kube-proxy and this program hold the same services, and returns the output
// of the command compare.
func (h *handover) compares() string {
	h.t.Helper()
	args := append([]string{"compare"}, h.proxyArgs("node1", h.to.mode)...)
	var text []byte
	require.Eventually(h.t, func() bool { // kube-proxy syncs once a second
		cmd := spawn(h.t, h.c.Node.NS, asProgram+"=1", self, args...)
		err := cmd.cmd.Wait()
		text, _ = os.ReadFile(cmd.out)
		return err == nil
	}, patience, time.Second, "%s", &text)

	h.t.Logf("compare:\n%s", text)
	require.Contains(h.t, string(text), ": 0 differ\n")
	return string(text)
}

// back starts a kube-proxy while this program runs, and then ends and cleans up this program.
func (h *handover) back(w *watched, ours *process) {
	h.t.Helper()
	again := h.start("kube-proxy", h.c, h.from.mode)
	h.has(h.from.service, "") // kube-proxy has the service, too
	ours.stop()
	cleanup := spawn(h.t, h.c.Node.NS, asProgram+"=1", self, "--cleanup")
	require.NoError(h.t, cleanup.cmd.Wait())
	h.has(h.from.theirs, h.to.ours)
	h.addService(serviceOf("another", "web")) // kube-proxy syncs, and tries its ports again
	for _, what := range h.asked(w) {
		eventually(h.t, h.c.Outside[0].NS, what, "200", "")
	}
	w.lives()
	h.t.Logf("handed back: %s", w.lap(h.t))
	again.end()
}

// This program starts while kube-proxy runs, and kube-proxy then ends. Later they change back. Open
// connections and new connections work all the time.
func TestItTakesOverFromKubeProxyAndHandsBack(t *testing.T) {
	t.Parallel()
	for _, h := range []handover{
		{from: nftablesRules, to: nftablesRules},
		{from: iptablesRules, to: iptablesRules},
		{from: iptablesRules, to: nftablesRules}, // of most clusters and deploy/config.yaml
	} {
		t.Run(h.from.mode+" to "+h.to.mode, func(t *testing.T) {
			t.Parallel()
			h.controlPlane, h.c = startControlPlane(t), node(t)
			h.reach(h.c.Node.NS)
			h.addPod("web", "node1", h.c.Pods[0], "web")
			s := h.addDualStack("web", "web")
			kubeProxy := h.start("kube-proxy", h.c, h.from.mode)
			w := watch(t, h.c, s, h.c.Pods[1], h.c.Pods[2])
			t.Logf("kube-proxy alone: %s", w.lap(t))
			h.back(w, h.forth(w, kubeProxy))
			w.all(t)
		})
	}
}

// churn creates and deletes services without pause until the test's end.
func (p *controlPlane) churn() (stop func()) {
	ctx, cancel := context.WithCancel(p.t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		services := p.client.CoreV1().Services("default")
		for i := 0; ctx.Err() == nil; i++ {
			s := serviceOf(fmt.Sprintf("churn-%d", i), "web")
			if _, err := services.Create(ctx, s, metav1.CreateOptions{}); err == nil && i >= 10 {
				_ = services.Delete(ctx, fmt.Sprintf("churn-%d", i-10), metav1.DeleteOptions{})
			}
			time.Sleep(10 * time.Millisecond)
		}
	})

	stop = func() { cancel(); wg.Wait() }
	p.t.Cleanup(stop)
	return stop
}

// The program is killed again and again, during its start and its writes, and no client is
// affected.
func TestKillingItAtAnyTimeLeavesTrafficFlowing(t *testing.T) {
	t.Parallel()
	p := startControlPlane(t)
	p.addPod("web", "node1", &netnstest.Host{IPv4: netip.MustParseAddr("10.244.1.1"),
		IPv6: netip.MustParseAddr("fd00:10:244:1::1")}, "web")
	s := p.addDualStack("web", "web")
	stop := p.churn()
	var nodes []*watched
	start := func(mode string, c *netnstest.Cluster) *process {
		return p.start("kernlb", c, mode, "--iptables-min-sync-period=0s")
	}
	for _, mode := range []string{"nftables", "iptables"} {
		c := node(t)
		require.Equal(t, "10.244.1.1", c.Pods[0].IPv4.String())
		p.reach(c.Node.NS)
		running := start(mode, c)
		w := watch(t, c, s, c.Pods[1], c.Pods[2])
		nodes = append(nodes, w)
		for range 8 {
			require.NoError(t, running.cmd.Process.Kill())
			_ = running.cmd.Wait()
			running = start(mode, c)
			time.Sleep(time.Duration(rand.Int64N(int64(700 * time.Millisecond))))
		}
	}

	stop()
	last := p.addService(serviceOf("last", "web"))
	for _, w := range nodes {
		answers(t, w.c.Pods[1], last, "answered pod1") // the program goes on from there
		w.lives()
		t.Logf("killed 8 times: %s", w.lap(t))
		w.all(t)
	}
}

// traffic opens new connections to some addresses until the test's end. It records the failures,
// and the times of the successful connections.
type traffic struct {
	stop func()

	mu    sync.Mutex
	took  []time.Duration // since lap
	made  int
	wrong []string
}

func startTraffic(t *testing.T, from *netnstest.Host, to ...string) *traffic {
	ctx, cancel := context.WithCancel(t.Context())
	tr := &traffic{}
	var wg sync.WaitGroup
	for _, address := range to {
		wg.Go(func() {
			for ctx.Err() == nil {
				begin := time.Now()
				o := netnstest.Probe{From: from, Proto: servicemodel.TCP,
					To: netip.MustParseAddrPort(address), Timeout: 10 * time.Second}.Send(ctx)
				if ctx.Err() != nil {
					return
				}
				tr.note(address, o, time.Since(begin))
				time.Sleep(20 * time.Millisecond) // so that ports can be reused in time
			}
		})
	}

	tr.stop = func() { cancel(); wg.Wait() }
	t.Cleanup(tr.stop)
	return tr
}

func (tr *traffic) note(to string, o netnstest.Outcome, took time.Duration) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.made++
	tr.took = append(tr.took, took)
	if o.Kind != netnstest.Answered || o.Server == netnstest.Net.Internet {
		tr.wrong = append(tr.wrong, fmt.Sprintf("%d, to %s: %s", tr.made, to, o))
	}
}

// lap returns the times of the connections since the last lap, and requires at least one.
func (tr *traffic) lap(t *testing.T) string {
	t.Helper()
	var l []time.Duration
	require.Eventually(t, func() bool {
		tr.mu.Lock()
		defer tr.mu.Unlock()
		if len(tr.took) < 50 {
			return false
		}
		l, tr.took = tr.took, nil
		return true
	}, patience, 10*time.Millisecond)

	slices.Sort(l)
	return fmt.Sprintf("%d connections, median %.2f ms, 99%% %.1f ms, slowest %.1f ms", len(l),
		ms(l[len(l)/2]), ms(l[len(l)*99/100]), ms(l[len(l)-1]))
}

// all requires that no connection failed.
func (tr *traffic) all(t *testing.T) {
	t.Helper()
	tr.stop()
	require.Empty(t, tr.wrong, "of %d", tr.made)
	require.Positive(t, tr.made)
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
