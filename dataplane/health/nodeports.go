package health

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kernlb/kernlb/internal/serve"
	"github.com/kernlb/kernlb/servicemodel"
)

// NodePortsConfig tunes [NodePorts]. A nil *NodePortsConfig is the zero NodePortsConfig.
type NodePortsConfig struct {
	// Healthy says whether the proxy itself is healthy, see [Proxy.Healthy]. If not, every port
	// answers 503. Nil means always healthy.
	Healthy func() bool
	// Listen opens a TCP listener; network is "tcp4" or "tcp6". Nil means the method of
	// net.ListenConfig. To serve another network namespace, Listen must open the listener there.
	Listen func(ctx context.Context, network, address string) (net.Listener, error)
	// Addresses returns the node's own addresses. It is called only if node ports are restricted to
	// some addresses ([servicemodel.Rules.NodePorts]). Nil means net.InterfaceAddrs.
	Addresses func() ([]netip.Addr, error)
	// RetryAfter is the time between automatic retries of ports that could not be opened, for
	// example because the kube-proxy that is being replaced still listens on them. 0 means half a
	// second.
	RetryAfter time.Duration
}

// defaultRetryAfter is the default of NodePortsConfig.RetryAfter.
const defaultRetryAfter = 500 * time.Millisecond

// NodePorts serves health check node ports. Create it with [NewNodePorts], and close it. Its
// methods are safe for concurrent use.
//
// All ports together keep at most 1024 connections open: a new connection beyond that closes the
// oldest connection. A connection that is idle for a minute is closed, too.
type NodePorts struct {
	cfg     NodePortsConfig
	mu      sync.Mutex
	closed  bool
	want    map[listenOn]int // number of endpoints to report at each listener
	servers map[listenOn]*portServer
	retry   *time.Timer // opens missing ports; nil at first
	serving sync.WaitGroup
	conns   *serve.Limit // of all ports
}

// maxConns is the maximum number of connections of all ports. An answer is one or two packets, so
// only a health checker that never closes its connections needs more than one.
const maxConns = 1024

// listenOn is the address of one server, and its service.
type listenOn struct {
	service servicemodel.Name
	addr    netip.AddrPort
}

func (l listenOn) compare(o listenOn) int {
	return cmp.Or(l.service.Compare(o.service), l.addr.Compare(o.addr))
}

// portServer answers at one address for one service.
type portServer struct {
	http     *http.Server
	listener net.Listener
	count    atomic.Int64
}

// close frees the address at once, even if serving has not begun yet.
func (s *portServer) close() error {
	err := s.http.Close()
	_ = s.listener.Close() // the server may have closed it
	return err
}

// ListenError says that a health check node port could not be opened.
type ListenError struct {
	Service servicemodel.Name
	Addr    netip.AddrPort
	Err     error
}

// Error returns "health check node port of default/web at 0.0.0.0:32000: …".
func (e *ListenError) Error() string {
	return fmt.Sprintf("health check node port of %v at %v: %v", e.Service, e.Addr, e.Err)
}

// Unwrap returns the cause.
func (e *ListenError) Unwrap() error { return e.Err }

// NewNodePorts returns a server without open ports.
func NewNodePorts(cfg *NodePortsConfig) *NodePorts {
	p := &NodePorts{cfg: *cmp.Or(cfg, &NodePortsConfig{}), servers: map[listenOn]*portServer{},
		conns: serve.NewLimit(maxConns)}
	if p.cfg.Healthy == nil {
		p.cfg.Healthy = func() bool { return true }
	}
	if p.cfg.Listen == nil {
		p.cfg.Listen = new(net.ListenConfig).Listen
	}
	if p.cfg.Addresses == nil {
		p.cfg.Addresses = interfaceAddrs
	}
	if p.cfg.RetryAfter <= 0 {
		p.cfg.RetryAfter = defaultRetryAfter
	}
	return p
}

// Sync opens the ports of [servicemodel.Table.HealthChecks] and closes all other ports. Each port
// listens on the addresses of node ports, in the families of its service. Ports that stay open are
// not interrupted. If node ports answer at all addresses, a port listens on the unspecified
// address.
//
// Sync opens all ports that it can. The error joins a *[ListenError] for each port that it cannot
// open. NodePorts retries these ports ([NodePortsConfig.RetryAfter]) until they are open, another
// Sync drops them, or Close is called.
func (p *NodePorts) Sync(ctx context.Context, t *servicemodel.Table) error {
	want, err := p.wanted(t)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return net.ErrClosed
	}
	for on, s := range p.servers {
		if _, ok := want[on]; !ok {
			_ = s.close() // the address is free in any case
			delete(p.servers, on)
		}
	}

	p.want = want
	return p.open(ctx)
}

