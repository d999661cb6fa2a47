// Controller balances services that other programs declare over HTTP. It shows the needs of a
// program that runs for years: it waits for the kernel, reports refusals and warnings, keeps its
// state in a file, guards against large removals, drains, and serves health and metrics.
//
//	controller [-listen 127.0.0.1:8080] [-file controller.json] [-removes 100]
//
//	curl -X PUT 127.0.0.1:8080/services/default/web -d '{"service": {…}, "endpoints": [{…}]}'
//	curl 127.0.0.1:8080/services # or /status, /healthz, /metrics; -X DELETE removes a service
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/flows"
	"github.com/kernlb/kernlb/dataplane/health"
	"github.com/kernlb/kernlb/dataplane/metrics"
	"github.com/kernlb/kernlb/dataplane/node"
	"github.com/kernlb/kernlb/nftables"
	"github.com/kernlb/kernlb/servicemodel"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:8080", "`address` of the API; it has no login")
	file := flag.String("file", "controller.json", "where the state is kept")
	removes := flag.Int("removes", 100, "at most so many frontends and endpoints go at once")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := start(ctx, *listen, *file, *removes); err != nil {
		fmt.Fprintln(os.Stderr, "controller:", err)
		os.Exit(1)
	}
}

// start opens the kernel, and serves.
func start(ctx context.Context, listen, file string, removes int) error {
	backend, err := nftables.New(&nftables.Config{Table: "controller"})
	if err != nil {
		return err
	}
	defer backend.Close()
	table, err := conntrack.Open(nil)
	if err != nil {
		return err
	}
	defer table.Close()
	keeper, err := flows.New(table, &flows.Config{Logger: slog.Default()})
	if err != nil {
		return err
	}
	c, err := open(file, removes, backend, keeper)
	if err != nil {
		return err
	}
	return c.run(ctx, listen)
}

// saved is the file. Accepted has the last good definitions of services that are refused now.
type saved struct{ Wanted, Accepted servicemodel.State }

// controller is the state that other programs declare, and the engine that programs the kernel.
type controller struct {
	engine *dataplane.Engine
	file   string
	mu     sync.Mutex
	state  servicemodel.State
}

// open reads the file, and creates an engine. The kernel stays as it is until Run.
func open(file string, removes int, b backends.Backend, f dataplane.Flows) (*controller, error) {
	var s saved
	data, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // nothing is better than a wrong state
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	approve := func(_ context.Context, p *dataplane.Preview) error {
		if n := p.Changes.Counts().Removed; n > removes {
			return fmt.Errorf("%d frontends and endpoints would go, and -removes is %d", n, removes)
		}
		return nil
	}
	c := &controller{file: file, state: s.Wanted, engine: dataplane.New(b, &dataplane.Config{
		Logger: slog.Default(), Flows: f, Approve: approve, KeepRefused: true,
		Accepted: s.Accepted})}
	c.engine.Set(c.state)
	return c, nil
}

// run serves until the context ends, and then completes pending work. The kernel stays as it is.
func (c *controller) run(ctx context.Context, listen string) error {
	checks := node.NewChecker(&node.Config{
		Undone: func() string { return c.engine.Status().Undone.String() }})
	proxy := health.NewProxy(c.engine, &health.ProxyConfig{RequireState: true, Node: checks.Report})
	collector := metrics.New(c.engine, &metrics.Config{Node: checks.Report})
	defer collector.Close()
	registry := prometheus.NewRegistry()
	registry.MustRegister(collector)
	mux := c.routes()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.Handle("/", collector.CountProbes(proxy.Handler())) // /healthz and /livez

	work, end := context.WithCancel(context.WithoutCancel(ctx)) // the engine runs until all is done
	ran := make(chan error, 1)
	go func() { ran <- c.engine.Run(work, nil) }()
	server := &http.Server{Addr: listen, Handler: mux, ReadTimeout: 10 * time.Second}
	defer context.AfterFunc(ctx, func() { server.Close() })()
	err := server.ListenAndServe()
	if errors.Is(err, http.ErrServerClosed) { // else it cannot listen
		limited, cancel := context.WithTimeout(work, 30*time.Second) // for endpoints that drain
		err = c.engine.Finish(limited)
		cancel()
	}
	end()
	<-ran
	return err
}

// routes returns the API. The body of an answer that is not 200 is a list of problems, with fields.
func (c *controller) routes() *http.ServeMux {
	mux := http.NewServeMux()
	handle := func(pattern string, f func(*http.Request) (any, error)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			answer, err := f(r)
			if err != nil {
				w.WriteHeader(http.StatusUnprocessableEntity)
				answer = dataplane.Problems(err)
			}
			_ = json.NewEncoder(w).Encode(answer) // the client is gone
		})
	}
	e := c.engine
	handle("GET /services", func(*http.Request) (any, error) { return e.Status().State, nil })
	handle("GET /status", func(*http.Request) (any, error) { return e.Status(), nil })
	handle("PUT /services/{namespace}/{name}", c.change)
	handle("DELETE /services/{namespace}/{name}", c.change)
	return mux
}

// change waits until the kernel holds a service, or nothing of it. The answer names services that
// are refused or lose an address to another service. A state that is not approved is withdrawn.
func (c *controller) change(r *http.Request) (any, error) {
	var o struct {
		Service   *servicemodel.Service
		Endpoints []servicemodel.Endpoint
	}
	name := servicemodel.Name{Namespace: r.PathValue("namespace"), Name: r.PathValue("name")}
	if r.Method == http.MethodPut {
		d := json.NewDecoder(http.MaxBytesReader(nil, r.Body, 1<<20))
		d.DisallowUnknownFields()
		if err := d.Decode(&o); err != nil || o.Service == nil || o.Service.Name != name {
			return nil, cmp.Or(err, errors.New("service.name is not that of the URL"))
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	next := c.state.WithoutService(name).WithEndpoints(name, o.Endpoints)
	if o.Service != nil {
		next = next.WithService(o.Service)
	}
	ctx, cancel := context.WithTimeout(r.Context(), 10*time.Second)
	defer cancel()
	err := c.engine.Wait(ctx, c.engine.Set(next))
	if err != nil && ctx.Err() == nil {
		c.engine.Set(c.state)
		return nil, err
	}
	c.state = next // if the time is over, the kernel is busy, and the engine goes on
	status := c.engine.Status()
	data, err := json.Marshal(saved{next, status.Accepted})
	if err == nil {
		err = os.WriteFile(c.file+".new", data, 0o600)
	}
	if err == nil {
		err = os.Rename(c.file+".new", c.file)
	}
	return map[string]any{"pending": status.Pending(), "refused": status.Refused,
		"conflicts": status.Conflicts, "warnings": status.Warnings.Of(name)}, err
}
