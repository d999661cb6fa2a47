package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/net/netutil"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/health"
	"github.com/kernlb/kernlb/dataplane/hooks"
	"github.com/kernlb/kernlb/dataplane/metrics"
	"github.com/kernlb/kernlb/dataplane/node"
	"github.com/kernlb/kernlb/dataplane/page"
	"github.com/kernlb/kernlb/examples/command/instance"
)

// maxConns is the maximum number of connections of the page.
const maxConns = 256

// listen serves the page of an engine, if the flags have an address. The returned function ends
// that.
func (w *watcher) listen(ctx context.Context, e *dataplane.Engine) (func(), error) {
	o := &w.opts
	if !o.listen.IsValid() && o.socket == "" {
		return func() {}, nil
	}
	table, err := conntrack.Open(nil)
	if err != nil {
		return nil, err
	}
	source, err := w.source()
	if err != nil {
		return nil, errors.Join(err, table.Close())
	}
	l, err := w.open(ctx)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("-listen: %w", err), source.Close(), table.Close())
	}
	checks := node.NewChecker(&node.Config{Ours: instance.Owns(o.instance),
		Undone: func() string { return e.Status().Undone.String() }})
	shown := page.New(e, &page.Config{Problems: w.problems, Conntrack: table, Counters: source,
		Node: checks.Report, Silent: w.silent,
		Dial: new(net.Dialer).DialContext,
		Hooks: func(ctx context.Context) ([]hooks.Chain, error) {
			return hooks.Read(ctx, nil, w.opts.ownsTable)
		}})
	collector := metrics.New(e, &metrics.Config{Flows: w.keeper, Conntrack: table,
		Problems: w.problems, Node: checks.Report, Silent: w.silent})
	registry := prometheus.NewRegistry()
	registry.MustRegister(collector, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("/", shown)
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	healthy := collector.CountProbes(health.NewProxy(e, &health.ProxyConfig{RequireState: true,
		Problems: w.problems, Node: checks.Report, Silent: w.silent}).Handler())
	mux.Handle("/healthz", healthy)
	mux.Handle("/livez", healthy)
	var handler http.Handler = mux
	if !o.anywhere {
		handler = page.Loopback(mux)
	}
	w.log.Info("listening", "address", cmp.Or(o.socket, "http://"+l.Addr().String()))
	stop := w.serve(l, handler)
	return func() {
		stop()
		collector.Close()
		_ = shown.Close()
		_ = source.Close() // reading loses nothing
		_ = table.Close()
	}, nil
}

// open opens the address or the socket of the page. A socket that a killed process left is
// replaced.
func (w *watcher) open(ctx context.Context) (net.Listener, error) {
	if w.opts.socket == "" {
		return new(net.ListenConfig).Listen(ctx, "tcp", w.opts.listen.String())
	}
	c, err := new(net.Dialer).DialContext(ctx, "unix", w.opts.socket)
	if err == nil {
		_ = c.Close() // nothing was sent
		return nil, fmt.Errorf("another process listens at %s", w.opts.socket)
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		_ = os.Remove(w.opts.socket) // Listen says whether it stays
	}
	return new(net.ListenConfig).Listen(ctx, "unix", w.opts.socket)
}

// serve serves until stop is called. It disconnects clients that are slow or idle. stop breaks off
// answers, because clients do not need them at the end of the program.
func (w *watcher) serve(l net.Listener, h http.Handler) (stop func()) {
	server := &http.Server{Handler: h, ReadTimeout: 10 * time.Second,
		WriteTimeout: time.Minute, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		err := server.Serve(netutil.LimitListener(l, maxConns))
		if !errors.Is(err, http.ErrServerClosed) {
			w.log.Error("the page is not served any more", "error", err)
		}
	}()

	return func() {
		_ = server.Close()
		<-ended
	}
}
