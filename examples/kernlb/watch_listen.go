package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/netutil"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/health"
	"github.com/kernlb/kernlb/dataplane/hooks"
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
	if !o.listen.IsValid() {
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
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", o.listen.String())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("-listen: %w", err), source.Close(), table.Close())
	}
	checks := node.NewChecker(&node.Config{Ours: instance.Owns(o.instance)})
	shown := page.New(e, &page.Config{Problems: w.problems, Conntrack: table, Counters: source,
		Node: checks.Report,
		Dial: new(net.Dialer).DialContext,
		Hooks: func(ctx context.Context) ([]hooks.Chain, error) {
			return hooks.Read(ctx, nil, w.opts.ownsTable)
		}})
	mux := http.NewServeMux()
	mux.Handle("/", shown)
	healthy := health.NewProxy(e, &health.ProxyConfig{RequireState: true,
		Problems: w.problems, Node: checks.Report}).Handler()
	var serving health.ServingCache
	mux.HandleFunc("GET /metrics", func(a http.ResponseWriter, r *http.Request) {
		a.Header().Set("Content-Type", "text/plain; version=0.0.4")
		s := e.Status()
		text := metricsText(&s, serving.Of(s), len(w.problems())) +
			nodeText(checks.Report(r.Context(), s.Held))
		_, _ = io.WriteString(a, text) // the client is gone
	})
	mux.Handle("/healthz", healthy)
	mux.Handle("/livez", healthy)
	var handler http.Handler = mux
	if !o.anywhere {
		handler = page.Loopback(mux)
	}
	w.log.Info("listening", "address", "http://"+l.Addr().String())
	stop := w.serve(l, handler)
	return func() {
		stop()
		_ = shown.Close()
		_ = source.Close() // reading loses nothing
		_ = table.Close()
	}, nil
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

// metricsText returns those metrics of dataplane/metrics that the alerts need, under the same
// names. A Prometheus client would be larger than the rest of the program.
func metricsText(s *dataplane.Status, serving *health.Serving, problems int) string {
	pending, running := 0.0, 0.0
	if s.Pending() {
		pending = time.Since(s.PendingSince).Seconds()
	}
	if s.Running {
		running = 1
	}
	var b strings.Builder
	for _, m := range []struct {
		name, kind, help string
		value            float64
	}{
		{"running", "gauge", "1 while the engine keeps the kernel as it should be.", running},
		{"pending_seconds", "gauge",
			"How long something that is wanted has not been in the kernel; 0 if all is.", pending},
		{"input_problems", "gauge", "What is wrong with the manifests.", float64(problems)},
		{"refused_services", "gauge",
			"Services that are refused: left out of the kernel, or left as they were. A family " +
				"that the kernel lacks counts as one.",
			float64(len(s.Refused))},
		{"claim_conflicts", "gauge",
			"Addresses and ports that a service claims and another one has.",
			float64(len(s.Conflicts))},
		{"warnings", "gauge", "Warnings about services.", float64(s.Warnings.Len())},
		{"wanted_services", "gauge", "Services that are wanted.", float64(s.State.Len())},
		{"repairs_total", "counter",
			"Applies that put right what others had done to the kernel.",
			float64(s.Totals.Repairs)},
	} {
		fmt.Fprintf(&b, "# HELP kernlb_%s %s\n# TYPE kernlb_%s %s\nkernlb_%s %g\n", m.name,
			m.help, m.name, m.kind, m.name, m.value)
	}

	if serving == nil {
		return b.String()
	}
	outcomes := serving.Outcomes()
	b.WriteString("# HELP kernlb_services Wanted services by what their clients meet at this " +
		"node.\n# TYPE kernlb_services gauge\n")
	for _, outcome := range slices.Sorted(maps.Keys(outcomes)) {
		fmt.Fprintf(&b, "kernlb_services{outcome=%q} %d\n", outcome, outcomes[outcome])
	}
	return b.String()
}

// nodeText returns the metrics of the checks of the node.
func nodeText(r *node.Report) string {
	var b strings.Builder
	b.WriteString("# HELP kernlb_node_checks What each check of the node found that loses " +
		"connections of clients: now (error) or perhaps (warning).\n" +
		"# TYPE kernlb_node_checks gauge\n")
	for _, check := range node.Checks() {
		for _, severity := range []node.Severity{node.Error, node.Warning} {
			fmt.Fprintf(&b, "kernlb_node_checks{check=%q,severity=%q} %d\n", check, severity,
				r.Count(check, severity))
		}
	}
	return b.String()
}
