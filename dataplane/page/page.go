package page

import (
	"cmp"
	"context"
	"iter"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/counters"
	"github.com/kernlb/kernlb/dataplane/hooks"
	"github.com/kernlb/kernlb/dataplane/node"
	"github.com/kernlb/kernlb/dataplane/silence"
	"github.com/kernlb/kernlb/internal/serve"
	"github.com/kernlb/kernlb/servicemodel"
)

// Config tunes a [Page]. A nil *Config is the zero Config.
type Config struct {
	// Conntrack is the conntrack table, such as a *conntrack.Table. The page shows its size and
	// limit and, on request, the connections of a service. If it is nil, the page says that these
	// are unknown. Its methods must be safe for concurrent use.
	Conntrack interface {
		// Usage returns the size and limit of the table.
		Usage(ctx context.Context) (conntrack.Usage, error)
		// Flows yields flows of the table.
		Flows(ctx context.Context, f conntrack.Filter) iter.Seq2[conntrack.Flow, error]
		// NodeAddrs returns the addresses of the node in the ranges.
		NodeAddrs(ranges []netip.Prefix) ([]netip.Addr, error)
	}
	// Counters are the counters of services, read on request: counters.Counters, ipvs.Counters or
	// flows.Counters. If it is nil, the page says that the counts are unknown.
	Counters counters.Source
	// Addresses returns the node's own addresses, for traces and counters. Nil means
	// net.InterfaceAddrs.
	Addresses func() ([]netip.Addr, error)
	// Hooks reads the nf_tables chains that packets pass, such as hooks.Read, to show which chains
	// of other programs drop packets. If it is nil, the page says that this is unknown.
	Hooks func(context.Context) ([]hooks.Chain, error)
	// Node checks the node for the services in the kernel, such as [node.Checker.Report]. If it is
	// nil, the page says that the findings are unknown.
	Node func(context.Context, *servicemodel.Table) *node.Report
	// Dial opens a TCP connection from this node to see whether an endpoint answers. The page calls
	// it only for a POST that comes from the page itself, and closes the connection at once. In all
	// other respects, the page only reads. If it is nil, the page cannot check endpoints.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Problems returns problems of the program's input that the engine does not see, such as a
	// broken manifest, one line each. Each page shows the number of problems, and /refused lists
	// them. Nil means no problems.
	Problems func() []string
	// Silent returns the endpoints that do not answer clients, ejected or on trial, such as
	// [silence.Follower.Silent]. Nil means no endpoints.
	Silent func() []silence.Change
	// Links are further pages of the program for the navigation: texts and addresses, relative
	// to the page, such as "Backends" and "backends".
	Links map[string]string
	// Recent is the number of the engine's events that the page keeps. Zero means 100, negative no
	// events.
	Recent int
}

// Page is an http.Handler that shows the contents and the work of an engine. Create it with [New],
// and close it. Its methods are safe for concurrent use.
type Page struct {
	engine *dataplane.Engine
	cfg    Config
	mux    *http.ServeMux
	recent *ring
	close  func()
	turn   chan struct{} // holds a token during expensive work

	mu     sync.Mutex
	listed *listing // the services of the last status that was shown
}

// New returns the page of an engine. The page does not show earlier events of the engine. A nil
// engine counts as idle.
func New(e *dataplane.Engine, cfg *Config) *Page {
	e = cmp.Or(e, new(dataplane.Engine))
	p := &Page{engine: e, cfg: *cmp.Or(cfg, &Config{}), mux: http.NewServeMux(),
		turn: make(chan struct{}, 1)}
	if p.cfg.Addresses == nil {
		p.cfg.Addresses = serve.HostAddrs
	}
	if p.cfg.Problems == nil {
		p.cfg.Problems = func() []string { return nil }
	}
	if p.cfg.Silent == nil {
		p.cfg.Silent = func() []silence.Change { return nil }
	}
	p.recent = &ring{size: max(0, cmp.Or(p.cfg.Recent, 100))}
	p.close = e.Subscribe(p.recent.observe)
	p.routes()
	return p
}

// Close stops observing the engine. It always succeeds.
func (p *Page) Close() error {
	p.close()
	return nil
}

func (p *Page) routes() {
	p.mux.HandleFunc("GET /style.css", func(w http.ResponseWriter, r *http.Request) {
		http.ServeFileFS(w, r, files, "files/style.css")
	})

	// Other sites cannot make a browser send this request.
	same := http.NewCrossOriginProtection()
	p.mux.Handle("POST /ask", same.Handler(p.html("ask", p.ask)))
	p.mux.Handle("POST /ask.json", same.Handler(p.json(p.ask)))
	for name, v := range map[string]view{
		"services":  p.services,
		"service":   p.service,
		"refused":   p.refused,
		"recent":    p.recentEvents,
		"conntrack": p.conntrack,
		"trace":     p.trace,
		"hooks":     p.hooks,
		"node":      p.node,
	} {
		if name == "services" {
			p.mux.Handle("GET /{$}", p.html(name, v))
		}
		p.mux.Handle("GET /"+name, p.html(name, v))
		p.mux.Handle("GET /"+name+".json", p.json(v))
	}
}

// ServeHTTP answers GET and HEAD, and POST at /ask.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'self'; form-action 'self'; "+
		"base-uri 'none'; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	p.mux.ServeHTTP(w, r)
}

// Loopback returns a handler that refuses requests whose Host is neither a loopback address nor
// localhost. Use it for a listener on a loopback address. Otherwise, a web site could point its own
// name at 127.0.0.1, and make a browser on this machine read the answers (DNS rebinding).
func Loopback(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.Host)
		if err != nil {
			host = strings.Trim(r.Host, "[]") // without a port
		}
		addr, err := netip.ParseAddr(host)
		if host != "localhost" && (err != nil || !addr.IsLoopback()) {
			http.Error(w, "this is served to loopback addresses and localhost only",
				http.StatusMisdirectedRequest)
			return
		}

		h.ServeHTTP(w, r)
	})
}

// table returns the kernel's table. If that is unknown, it returns the table of the desired state,
// and known is false.
func table(s *dataplane.Status) (t *servicemodel.Table, known bool, err error) {
	if s.Held != nil {
		return s.Held, true, nil
	}
	t, err = servicemodel.Resolve(nil, s.State)
	return t, false, err
}
