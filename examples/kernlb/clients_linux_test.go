package main

import (
	"context"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/servicemodel"
)

var (
	clientsOf   = flag.String("clients", "", "what clients see: measure with this `BACKEND`")
	clientPause = flag.Duration("pause", 5*time.Millisecond,
		"what clients see: time between two tries; an emulated machine needs 50ms")
	oldBinary = flag.String("old", "", "what clients see: the `FILE` of an older kernlb")
)

const (
	clientConns  = 50
	clientSettle = 4 * time.Second // from the event to the end of the measurement
	podPort      = 8080
)

var usedService = netip.MustParseAddrPort("10.96.0.10:80")

// usedManifest returns a service of TCP and UDP at port 80, and other services.
func usedManifest() string {
	text := strings.ReplaceAll(dnsManifest("10.244.1.2", "10.244.1.3"), "53", "80")
	for i := range 100 {
		text += serviceManifest(fmt.Sprint("other-", i), fmt.Sprintf("10.96.1.%d", i+1), "", "")
	}
	return text
}

// event happens to a node while clients use it: shell commands, or what a function does.
type event struct {
	name   string
	happen func(t *testing.T, n *clientNode)
}

// events returns all events in their order.
func events() []event {
	l := []event{
		{"nothing", func(*testing.T, *clientNode) {}},
		{name: "nft flush ruleset"}, {name: "iptables -F; iptables -t nat -F"},
		{name: "conntrack -F"},
		{"ip rule flush", func(t *testing.T, n *clientNode) {
			// Flushing also removes the routing rules, and without these no packet is routed.
			n.run(t, "ip rule flush; ip rule add pref 32766 table main")
		}},
		{"restart (SIGTERM)", func(t *testing.T, n *clientNode) { n.restart(t, syscall.SIGTERM) }},
		{"kill -9, restart", func(t *testing.T, n *clientNode) { n.restart(t, syscall.SIGKILL) }},
	}
	if *clientsOf == "ipvs" {
		l = append(l, event{name: "ipvsadm -C"})
	}
	if *oldBinary != "" {
		l = append(l, event{"upgrade", func(t *testing.T, n *clientNode) {
			n.binary = "/proc/self/exe"
			n.restart(t, syscall.SIGTERM)
		}})
	}

	return append(l, event{"another backend", func(t *testing.T, n *clientNode) {
		before := n.backend
		n.backend = map[string]string{"nftables": "iptables", "iptables": "nftables",
			"ipvs": "nftables"}[before]
		n.restart(t, syscall.SIGTERM)
		n.complete(t, n.command("cleanup", "-backend", before))
	}})
}

// The effects of an administrator's actions on clients are in docs/what-clients-see.md. After each
// action all clients must soon be served again.
func TestWhatClientsSee(t *testing.T) {
	if *clientsOf == "" {
		t.Skip("takes a minute: run it with -clients BACKEND")
	}
	n := newClientNode(t, *clientsOf)
	var table strings.Builder
	for _, e := range events() {
		if e.name == "upgrade" {
			n.binary = *oldBinary
			n.restart(t, syscall.SIGTERM)
		}

		fmt.Fprintf(&table, "| `%s` | %s |\n", e.name, n.watch(t, e))
	}

	n.end(t, syscall.SIGTERM)
	osrelease := ok(os.ReadFile("/proc/sys/kernel/osrelease"))(t)
	t.Logf("\n%s, Linux %s\n| | new connections fail | open ones that break | UDP lost |\n"+
		"|---|---|---|---|\n%s", *clientsOf, osrelease, &table)
}

// clientNode is a node with a program that watches, and clients around it.
type clientNode struct {
	*netnstest.Cluster
	dir     string
	backend string
	binary  string // of the program
	process *exec.Cmd
}

func newClientNode(t *testing.T, backend string) *clientNode {
	n := &clientNode{Cluster: netnstest.Start(t, netnstest.Options{}), dir: t.TempDir(),
		backend: backend, binary: "/proc/self/exe"}
	for _, pod := range n.Pods[1:] {
		require.NoError(t, pod.Serve(servicemodel.TCP, podPort))
		require.NoError(t, pod.Serve(servicemodel.UDP, podPort))
	}

	require.NoError(t, os.WriteFile(filepath.Join(n.dir, "web.yaml"), []byte(usedManifest()),
		0o600))
	n.start(t)
	t.Cleanup(func() { _ = n.process.Process.Kill() })
	return n
}

// command returns the program with arguments, to be run in the node.
func (n *clientNode) command(args ...string) *exec.Cmd {
	c := exec.Command(n.binary, args...)
	c.Env = append(os.Environ(), asProgram+"=1")
	return c
}

