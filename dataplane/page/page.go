package page

import (
	"context"
	"iter"
	"net"
	"net/http"
	"net/netip"
	"sync"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/counters"
	"github.com/kernlb/kernlb/servicemodel"
	"github.com/kernlb/kernlb/servicemodel/graph"
)

// Config tunes a [Page]. A nil *Config is the zero Config.
type Config struct {
	// Conntrack is asked how full its table is, and for the connections of a service when somebody
	// wants to see them. Nil: the page says that it is not known.
	Conntrack Conntrack
	// Counters are what services have had, read when somebody wants to see it: counters.Counters,
	// ipvs.Counters or flows.Counters. Nil: the page says that it is not known.
	Counters counters.Source
	// Addresses returns the node's own addresses, for traces and for counters. Nil means those of
	// net.InterfaceAddrs.
	Addresses func() ([]netip.Addr, error)
	// Hooks reads the chains of nf_tables that packets pass, as hooks.Reader does, to show which of
	// other programs drop packets. Nil: the page says that it is not known.
	Hooks func(context.Context) ([]graph.Chain, error)
	// Dial opens a TCP connection from this node, to tell whether an endpoint answers, when
	// somebody asks for that with a POST from the page itself; it is closed again at once. It is
	// the one thing that the page does besides reading. Nil: nobody can ask.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Recent is how many things that the engine did are kept. Zero means 100.
	Recent int
}

// Conntrack is the conntrack table that a page shows, as *conntrack.Table is. Its methods are
// called by several goroutines.
type Conntrack interface {
	// Usage says how full the table is.
	Usage(ctx context.Context) (conntrack.Usage, error)
	// Flows yields flows of the table.
	Flows(ctx context.Context, f conntrack.Filter) iter.Seq2[conntrack.Flow, error]
	// NodeAddrs returns the addresses of the node in the ranges.
	NodeAddrs(ranges []netip.Prefix) ([]netip.Addr, error)
}

var _ Conntrack = (*conntrack.Table)(nil)

// Page is an http.Handler that shows what an engine holds and does. It must be made by [New], and
// closed. Its methods may be called by several goroutines.
type Page struct {
	engine *dataplane.Engine
	cfg    Config
	mux    *http.ServeMux
	recent *ring
	close  func()
	turn   chan struct{} // holds a token while something is done that takes long

	mu     sync.Mutex
	listed *listing // the services of the last status that somebody looked at
}

// New returns the page of an engine. What the engine did before is not on it.
func New(e *dataplane.Engine, cfg *Config) *Page {
	p := &Page{engine: e, mux: http.NewServeMux(), turn: make(chan struct{}, 1)}
	if cfg != nil {
		p.cfg = *cfg
	}
	if p.cfg.Addresses == nil {
		p.cfg.Addresses = interfaceAddrs
	}
	if p.cfg.Recent == 0 {
		p.cfg.Recent = 100
	}
	p.recent = &ring{size: p.cfg.Recent}
	p.close = e.Subscribe(p.recent.observe)
	p.routes()
	return p
}

// Close ends the listening to the engine. It always succeeds.
func (p *Page) Close() error {
	p.close()
	return nil
}

// routes are the paths.
func (p *Page) routes() {
	p.mux.HandleFunc("GET /style.css", serveStyle)
	// Other sites cannot make a browser ask.
	same := http.NewCrossOriginProtection()
	p.mux.Handle("POST /ask", same.Handler(http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) { p.serveHTML(w, r, "ask", p.ask) })))
	p.mux.Handle("POST /ask.json", same.Handler(http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) { p.serveJSON(w, r, p.ask) })))
	for name, v := range map[string]view{
		"services":  p.services,
		"service":   p.service,
		"refused":   p.refused,
		"recent":    p.recentEvents,
		"conntrack": p.conntrack,
		"trace":     p.trace,
		"hooks":     p.hooks,
	} {
		path := "/" + name
		if name == "services" {
			path = "/{$}"
		}
		p.mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
			p.serveHTML(w, r, name, v)
		})
		p.mux.HandleFunc("GET /"+name+".json", func(w http.ResponseWriter, r *http.Request) {
			p.serveJSON(w, r, v)
		})
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
// localhost, for a listener on a loopback address. Otherwise any web site could have a browser on
// this machine read the answers, by giving its own name the address 127.0.0.1 (DNS rebinding).
func Loopback(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.Host)
		if err != nil {
			host = r.Host
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

func interfaceAddrs() ([]netip.Addr, error) {
	l, err := net.InterfaceAddrs()
	var addrs []netip.Addr
	for _, a := range l {
		if n, ok := a.(*net.IPNet); ok {
			if addr, ok := netip.AddrFromSlice(n.IP); ok {
				addrs = append(addrs, addr.Unmap())
			}
		}
	}
	return addrs, err
}

// table returns the table that the kernel holds. Where that is not known, it is what the state
// that is wanted means, and known is false.
func table(s *dataplane.Status) (t *servicemodel.Table, known bool, err error) {
	if s.Held != nil {
		return s.Held, true, nil
	}
	t, err = servicemodel.Resolve(nil, s.State)
	return t, false, err
}
