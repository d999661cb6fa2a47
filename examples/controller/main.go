// Controller balances services that other programs declare over HTTP. It shows what a program that
// runs for years needs: it waits for the kernel, says what was refused and warned about, keeps its
// state in a file, guards against large removals, drains, and serves health and metrics.
//
//	controller [-listen 127.0.0.1:8080] [-file controller.json] [-removes 0] [-cleanup]
//
//	curl -X PUT 127.0.0.1:8080/services/default/web -d '{"service": {…}, "endpoints": [{…}]}'
//	curl -X PUT '127.0.0.1:8080/services/default/web?plan' -d … # what it would do; or -X DELETE
//	curl 127.0.0.1:8080/services # or /status, /healthz, /metrics
package main

import (
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

type options struct {
	listen, file string
	removes      int
	cleanup      bool
}

func main() {
	var o options
	flag.StringVar(&o.listen, "listen", "127.0.0.1:8080", "`address` of the API; it has no login")
	flag.StringVar(&o.file, "file", "controller.json", "where the state is kept")
	flag.IntVar(&o.removes, "removes", 0, "at most so many frontends are removed at once; 0: any")
	flag.BoolVar(&o.cleanup, "cleanup", false, "remove all that the program has in the kernel")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := start(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "controller:", err)
		os.Exit(1)
	}
}

// start opens the kernel, and cleans up or serves.
func start(ctx context.Context, o options) error {
	backend, err := nftables.New(&nftables.Config{Table: "controller"})
	if err != nil {
		return err
	}
	defer backend.Close()
	if o.cleanup {
		_, err := dataplane.New(backend, nil).Cleanup(ctx)
		return err
	}
	table, err := conntrack.Open(nil)
	if err != nil {
		return err
	}
	defer table.Close()
	keeper, err := flows.New(table, &flows.Config{Logger: slog.Default()})
	if err != nil {
		return err
	}
	return run(ctx, o, backend, keeper)
}

// saved is the file. Accepted has the last good definitions of services that are refused now.
type saved struct{ Wanted, Accepted servicemodel.State }

// controller is the state that others declare, and the engine that makes the kernel hold it.
type controller struct {
	engine *dataplane.Engine
	file   string
	mu     sync.Mutex
	state  servicemodel.State
}

// newController reads the file, and makes an engine. The kernel stays as it is until Run.
func newController(o options, b backends.Backend, f dataplane.Flows) (*controller, error) {
	var s saved
	data, err := os.ReadFile(o.file)
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // nothing is better than a wrong state
		return nil, fmt.Errorf("%s: %w", o.file, err)
	}
	approve := func(_ context.Context, p *dataplane.Preview) error {
		if n := p.Changes.Counts().Removed; o.removes > 0 && n > o.removes {
			return fmt.Errorf("%d frontends would go, and -removes is %d", n, o.removes)
		}
		return nil
	}
	c := &controller{file: o.file, state: s.Wanted, engine: dataplane.New(b, &dataplane.Config{
		Logger: slog.Default(), Flows: f, Approve: approve, KeepRefused: true,
		Accepted: s.Accepted})}
	c.engine.Set(c.state)
	return c, nil
}

// run serves until the context ends, and then ends what is under way. The kernel stays as it is.
func run(ctx context.Context, o options, b backends.Backend, f dataplane.Flows) error {
	c, err := newController(o, b, f)
	if err != nil {
		return err
	}
	checks := node.NewChecker(nil)
	proxy := health.NewProxy(c.engine, &health.ProxyConfig{RequireState: true, Node: checks.Report})
	ports := health.NewNodePorts(&health.NodePortsConfig{Healthy: proxy.Healthy})
	defer ports.Close()
	defer ports.Follow(c.engine, func(err error) { slog.Warn("health check ports", "err", err) })()
	collector := metrics.New(c.engine, &metrics.Config{Node: checks.Report})
	defer collector.Close()
	registry := prometheus.NewRegistry()
	registry.MustRegister(collector)

	mux := c.routes()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.Handle("/", collector.CountProbes(proxy.Handler())) // /healthz and /livez
	server := &http.Server{Addr: o.listen, Handler: mux, ReadTimeout: 10 * time.Second}
	served := make(chan error, 1)
	go func() { served <- server.ListenAndServe() }()

	work, end := context.WithCancel(context.WithoutCancel(ctx)) // the engine runs until all is done
	ran := make(chan error, 1)
	go func() { ran <- c.engine.Run(work, nil) }()
	select {
	case err = <-served: // it cannot listen
	case <-ctx.Done():
		_ = server.Close()
		limited, cancel := context.WithTimeout(work, 30*time.Second) // for endpoints that drain
		err = c.engine.Finish(limited)
		cancel()
	}
	end()
	<-ran
	return err
}

