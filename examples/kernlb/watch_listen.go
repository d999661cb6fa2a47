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
	"time"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/counters"
	"github.com/kernlb/kernlb/dataplane/health"
	"github.com/kernlb/kernlb/dataplane/hooks"
	"github.com/kernlb/kernlb/dataplane/page"
	"github.com/kernlb/kernlb/servicemodel/graph"
)

// listenOptions are the flags about the page of watch.
type listenOptions struct {
	address  string
	anywhere bool
	at       netip.AddrPort // the address
}

func (o *listenOptions) define(fs *flag.FlagSet) {
	fs.StringVar(&o.address, "listen", "",
		"watch: serve a page that shows services, traces packets and tells what was done, and "+
			"/healthz and /livez beside it, at `IP:PORT`, such as 127.0.0.1:10256 (default: none)")
	fs.BoolVar(&o.anywhere, "listen-anywhere", false,
		"watch: let -listen be an address that others than this machine reach; all who do can "+
			"read the page")
}

// check reads the flags.
func (o *listenOptions) check() (err error) {
	if o.address == "" {
		return nil
	}
	if o.at, err = netip.ParseAddrPort(o.address); err != nil {
		return fmt.Errorf("-listen: %q: want IP:PORT, such as 127.0.0.1:10256", o.address)
	}
	if !o.at.Addr().IsLoopback() && !o.anywhere {
		return fmt.Errorf("-listen: %s: others than this machine reach it, and could read the "+
			"page; if they shall, say -listen-anywhere", o.address)
	}
	return nil
}

// everywhere are the ranges of all addresses.
var everywhere = []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0),
	netip.PrefixFrom(netip.IPv6Unspecified(), 0)}

// listen serves the page of an engine, if the flags say where. The function that it returns ends
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
	healthy := health.NewProxy(e, nil).Handler()
	mux.Handle("/healthz", healthy)
	mux.Handle("/livez", healthy)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second,
		WriteTimeout: time.Minute}
	if !o.anywhere {
		server.Handler = page.Loopback(mux)
	}
	w.log.Info("listening", "address", "http://"+l.Addr().String())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			w.log.Error("the page is not served any more", "error", err)
		}
	}()
	return func() {
		_ = server.Close() // who is reading loses nothing of value
		<-ended
		_ = shown.Close()
		readers.Close()
	}, nil
}

// readers read what the page shows of the kernel.
type readers struct {
	table    *conntrack.Table
	hooks    *hooks.Reader
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

// open opens one reader after the other.
func (p *program) open(r *readers) (err error) {
	if r.table, err = conntrack.Open(nil); err != nil {
		return err
	}
	r.all = append(r.all, r.table)
	if r.hooks, err = hooks.Open(); err != nil {
		return err
	}
	r.all = append(r.all, r.hooks)
	from, err := p.source()
	if err == nil {
		r.counters, r.all = from, append(r.all, from)
	}
	return err
}

// Close closes those that were opened.
func (r *readers) Close() {
	for _, c := range r.all {
		_ = c.Close() // nothing that was read is lost
	}
}

// pageConfig says what the page shows, all of it in the network namespace of the readers.
func (w *watcher) pageConfig(r *readers) *page.Config {
	table := r.table
	return &page.Config{Conntrack: table, Counters: r.counters,
		Addresses: func() ([]netip.Addr, error) { return table.NodeAddrs(everywhere) },
		Dial: func(ctx context.Context, network, address string) (conn net.Conn, err error) {
			err = table.Do(func() error {
				conn, err = new(net.Dialer).DialContext(ctx, network, address)
				return err
			})
			return conn, err
		},
		Hooks: func(ctx context.Context) ([]graph.Chain, error) {
			return r.hooks.Read(ctx, w.ownsTable)
		}}
}
