// Nodeproxy does for a node of Kubernetes what kube-proxy does, in 170 lines: objects come from the
// API server, become states, and an engine makes the kernel hold them.
//
//	nodeproxy -node NAME [-kubeconfig FILE] [-cluster-cidr 10.244.0.0/16]
//		[-healthz 0.0.0.0:10256] [-metrics 127.0.0.1:10249]
//
// It needs CAP_NET_ADMIN and the permissions that package kubeapi lists. See docs/node-proxy.md.
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
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/restclient"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/conntrack/flows"
	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/health"
	"github.com/kernlb/kernlb/dataplane/metrics"
	"github.com/kernlb/kernlb/nftables"
	"github.com/kernlb/kernlb/servicemodel"
	"github.com/kernlb/kernlb/servicemodel/kube"
	"github.com/kernlb/kernlb/servicemodel/kube/kubeapi"
)

type options struct {
	node, kubeconfig, clusterCIDR, healthz, metrics string
}

func main() {
	var o options
	flag.StringVar(&o.node, "node", "", "name of the node")
	flag.StringVar(&o.kubeconfig, "kubeconfig", "", "empty: the service account of the pod")
	flag.StringVar(&o.clusterCIDR, "cluster-cidr", "", "where pods are; empty: as the Node says")
	flag.StringVar(&o.healthz, "healthz", "0.0.0.0:10256", "where /healthz and /livez answer")
	flag.StringVar(&o.metrics, "metrics", "127.0.0.1:10249", "where /metrics answers")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := start(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "nodeproxy:", err)
		os.Exit(1)
	}
}

// start makes a client and runs.
func start(ctx context.Context, o options) error {
	c, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(c)
	if err != nil {
		return err
	}
	return run(ctx, client, o)
}

// run proxies until the context ends.
func run(ctx context.Context, client kubernetes.Interface, o options) error {
	tracker := kube.Config{Node: servicemodel.Node{Name: o.node}, NodeCIDRs: o.clusterCIDR == "",
		Triggers: true}
	if o.node == "" {
		return errors.New("-node is missing")
	}
	if o.clusterCIDR != "" {
		p, err := netip.ParsePrefix(o.clusterCIDR)
		if err != nil {
			return fmt.Errorf("-cluster-cidr: %w", err)
		}
		tracker.Node.LocalPods.CIDRs = []netip.Prefix{p}
	}
	logger := slog.New(slog.NewTextHandler(os.Stderr, nil))
	source, err := kubeapi.New(client, &kubeapi.Config{Tracker: tracker, Logger: logger})
	if err != nil {
		return err
	}
	backend, err := nftables.New(nil)
	if err != nil {
		return err
	}
	defer backend.Close()
	table, err := conntrack.Open(nil)
	if err != nil {
		return err
	}
	defer table.Close()
	keeper, err := flows.New(table, nil)
	if err != nil {
		return err
	}
	engine := dataplane.New(backend, &dataplane.Config{Logger: logger, Flows: keeper})

	proxy := health.NewProxy(engine, &health.ProxyConfig{Eligible: source.NodeEligible})
	ports := health.NewNodePorts(&health.NodePortsConfig{Healthy: proxy.Healthy})
	defer ports.Close()
	engine.Subscribe(func(ctx context.Context, ev dataplane.Event) {
		if ev, ok := ev.(dataplane.Applied); ok {
			if err := ports.Sync(ctx, ev.Changes.New); err != nil {
				logger.Warn("health check node ports", "error", err)
			}
		}
	})
	collector := metrics.New(engine, &metrics.Config{Flows: keeper, Conntrack: table})
	defer collector.Close()
	registry := prometheus.NewRegistry()
	if err := registry.Register(collector); err != nil {
		return err
	}
	// beside them those of client-go, Go and the process, as components of Kubernetes have them
	all := prometheus.Gatherers{registry, legacyregistry.DefaultGatherer}
	return together(ctx, serve(o.healthz, collector.CountProbes(proxy.Handler())),
		serve(o.metrics, promhttp.HandlerFor(all, promhttp.HandlerOpts{})),
		func(ctx context.Context) error { return engine.Run(ctx, nil) },
		func(ctx context.Context) error {
			return source.Run(ctx, func(s servicemodel.State) {
				collector.Triggered(engine.Set(s), source.Triggers()...)
			})
		})
}

// serve returns a function that answers at an address until its context ends.
func serve(addr string, h http.Handler) func(context.Context) error {
	return func(ctx context.Context) error {
		server := &http.Server{Addr: addr, Handler: h, ReadHeaderTimeout: 10 * time.Second}
		defer context.AfterFunc(ctx, func() { _ = server.Close() })()
		return server.ListenAndServe()
	}
}

// together runs functions until all have returned. The first that returns an error ends the others.
func together(ctx context.Context, functions ...func(context.Context) error) error {
	outer := ctx
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan struct{})
	for _, f := range functions {
		go func() {
			if err := f(ctx); err != nil {
				cancel(err)
			}
			done <- struct{}{}
		}()
	}
	for range functions {
		<-done
	}
	if outer.Err() != nil {
		return nil // it was asked to stop
	}
	return context.Cause(ctx)
}