// start starts the program, and waits until it is ready.
func (n *clientNode) start(t *testing.T) {
	log := &lockedBuffer{}
	socket, next := notifications(t, log)
	n.process = n.command("watch", "-f", n.dir, "-copies", n.dir+"-copies", "-backend", n.backend)
	n.process.Env = append(n.process.Env, "NOTIFY_SOCKET="+socket)
	n.process.Stdout, n.process.Stderr = log, log
	require.NoError(t, n.Node.NS.Do(n.process.Start))
	for !strings.Contains(next(), "READY=1") {
	}
}

// end ends the program with a signal.
func (n *clientNode) end(t *testing.T, signal syscall.Signal) {
	require.NoError(t, n.process.Process.Signal(signal))
	_ = n.process.Wait() // the exit code does not matter here
}

func (n *clientNode) restart(t *testing.T, signal syscall.Signal) {
	n.end(t, signal)
	n.start(t)
}

// run runs shell commands in the node.
func (n *clientNode) run(t *testing.T, commands string) {
	n.complete(t, exec.Command("sh", "-ec", commands))
}

// complete runs a command in the node.
func (n *clientNode) complete(t *testing.T, c *exec.Cmd) {
	require.NoError(t, n.Node.NS.Do(func() error {
		if out, err := c.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", c, err, out)
		}
		return nil
	}))
}

// connect opens a new connection from a host, and reports whether a pod answers.
func (n *clientNode) connect(from *netnstest.Host) bool {
	return served(netnstest.Probe{From: from, Proto: servicemodel.TCP, To: usedService}.Send(
		context.Background()))
}

func served(o netnstest.Outcome) bool {
	return o.Kind == netnstest.Answered && o.Server != netnstest.Net.Internet
}

// watch makes an event happen, and returns what clients saw: three columns of the table.
func (n *clientNode) watch(t *testing.T, e event) string {
	t.Helper()
	var conns []*netnstest.Conns
	for _, from := range []*netnstest.Host{n.Pods[0], n.Outside[0]} {
		c, err := netnstest.OpenConns(t.Context(), from, usedService, clientConns/2)
		require.NoError(t, err, e.name)
		defer c.Close()
		conns = append(conns, c)
	}

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	reports := make(chan netnstest.ConnsReport, len(conns))
	for _, c := range conns {
		go func() { reports <- c.Watch(ctx, 4**clientPause, 5*time.Second) }()
	}
	var work sync.WaitGroup
	fresh, udp := &outage{}, &outage{}
	work.Go(func() { n.connectAgain(ctx, &work, fresh) })
	work.Go(func() { n.stream(ctx, udp) })
	time.Sleep(500 * time.Millisecond)
	if e.happen == nil {
		n.run(t, e.name)
	} else {
		e.happen(t, n)
	}

	time.Sleep(clientSettle)
	stop()
	work.Wait()
	broken := 0
	for range conns {
		r := <-reports
		broken += r.Lost()
	}

	require.Eventually(t, func() bool { return n.connect(n.Outside[0]) }, time.Minute,
		10*time.Millisecond, "%s: nobody is served any more", e.name)
	return fmt.Sprintf("%s | %d of %d | %s", fresh, broken, clientConns, udp)
}

// connectAgain opens new connections at intervals, all at the same time.
func (n *clientNode) connectAgain(ctx context.Context, work *sync.WaitGroup, o *outage) {
	hosts := []*netnstest.Host{n.Pods[0], n.Outside[1]}
	for i := 0; ctx.Err() == nil; i++ {
		start := time.Now()
		work.Go(func() { o.note(start, n.connect(hosts[i%len(hosts)])) })
		time.Sleep(*clientPause)
	}
}

// stream sends datagrams from one port, and records which of them pods answer.
func (n *clientNode) stream(ctx context.Context, o *outage) {
	p := netnstest.Probe{From: n.Outside[0], Proto: servicemodel.UDP, To: usedService,
		SourcePort: 4053, Timeout: 40 * *clientPause}
	for ; ctx.Err() == nil; time.Sleep(*clientPause) {
		start := time.Now()
		o.note(start, served(p.Send(context.Background())))
	}
}

// outage records which of many tries failed.
type outage struct {
	mu     sync.Mutex
	tries  int
	failed []time.Time
}

func (o *outage) note(start time.Time, served bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.tries++
	if !served {
		o.failed = append(o.failed, start)
	}
}

// String returns the number of failures, and the time from the first to the last.
func (o *outage) String() string {
	if len(o.failed) == 0 {
		return fmt.Sprintf("none of %d", o.tries)
	}
	slices.SortFunc(o.failed, time.Time.Compare)
	last := o.failed[len(o.failed)-1]
	return fmt.Sprintf("%d of %d, for %d ms", len(o.failed), o.tries,
		(last.Sub(o.failed[0]) + *clientPause).Milliseconds())
}
