package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/klog/v2"

	"github.com/kernlb/kernlb/dataplane/kubeproxy"
)

// bindAgain is the time until a failed listen is retried.
const bindAgain = 500 * time.Millisecond

// serveHealth serves /healthz and /livez until the context ends.
func (p *proxy) serveHealth(ctx context.Context) error {
	return p.serve(ctx, "healthzBindAddress", p.healthzAt,
		p.metrics.CountProbes(p.health.Handler()),
		"FailedToStartProxierHealthcheck", p.hardFail)
}

// serveMetrics serves kube-proxy's paths at metricsBindAddress until the context ends.
func (p *proxy) serveMetrics(ctx context.Context) error {
	registry := prometheus.NewRegistry()
	registry.MustRegister(p.metrics, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", text("ok"))
	mode := text(string(p.mode))
	mux.HandleFunc("GET /proxyMode", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Server", kubeproxy.Replacement) // its node checks also ask here
		mode(w, r)
	})
	mux.HandleFunc("GET /configz", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{"kubeproxy.config.k8s.io": p.config})
	})

	if p.profiling {
		mux.HandleFunc("/debug/pprof/", pprof.Index)
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
		mux.HandleFunc("PUT /debug/flags/v", setVerbosity)
	}

	for hard := p.hardFail; ; hard = false { // again after it left the address to a kube-proxy
		err := p.serve(ctx, "metricsBindAddress", p.metricsAt, mux, "FailedToStartMetricServer",
			hard)
		if err != nil || !p.metricsAt.IsValid() || !pause(ctx, giveWay) {
			return err
		}
	}
}

// text returns a handler that answers with a text.
func text(s string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		_, _ = io.WriteString(w, s)
	}
}

// setVerbosity sets the log level to the number in the body.
func setVerbosity(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 16))
	if err == nil {
		var level klog.Level
		err = level.Set(string(bytes.TrimSpace(body)))
	}

	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}

	_, _ = fmt.Fprintf(w, "successfully set klog.logging.verbosity to %s\n", body)
}

// serve serves until the context ends, or another goroutine calls inItsPlace.
func (p *proxy) serve(ctx context.Context, field string, at netip.AddrPort, h http.Handler,
	reason string, hard bool) error {
	if !at.IsValid() {
		return nil
	}
	listener, err := p.listen(ctx, field, at, reason, hard)
	if listener == nil {
		return err
	}
	if at.Port() == metricsPort && (at.Addr().IsLoopback() || at.Addr().IsUnspecified()) {
		inner, leave := context.WithCancel(ctx)
		defer leave()
		ctx = inner
		p.inItsPlace.Store(&leave)
		defer p.inItsPlace.Store(nil)
	}

	// Disconnect clients that are slow or idle. A profile may take 30 seconds.
	server := &http.Server{Handler: h, ReadTimeout: 10 * time.Second, WriteTimeout: time.Minute,
		IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("%s: %w", field, err)
	}
	return nil
}

// listen listens at an address. An unspecified address, even 0.0.0.0, means both families, as in
// kube-proxy. While another process holds the address, listen emits an event and retries; if hard
// is set (bindAddressHardFail), it returns an error instead. A cancelled context is not an error.
func (p *proxy) listen(ctx context.Context, field string, at netip.AddrPort, reason string,
	hard bool) (net.Listener, error) {
	for said := false; ; said = true {
		listener, err := new(net.ListenConfig).Listen(ctx, "tcp", at.String())
		if err == nil {
			return listener, nil
		}
		err = fmt.Errorf("%s: %w (does kube-proxy still run?)", field, err)
		if !said {
			p.log.Error("cannot listen", "err", err)
			p.events.node("Warning", reason, "StartKubeProxy", err.Error())
		}

		if hard {
			return nil, err
		}
		if !pause(ctx, bindAgain) {
			return nil, nil
		}
	}
}

// pause waits, and reports whether the context has not ended.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// fileLook is the interval between checks of the configuration file.
const fileLook = 10 * time.Second

// errFileChanged ends the program, so that its supervisor restarts it with the new configuration,
// as with kube-proxy. The kernel keeps the services during the restart.
var errFileChanged = errors.New("the configuration file changed")

// watchFile returns an error when the configuration file has changed.
func (o *options) watchFile(ctx context.Context) error {
	if o.doc == nil {
		return nil
	}
	for pause(ctx, fileLook) {
		now, err := os.ReadFile(o.doc.name)
		if err == nil && !bytes.Equal(now, o.doc.text) {
			return fmt.Errorf("%s: %w", o.doc.name, errFileChanged)
		}
	}

	return nil
}