// routes returns the API.
func (c *controller) routes() *http.ServeMux {
	mux := http.NewServeMux()
	handle := func(pattern string, f func(*http.Request) (code int, answer any)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			code, v := f(r)
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(code)
			_ = json.NewEncoder(w).Encode(v) // the client is gone
		})
	}
	handle("GET /services", func(*http.Request) (int, any) { return 200, c.engine.Status().State })
	handle("GET /status", func(*http.Request) (int, any) { return 200, c.engine.Status() })
	handle("PUT /services/{namespace}/{name}", c.put)
	handle("DELETE /services/{namespace}/{name}", func(r *http.Request) (int, any) {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.change(r, c.state.WithoutService(nameOf(r)).WithEndpoints(nameOf(r), nil))
	})
	return mux
}

func nameOf(r *http.Request) servicemodel.Name {
	return servicemodel.Name{Namespace: r.PathValue("namespace"), Name: r.PathValue("name")}
}

// put declares a service and its endpoints.
func (c *controller) put(r *http.Request) (code int, answer any) {
	var o struct {
		Service   servicemodel.Service
		Endpoints []servicemodel.Endpoint
	}
	d := json.NewDecoder(http.MaxBytesReader(nil, r.Body, 1<<20))
	d.DisallowUnknownFields()
	if err := d.Decode(&o); err != nil {
		return http.StatusBadRequest, problems(err)
	}
	if o.Service.Name != nameOf(r) {
		return http.StatusBadRequest, problems(errors.New("service.name is not that of the URL"))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.change(r, c.state.WithService(&o.Service).WithEndpoints(nameOf(r), o.Endpoints))
}

// change waits until the kernel holds the next state. The answer to an invalid one, to one that is
// not approved, and to a refused service has the reasons, and the state stays.
func (c *controller) change(r *http.Request, next servicemodel.State) (code int, answer any) {
	if r.URL.Query().Has("plan") {
		p, err := c.engine.Plan(r.Context(), next)
		if err != nil {
			return http.StatusUnprocessableEntity, problems(err)
		}
		return http.StatusOK, p
	}

	ctx, cancel := context.WithTimeout(r.Context(), 10*time.Second)
	defer cancel()
	err := c.engine.Wait(ctx, c.engine.Set(next))
	status := c.engine.Status()
	for _, refused := range status.Refused {
		if err == nil && refused.Service == nameOf(r) {
			err = refused.Err
		}
	}
	if err != nil && ctx.Err() == nil {
		c.engine.Set(c.state)
		return http.StatusUnprocessableEntity, problems(err)
	}

	c.state = next // if the time is over, the kernel is busy, and the engine goes on
	data, err := json.Marshal(saved{next, status.Accepted})
	if err == nil {
		err = os.WriteFile(c.file+".new", data, 0o600)
	}
	if err == nil {
		err = os.Rename(c.file+".new", c.file)
	}
	if err != nil {
		return http.StatusInternalServerError, problems(err)
	}
	return http.StatusOK, map[string]any{"pending": status.Pending(),
		"warnings": status.Warnings.Of(nameOf(r))}
}

// problems lists what an error joins.
func problems(err error) map[string][]string {
	var l []string
	for _, p := range dataplane.Problems(err) {
		l = append(l, p.Err.Error())
	}
	return map[string][]string{"problems": l}
}
