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

// Stats counts what a proxy did.
type Stats struct {
	Open      int // TCP connections and UDP flows that are there now
	Balanced  int // connections and flows that were given an endpoint
	Refused   int // connections and datagrams that the table does not let in
	Retried   int // endpoints that did not accept a connection, so that another was asked
	Failed    int // connections that no endpoint accepted
	Overflows int // datagrams that were dropped because a limit is reached
}

// Stats returns what the proxy did so far.
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

// conn is a TCP connection or a UDP flow. All but the first fields are guarded by the lock of the
// backend.
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

// choose gives a connection an endpoint that it has not tried: what the table says, and of the
// endpoints that it lets have the connection, the one that it is for by affinity or the scheduler.
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
	c.client = client{d.Frontend.Key, c.src.Addr()}
	now, p := time.Now(), b.pools[id]
	if c.affinity > 0 {
		if e, ok := b.clients.recall(c.client, c.affinity, now); ok &&
			!slices.Contains(tried, e) {
			c.target = p.find(e)
		}
	}
	if c.target == nil {
		c.target = p.pick(c.src, tried)
	}
	if c.target == nil {
		return netip.AddrPort{}, errNobody
	}
	if c.affinity > 0 {
		b.clients.remember(c.client, c.target.endpoint, now)
	}
	c.target.conns++
	b.stats.Balanced++
	b.conns[c] = struct{}{}
	return c.target.endpoint, nil
}

// leave takes the endpoint from a connection: it ended, or its endpoint did not accept it, who is
// then no longer the client's own.
func (b *Backend) leave(c *conn, failed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c.target == nil {
		return
	}
	if e, ok := b.clients.recall(c.client, c.affinity, time.Now()); failed && ok &&
		e == c.target.endpoint {
		b.clients.forget(c.client)
	}
	c.target.conns--
	c.target = nil
	delete(b.conns, c)
}

// flow is the connection in the words of conntrack.
func (c *conn) flow() conntrack.Flow {
	return conntrack.Flow{Protocol: conntrack.Protocol(c.protocol),
		Original: conntrack.Tuple{Src: c.src, Dst: c.dst},
		Reply:    conntrack.Tuple{Src: c.target.endpoint, Dst: c.src}}
}

// Flows yields the connections and UDP flows that the filter lets through.
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
	for _, c := range b.cut(m, &r) {
		select {
		case <-c.ended:
		case <-ctx.Done():
			return r, fmt.Errorf("proxy: end stale connections: %w", context.Cause(ctx))
		}
	}
	r.Duration = time.Since(start)
	return r, nil
}

// cut cancels and returns what is stale.
func (b *Backend) cut(m *conntrack.Matcher, r *conntrack.CleanResult) (stale []*conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for c := range b.conns {
		r.Seen++
		fl := c.flow()
		if c.cut || !m.Classify(&fl).Stale() {
			continue
		}
		c.cancel()
		c.cut = true
		stale = append(stale, c)
		r.Misdirected++
		r.Deleted++
		if c.protocol == servicemodel.TCP {
			r.Reset++
		}
	}
	return stale
}

// NodeAddrs returns the addresses of the node in the ranges.
func (b *Backend) NodeAddrs(ranges []netip.Prefix) ([]netip.Addr, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(b.node), func(a netip.Addr) bool {
		return !slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(a) })
	}), nil
}
