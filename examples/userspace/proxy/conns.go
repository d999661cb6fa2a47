package proxy

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"time"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/servicemodel"
)

// client is a client that session affinity remembers: at a frontend, or at all ports of a service.
type client struct {
	frontend servicemodel.FrontendKey
	service  servicemodel.Name
	addrs    netip.Prefix
}

// clientOf returns the client of a connection to a frontend.
func clientOf(f *servicemodel.Frontend, src netip.Addr) client {
	c := client{frontend: f.Key, addrs: netip.PrefixFrom(src, src.BitLen())}
	if f.AffinityBits > 0 {
		c.addrs, _ = src.Prefix(int(f.AffinityBits))
	}
	if f.AffinityService {
		c.frontend, c.service = servicemodel.FrontendKey{}, f.Service.Name
	}
	return c
}

// memory is the endpoint of a remembered client, and the time.
type memory struct {
	endpoint netip.AddrPort
	used     time.Time
}

// Stats counts the work of a proxy.
type Stats struct {
	Open      int // present TCP connections and UDP flows
	Balanced  int // connections and flows that got an endpoint
	Refused   int // connections and datagrams that the table does not let in
	Retried   int // connections that an endpoint did not accept, so that another was tried
	Failed    int // connections that no endpoint accepted
	Overflows int // datagrams that were too large, and UDP flows that ended to make room
}

// Stats returns the statistics so far.
func (b *Backend) Stats() Stats {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.stats
	s.Open = len(b.conns)
	return s
}

// count changes the statistics.
func (b *Backend) count(f func(*Stats)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f(&b.stats)
}

// conn is a TCP connection or a UDP flow. The lock of the backend guards all except the first
// fields.
type conn struct {
	protocol servicemodel.Protocol
	src, dst netip.AddrPort // as the client sees them
	cancel   context.CancelFunc
	ended    chan struct{} // closed when nothing is forwarded any more

	service  servicemodel.PortName
	client   client
	affinity time.Duration
	target   *target // nil if it has no endpoint
	cut      bool    // it was canceled
}

var (
	errRefused = errors.New("the services do not let it in")
	errNobody  = errors.New("no endpoint accepted it")
)

// choose gives a connection an endpoint that it has not tried. The table decides the allowed
// endpoints. Affinity or the scheduler picks one of them.
func (b *Backend) choose(c *conn, tried []netip.AddrPort) (netip.AddrPort, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	here := servicemodel.Locality(b.node)
	d := b.table.Decide(servicemodel.Packet{Src: c.src, Dst: c.dst, Protocol: c.protocol,
		FromThisNode: here.Local(c.src.Addr())}, here)
	id, ok := d.Pool()
	if !ok {
		b.stats.Refused++
		return netip.AddrPort{}, errRefused
	}

	c.service, c.affinity = d.Frontend.Service, d.Frontend.Affinity
	c.client = clientOf(d.Frontend, c.src.Addr())
	now, p := time.Now(), b.pools[id]
	if c.affinity > 0 {
		m, ok := b.clients[c.client]
		if ok && d.Frontend.AffinityService {
			m.endpoint = p.at(m.endpoint.Addr())
		}
		if ok && now.Sub(m.used) < c.affinity && !slices.Contains(tried, m.endpoint) {
			c.target = p.find(m.endpoint)
		}
	}

	if c.target == nil {
		c.target = p.pick(c.src, tried)
	}
	if c.target == nil {
		return netip.AddrPort{}, errNobody
	}
	if c.affinity > 0 {
		for other := range b.clients {
			if len(b.clients) < maxClients {
				break
			}
			delete(b.clients, other)
		}

		b.clients[c.client] = memory{c.target.endpoint, now}
	}

	b.stats.Balanced++
	c.target.conns++
	b.conns[c] = struct{}{}
	return c.target.endpoint, nil
}

// leave removes the endpoint from a connection that has ended, or whose endpoint did not accept it.
// In the latter case, the client loses its affinity to the endpoint.
func (b *Backend) leave(c *conn, failed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c.target == nil {
		return
	}
	if failed && b.clients[c.client].endpoint == c.target.endpoint {
		delete(b.clients, c.client)
	}
	c.target.conns--
	c.target = nil
	delete(b.conns, c)
}

// flow returns the connection as a flow of conntrack.
func (c *conn) flow() conntrack.Flow {
	return conntrack.Flow{Protocol: conntrack.Protocol(c.protocol),
		Original: conntrack.Tuple{Src: c.src, Dst: c.dst},
		Reply:    conntrack.Tuple{Src: c.target.endpoint, Dst: c.src}}
}

// Flows yields the connections and UDP flows that match the filter.
func (b *Backend) Flows(_ context.Context, f conntrack.Filter) iter.Seq2[conntrack.Flow, error] {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []conntrack.Flow
	for c := range b.conns {
		if fl := c.flow(); f.Match(&fl) {
			all = append(all, fl)
		}
	}

	return conntrack.All(all...)
}

// Clean resets the connections and ends the UDP flows that the matcher finds stale, and returns
// when they have ended.
func (b *Backend) Clean(
	ctx context.Context, m *conntrack.Matcher, _ conntrack.CleanOptions,
) (conntrack.CleanResult, error) {
	start := time.Now()
	r := conntrack.CleanResult{Dumps: 1}
	var stale []*conn
	b.mu.Lock()
	for c := range b.conns {
		r.Seen++
		fl := c.flow()
		if c.cut || !m.Stale(&fl) {
			continue
		}
		c.cancel()
		c.cut = true
		stale = append(stale, c)
		if c.protocol == servicemodel.TCP {
			r.Reset++
		}
	}

	b.mu.Unlock()
	r.Misdirected, r.Deleted = len(stale), len(stale)
	for _, c := range stale {
		select {
		case <-c.ended:
		case <-ctx.Done():
			return r, fmt.Errorf("proxy: end stale connections: %w", ctx.Err())
		}
	}

	r.Duration = time.Since(start)
	return r, nil
}

// NodeAddrs returns the addresses of the node in the ranges.
func (b *Backend) NodeAddrs(ranges []netip.Prefix) ([]netip.Addr, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(b.node), func(a netip.Addr) bool {
		return !within(a, ranges)
	}), nil
}
