// Nodeproxy does the work of kube-proxy on a node of Kubernetes, in 250 lines. It turns objects
// from the API server into states, and an engine programs the kernel.
//
//	nodeproxy -node NAME [-kubeconfig FILE] [-cluster-cidr 10.244.0.0/16]
//		[-backend nftables|iptables|ipvs] [-healthz 0.0.0.0:10256] [-metrics 127.0.0.1:10249]
//	nodeproxy -cleanup [-backend …]
//
// It needs CAP_NET_ADMIN and the permissions that package kubeapi lists. See docs/programs.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/restclient"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/flows"
	"github.com/kernlb/kernlb/dataplane/health"
	"github.com/kernlb/kernlb/dataplane/metrics"
	"github.com/kernlb/kernlb/dataplane/node"
	"github.com/kernlb/kernlb/iptables"
	"github.com/kernlb/kernlb/ipvs"
	"github.com/kernlb/kernlb/nftables"
	"github.com/kernlb/kernlb/servicemodel"
	"github.com/kernlb/kernlb/servicemodel/kube"
	"github.com/kernlb/kernlb/servicemodel/kube/kubeapi"
)

type options struct {
	node, kubeconfig, clusterCIDR, backend, healthz, metrics string
	cleanup                                                  bool
}

func main() {
	if len(os.Args) == 2 && strings.TrimLeft(os.Args[1], "-") == "version" {
		fmt.Println("nodeproxy", runtime.Version())
		return
	}
	var o options
	flag.Usage = func() {
		flag.CommandLine.SetOutput(os.Stdout) // the help; an error is printed before it
		fmt.Print("usage: nodeproxy -node NAME [flags]\n       nodeproxy -cleanup [flags]\n" +
			"       nodeproxy version\n\nflags:\n")
		flag.PrintDefaults()
	}
	flag.StringVar(&o.node, "node", "", "name of the node")
	flag.StringVar(&o.kubeconfig, "kubeconfig", "", "empty: the service account of the pod")
	flag.StringVar(&o.clusterCIDR, "cluster-cidr", "", "where pods are; empty: as the Node says")
	flag.StringVar(&o.backend, "backend", nftables.Name, "nftables, iptables or ipvs")
	flag.StringVar(&o.healthz, "healthz", "0.0.0.0:10256", "where /healthz and /livez answer")
	flag.StringVar(&o.metrics, "metrics", "127.0.0.1:10249", "where /metrics answers")
	flag.BoolVar(&o.cleanup, "cleanup", false, "remove all that the program has in the kernel")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "nodeproxy: %q is no flag; -h lists them\n", flag.Arg(0))
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := start(ctx, o); err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "nodeproxy:", err)
		os.Exit(1)
	}
	if !o.cleanup {
		fmt.Fprintln(os.Stderr, "nodeproxy: stopped; the kernel stays as it is")
	}
}

// start opens the kernel, and cleans up, or proxies for the API server.
func start(ctx context.Context, o options) error {
	k, err := openKernel(o.backend)
	if err != nil {
		return err
	}
	defer k.close()
	if o.cleanup {
		_, err := dataplane.New(k.backend, nil).Cleanup(ctx)
		return err
	}
	c, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(c)
	if err != nil {
		return err
	}
	return run(ctx, client, k, o)
}

// kernel is the program's access to the kernel. A test has only a backend.
type kernel struct {
	backend backends.Backend
	table   *conntrack.Table
	keeper  *flows.Keeper
}

// openKernel opens the backend with a name, and the flows.
func openKernel(backend string) (*kernel, error) {
	candidates := []backends.Candidate{nftables.Candidate(nil),
		iptables.Candidate(&iptables.Config{Prefix: "NPROXY"}), ipvs.Candidate(nil)}
	i := slices.IndexFunc(candidates, func(c backends.Candidate) bool { return c.Name == backend })
	if i < 0 {
		return nil, fmt.Errorf("-backend: %q: want nftables, iptables or ipvs", backend)
	}
	k := &kernel{}
	var err error
	if k.backend, err = candidates[i].Open(); err != nil {
		return nil, err
	}
	if k.table, err = conntrack.Open(nil); err == nil {
		k.keeper, err = flows.New(k.table, nil)
	}
	if err != nil {
		k.close()
		return nil, err
	}
	return k, nil
}

func (k *kernel) close() {
	_ = k.backend.Close()
	if k.table != nil {
		_ = k.table.Close()
	}
}

// run proxies until the context ends.
func run(ctx context.Context, client kubernetes.Interface, k *kernel, o options) error {
	logger := slog.New(slog.NewTextHandler(os.Stderr, nil))
	source, err := newSource(client, o, logger)
	if err != nil {
		return err
	}
	problems := func() (l []string) {
		for _, p := range source.Problems() {
			if !p.Warning {
				l = append(l, p.Error())
			}
		}
		return l
	}
	cfg := &dataplane.Config{Logger: logger, KeepRefused: true}
	watch := &metrics.Config{Problems: problems}
	if k.keeper != nil {
		cfg.Flows, watch.Flows, watch.Conntrack = k.keeper, k.keeper, k.table
	}
	engine := dataplane.New(k.backend, cfg)
	checker := node.NewChecker(&node.Config{
		Undone: func() string { return engine.Status().Undone.String() }})
	watch.Node = checker.Report
	proxy := health.NewProxy(engine, &health.ProxyConfig{RequireState: true,
		Eligible: source.NodeEligible, Problems: problems, Node: checker.Report})
	ports := health.NewNodePorts(&health.NodePortsConfig{Healthy: proxy.Healthy})
	defer ports.Close()
	defer ports.Follow(engine, func(err error) {
		logger.Warn("health check node ports", "error", err)
	})()
	collector := metrics.New(engine, watch)
	defer collector.Close()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return serve(ctx, o.healthz, collector.CountProbes(proxy.Handler())) })
	g.Go(func() error { return serve(ctx, o.metrics, handler(collector)) })
	g.Go(func() error { return engine.Run(ctx, nil) })
	g.Go(func() error {
		return source.Run(ctx, func(s servicemodel.State) {
			collector.Triggered(engine.Set(s), source.Triggers()...)
		})
	})
	return g.Wait()
}

// newSource returns a source that follows the objects of an API server.
func newSource(client kubernetes.Interface, o options, l *slog.Logger) (*kubeapi.Source, error) {
	if o.node == "" {
		return nil, errors.New("-node is missing")
	}
	tracker := kube.Config{Node: servicemodel.Node{Name: o.node}, NodeCIDRs: true,
		Annotations: "kernlb.io", Triggers: true}
	if o.clusterCIDR != "" {
		p, err := netip.ParsePrefix(o.clusterCIDR)
		if err != nil {
			return nil, fmt.Errorf("-cluster-cidr: %w", err)
		}
		tracker.Node.LocalPods.CIDRs, tracker.NodeCIDRs = []netip.Prefix{p}, false
	}
	return kubeapi.New(client, &kubeapi.Config{Tracker: tracker, Logger: l})
}

// handler serves the metrics of a collector, of client-go, of Go and of the process.
func handler(c prometheus.Collector) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(c)
	all := prometheus.Gatherers{registry, legacyregistry.DefaultGatherer}
	return promhttp.HandlerFor(all, promhttp.HandlerOpts{})
}

// serve serves HTTP at an address until the context ends.
func serve(ctx context.Context, addr string, h http.Handler) error {
	server := &http.Server{Addr: addr, Handler: h, ReadTimeout: 10 * time.Second,
		WriteTimeout: time.Minute, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	return server.ListenAndServe()
}
