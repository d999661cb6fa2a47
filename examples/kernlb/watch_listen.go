package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/counters"
	"github.com/kernlb/kernlb/dataplane/health"
	"github.com/kernlb/kernlb/dataplane/hooks"
	"github.com/kernlb/kernlb/dataplane/page"
	"github.com/kernlb/kernlb/internal/serve"
)

// listenOptions are the flags about the page of watch.
type listenOptions struct {
	address  string
	anywhere bool
	at       netip.AddrPort // the address
}

func (o *options) listenFlags(fs *flag.FlagSet) func() error {
	l := &o.listen
	fs.StringVar(&l.address, "listen", "",
		"serve a page that shows services, traces packets and tells what was done, and /healthz "+
			"and /livez beside it, at `IP:PORT`, such as 127.0.0.1:10256 (default: none)")
	fs.BoolVar(&l.anywhere, "listen-anywhere", false, "let -listen be an address that others than "+
		"this machine reach; all who do can read the page")
	return func() (err error) {
		if l.address == "" {
			return nil
		}
		if l.at, err = netip.ParseAddrPort(l.address); err != nil {
			return fmt.Errorf("-listen: %q: want IP:PORT, such as 127.0.0.1:10256", l.address)
		}
		if !l.at.Addr().IsLoopback() && !l.anywhere {
			return fmt.Errorf("-listen: %s: others than this machine reach it, and could read the "+
				"page; if they shall, say -listen-anywhere", l.address)
		}
		return nil
	}
}

// maxConns is the maximum number of connections of the page.
const maxConns = 256

// everywhere are the ranges of all addresses.
var everywhere = []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0),
	netip.PrefixFrom(netip.IPv6Unspecified(), 0)}

// listen serves the page of an engine, if the flags have an address. The returned function ends
// that.
func (w *watcher) listen(ctx context.Context, e *dataplane.Engine) (func(), error) {
	o := &w.opts.listen
	if o.address == "" {
		return func() {}, nil
	}
	readers, err := w.openReaders()
	if err != nil {
		return nil, err
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", o.at.String())
	if err != nil {
		readers.Close()
		return nil, fmt.Errorf("-listen: %w", err)
	}
	shown := page.New(e, w.pageConfig(readers))
	mux := http.NewServeMux()
	mux.Handle("/", shown)
	healthy := health.NewProxy(e, &health.ProxyConfig{RequireState: true,
		Problems: w.problems}).Handler()
	mux.HandleFunc("GET /metrics", func(a http.ResponseWriter, _ *http.Request) {
		a.Header().Set("Content-Type", "text/plain; version=0.0.4")
		s := e.Status()
		_, _ = fmt.Fprint(a, metricsText(&s, len(w.problems()))) // the client is gone
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
		readers.Close()
	}, nil
}

// serve serves until stop is called. stop breaks off answers, because clients do not need them at
// the end of the program.
func (w *watcher) serve(l net.Listener, h http.Handler) (stop func()) {
	server, ended := serve.Server(h), make(chan struct{})
	go func() {
		defer close(ended)
		err := server.Serve(serve.NewLimit(maxConns).Listener(l))
		if !errors.Is(err, http.ErrServerClosed) {
			w.log.Error("the page is not served any more", "error", err)
		}
	}()
	return func() {
		_ = server.Close()
		<-ended
	}
}

// readers read the kernel for the page.
type readers struct {
	table    *conntrack.Table
	counters counters.Source
	all      []io.Closer
}

// openReaders opens the readers, in the network namespace of the calling thread.
func (p *program) openReaders() (*readers, error) {
	r := &readers{}
	if err := p.open(r); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// open opens the readers one after the other.
func (p *program) open(r *readers) (err error) {
	if r.table, err = conntrack.Open(nil); err != nil {
		return err
	}
	r.all = append(r.all, r.table)
	from, err := p.source()
	if err == nil {
		r.counters, r.all = from, append(r.all, from)
	}
	return err
}

// Close closes the open readers.
func (r *readers) Close() {
	for _, c := range r.all {
		_ = c.Close() // reading loses nothing
	}
}

// pageConfig returns the configuration of the page, which reads everything in the network namespace
// of the readers.
func (w *watcher) pageConfig(r *readers) *page.Config {
	table := r.table
	return &page.Config{Problems: w.problems, Conntrack: table, Counters: r.counters,
		Addresses: func() ([]netip.Addr, error) { return table.NodeAddrs(everywhere) },
		Dial: func(ctx context.Context, network, address string) (conn net.Conn, err error) {
			err = table.Do(func() error {
				conn, err = new(net.Dialer).DialContext(ctx, network, address)
				return err
			})
			return conn, err
		},
		Hooks: func(ctx context.Context) (chains []hooks.Chain, err error) {
			err = table.Do(func() (err error) {
				chains, err = hooks.Read(ctx, nil, w.ownsTable)
				return err
			})
			return chains, err
		}}
}
