package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/test/peers/serve"
	"github.com/kernlb/kernlb/servicemodel"
)

// benchOptions are the flags of bench.
type benchOptions struct {
	services, endpoints, runs, connections int
	limit                                  time.Duration
}

// few is the number of services in the comparison of connection times.
const few = 10

// figures are the results for one peer.
type figures struct {
	full, endpoint, service time.Duration
	connectFew, connectAll  time.Duration
	err                     error
}

func benchCommand(ctx context.Context, args []string, out io.Writer) error {
	var o benchOptions
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.IntVar(&o.services, "n", 1000, "number of services")
	fs.IntVar(&o.endpoints, "endpoints", 10, "number of endpoints of each")
	fs.IntVar(&o.runs, "runs", 5, "how often each single change is measured; the median counts")
	fs.IntVar(&o.connections, "connections", 2000,
		"how many connections are set up; the median counts")
	fs.DurationVar(&o.limit, "limit", 10*time.Minute, "limit for one peer")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if o.services < 1 || o.endpoints < 1 || o.runs < 1 || o.connections < 1 {
		return errors.New("want at least one service, endpoint, run and connection")
	}
	names, err := choosePeers(fs.Args())
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(out, "%d services of %d endpoints, %s\n", o.services, o.endpoints, kernelRelease())
	fmt.Fprintf(w, "peer\tfull sync\tone endpoint\tone service\tconnection at %d\tat %d\tratio\t\n",
		few, o.services)
	failed := false
	for _, name := range names {
		fmt.Fprintf(os.Stderr, "measuring %s\n", name)
		f := o.measure(ctx, name)
		if f.err != nil {
			failed = true
			fmt.Fprintf(os.Stderr, "%s: %v\n", name, f.err)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", name, show(f.full), show(f.endpoint),
			show(f.service), show(f.connectFew), show(f.connectAll),
			ratio(f.connectAll, f.connectFew))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if failed {
		return errors.New("not every peer could be measured to the end")
	}
	return nil
}

// show rounds a time for people. A dash stands for a time that was not measured.
func show(d time.Duration) string {
	switch {
	case d == 0:
		return "-"
	case d < 10*time.Millisecond:
		return d.Round(time.Microsecond).String()
	case d < 10*time.Second:
		return d.Round(time.Millisecond).String()
	}
	return d.Round(100 * time.Millisecond).String()
}

func ratio(a, b time.Duration) string {
	if a == 0 || b == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f", float64(a)/float64(b))
}

func kernelRelease() string {
	b, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return "unknown kernel"
	}
	return "Linux " + strings.TrimSpace(string(b))
}

// measure measures one peer, with few services first.
func (o *benchOptions) measure(ctx context.Context, name string) (f figures) {
	ctx, cancel := context.WithTimeout(ctx, o.limit)
	defer cancel()
	f.err = o.with(ctx, name, few, func(b *bench) (err error) {
		if _, err = b.peer.sync(b.load.all()); err == nil {
			f.connectFew, err = b.connect(o.connections)
		}
		return err
	})
	if f.err == nil {
		f.err = o.with(ctx, name, o.services, func(b *bench) error { return o.measureAll(b, &f) })
	}
	return f
}

func (o *benchOptions) measureAll(b *bench, f *figures) (err error) {
	if f.full, err = b.peer.sync(b.load.all()); err != nil {
		return err
	}
	if f.connectAll, err = b.connect(o.connections); err != nil {
		return err
	}
	if f.endpoint, err = b.median(o.runs, b.load.oneEndpoint); err != nil {
		return err
	}
	// Every second round removes the service again, and does not count.
	var times []time.Duration
	for i := range 2 * o.runs {
		took, err := b.peer.sync(b.load.oneService(i))
		if err != nil {
			return err
		}
		if i%2 == 0 {
			times = append(times, took)
		}
	}
	f.service = median(times)
	return nil
}

// bench is a peer in a network of its own.
type bench struct {
	cluster *netnstest.Cluster
	peer    *peer
	load    *mix
}

func (o *benchOptions) with(ctx context.Context, name string, services int, f func(*bench) error) (
	err error) {
	c, err := netnstest.New(ctx, netnstest.Options{})
	if err != nil {
		return err
	}
	defer c.Close()
	serving, err := pods(c)
	if err != nil {
		return err
	}
	b := &bench{cluster: c, load: newUniform(services, o.endpoints, serving)}
	b.peer, err = startPeer(ctx, name, c.Node.NS, serve.Settings{
		NodeAddrs: c.NodeAddrs(), ClusterCIDRs: prefixes(netnstest.Net.ClusterCIDRv4,
			netnstest.Net.ClusterCIDRv6), IPv4Only: true,
	}, os.Stderr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ignoreEnd(ctx, b.peer.stop())) }()
	return f(b)
}

// ignoreEnd drops the error of a process that was ended because ctx ended, which is an error
// already.
func ignoreEnd(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func prefixes(l ...string) (out []netip.Prefix) {
	for _, s := range l {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

func (b *bench) median(runs int, next func(i int) *serve.Change) (time.Duration, error) {
	var times []time.Duration
	for i := range runs {
		took, err := b.peer.sync(next(i))
		if err != nil {
			return 0, err
		}
		times = append(times, took)
	}
	return median(times), nil
}

func median(l []time.Duration) time.Duration {
	slices.Sort(l)
	return l[len(l)/2]
}

// connect sets up connections from a pod to the real services in turn, and returns the median time.
func (b *bench) connect(n int) (time.Duration, error) {
	var times []time.Duration
	reals := b.load.reals
	err := b.cluster.Pods[0].NS.Do(func() error {
		for i := range n {
			to := netip.AddrPortFrom(b.load.addr(reals[i%len(reals)]), servicePort)
			start := time.Now()
			conn, err := dialHere(to)
			if errors.Is(err, errInterrupted) {
				continue
			}
			if err != nil {
				return fmt.Errorf("connect to %s: %w", to, err)
			}
			times = append(times, time.Since(start))
			conn.Close()
		}
		return nil
	})
	if err == nil && len(times) == 0 {
		err = errors.New("signals interrupted every connection")
	}
	if err != nil {
		return 0, err
	}
	return median(times), nil
}

// pods are the IPv4 addresses of a cluster's pods on the node, which serve.
func pods(c *netnstest.Cluster) ([]netip.Addr, error) {
	var l []netip.Addr
	for _, h := range c.Pods {
		if err := h.Serve(servicemodel.TCP, targetPort); err != nil {
			return nil, err
		}
		l = append(l, h.IPv4)
	}
	return l, nil
}