// open opens the missing ports, and schedules a retry for ports that it cannot open. The caller
// must hold the lock.
func (p *NodePorts) open(ctx context.Context) error {
	var errs []error
	for _, on := range slices.SortedFunc(maps.Keys(p.want), listenOn.compare) {
		count := p.want[on]
		if s := p.servers[on]; s != nil {
			s.count.Store(int64(count))
		} else if err := p.listen(ctx, on, count); err != nil {
			errs = append(errs, &ListenError{Service: on.service, Addr: on.addr, Err: err})
		}
	}

	if p.retry != nil {
		p.retry.Stop()
	}
	if len(errs) > 0 {
		p.retry = time.AfterFunc(p.cfg.RetryAfter, func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			if !p.closed {
				_ = p.open(context.Background()) // Sync has returned the error
			}
		})
	}

	return errors.Join(errs...)
}

// wanted returns the listeners, with the number of endpoints that each reports.
func (p *NodePorts) wanted(t *servicemodel.Table) (map[listenOn]int, error) {
	want := map[listenOn]int{}
	var addrs []netip.Addr
	for h := range t.HealthChecks() {
		if addrs == nil {
			var err error
			if addrs, err = p.listenAddrs(t.Rules().NodePorts); err != nil {
				return nil, err
			}
		}

		for _, a := range addrs {
			count := h.IPv4
			if a.Is6() {
				count = h.IPv6
			}
			if count != servicemodel.NotServed {
				want[listenOn{h.Service, netip.AddrPortFrom(a, h.Port)}] = count
			}
		}
	}

	return want, nil
}

// listenAddrs returns the addresses of the node in the ranges. A range that is a whole family means
// the unspecified address.
func (p *NodePorts) listenAddrs(ranges []netip.Prefix) ([]netip.Addr, error) {
	addrs := []netip.Addr{}
	var node []netip.Addr
	for _, r := range ranges {
		if r.Bits() == 0 {
			addrs = append(addrs, r.Masked().Addr())
			continue
		}

		if node == nil {
			var err error
			if node, err = p.cfg.Addresses(); err != nil {
				return nil, fmt.Errorf("health check node ports: addresses of the node: %w", err)
			}
		}

		for _, a := range node {
			if r.Contains(a) && !a.IsLoopback() {
				addrs = append(addrs, a)
			}
		}
	}

	return addrs, nil
}

func interfaceAddrs() ([]netip.Addr, error) {
	all, err := serve.HostAddrs()
	return slices.DeleteFunc(all, netip.Addr.IsLinkLocalUnicast), err
}

// listen opens a port and serves it. From its first answer on, it reports the count.
func (p *NodePorts) listen(ctx context.Context, on listenOn, count int) error {
	network := "tcp4"
	if on.addr.Addr().Is6() {
		network = "tcp6"
	}
	l, err := p.cfg.Listen(ctx, network, on.addr.String())
	if err != nil {
		return err
	}
	s := &portServer{listener: l}
	s.count.Store(int64(count))
	p.servers[on] = s
	s.http = serve.Server(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		p.answer(w, on.service, int(s.count.Load()))
	}))
	p.serving.Go(func() { _ = s.http.Serve(p.conns.Listener(l)) }) // ends with Close
	return nil
}

// answer writes the answer of kube-proxy 1.36 (pkg/proxy/healthcheck/service_health.go), for any
// path and method.
func (p *NodePorts) answer(w http.ResponseWriter, service servicemodel.Name, count int) {
	healthy := p.cfg.Healthy()
	w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.Itoa(count))
	writeHead(w, count > 0 && healthy)
	fmt.Fprintf(w, "{\n\t\"service\": {\n\t\t\"namespace\": %q,\n\t\t\"name\": %q\n\t},\n"+
		"\t\"localEndpoints\": %d,\n\t\"serviceProxyHealthy\": %v\n}",
		service.Namespace, service.Name, count, healthy)
}

// writeHead writes the code and the headers common to all answers.
func writeHead(w http.ResponseWriter, ok bool) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if ok {
		w.WriteHeader(http.StatusOK)
	} else {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
}

// Close closes all ports, and waits until their servers have stopped.
func (p *NodePorts) Close() error {
	p.mu.Lock()
	p.closed = true
	if p.retry != nil {
		p.retry.Stop()
	}
	var errs []error
	for _, s := range p.servers {
		errs = append(errs, s.close())
	}
	clear(p.servers)
	p.mu.Unlock()
	p.serving.Wait()
	return errors.Join(errs...)
}
