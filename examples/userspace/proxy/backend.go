package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kernlb/kernlb/conntrack/flows"
	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/servicemodel"
)

// Name is the backend's name.
const Name = "proxy"

// Backend is a proxy. It must be made by [New]. Its methods may be called by many goroutines.
type Backend struct {
	cfg   Config
	ctx   context.Context // ends with Close
	stop  context.CancelFunc
	work  sync.WaitGroup // all goroutines
	slots chan struct{}  // one for each TCP connection
	// accepting counts the goroutines that accept TCP connections.
	accepting atomic.Int32
	full      notice
	refused   notice

	mu      sync.Mutex
	table   *servicemodel.Table
	node    []netip.Addr // the addresses of the node that the sockets are for
	sockets map[where]*socket
	// inherited are sockets that listen already, until the first commit.
	inherited map[where]io.Closer
	drifted   bool // the sockets are not those that the table wants
	pools     map[servicemodel.PoolID]*pool
	clients   clients
	conns     map[*conn]struct{}
	flows     int // UDP flows among conns
	stats     Stats
}

var (
	_ dataplane.Backend = (*Backend)(nil)
	_ flows.Table       = (*Backend)(nil)
)

// New returns a proxy that accepts nobody yet. A configuration with a wrong value is refused with a
// *[servicemodel.FieldError].
func New(cfg *Config) (*Backend, error) {
	c, err := cfg.filled()
	if err != nil {
		return nil, err
	}
	b := &Backend{cfg: c, slots: make(chan struct{}, c.MaxConnections),
		sockets: map[where]*socket{}, inherited: map[where]io.Closer{},
		pools: map[servicemodel.PoolID]*pool{}, conns: map[*conn]struct{}{}}
	b.clients.init(c.MaxClients)
	b.ctx, b.stop = context.WithCancel(context.Background())
	if b.node, err = b.addresses(); err != nil {
		return nil, err
	}
	if err := b.inherit(c.Inherited); err != nil {
		return nil, err
	}
	return b, nil
}

// addresses asks for the addresses of the node.
func (b *Backend) addresses() (list []netip.Addr, err error) {
	err = b.cfg.Within(func() (err error) {
		list, err = b.cfg.Addresses()
		return err
	})
	slices.SortFunc(list, netip.Addr.Compare)
	return slices.Compact(list), err
}

// Name returns "proxy".
func (b *Backend) Name() string { return Name }

// Observe returns the table that the proxy serves. It reports as drift listeners that are missing
// or not wanted, because the addresses of the node changed or a listener broke.
func (b *Backend) Observe(
	context.Context, *servicemodel.Table,
) (*dataplane.Observation, error) {
	node, err := b.addresses()
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.node, b.drifted = node, true
	e := b.edit(&servicemodel.ChangeSet{Old: b.table, New: b.table})
	b.drifted = len(e.open)+len(e.close) > 0
	o := &dataplane.Observation{}
	if b.drifted {
		o.Drift = strings.Split(strings.TrimSpace(e.String()), "\n")
	}
	o.Table, err = servicemodel.NewTable(b.table.Contents())
	return o, err
}

// Integrity reports Broken if the addresses of the node are not those that the listeners are for,
// or if a listener broke.
func (b *Backend) Integrity(context.Context) (dataplane.Integrity, error) {
	node, err := b.addresses()
	if err != nil {
		return dataplane.Broken, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.sockets {
		if s.broken {
			return dataplane.Broken, nil
		}
	}
	if !slices.Equal(node, b.node) {
		return dataplane.Broken, nil
	}
	return dataplane.Intact, nil
}

// Plan returns the listeners that a commit would close and open, and the change set.
func (b *Backend) Plan(c *servicemodel.ChangeSet) (dataplane.Plan, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.plan(c, b.edit(c)), nil
}

func (b *Backend) plan(c *servicemodel.ChangeSet, e edit) plan {
	return plan{e.String() + c.String(), len(e.open) + len(e.close)}
}

// Commit opens and closes listeners, and serves the new table from then on. New connections meet
// the old table or the new one, none something between.
func (b *Backend) Commit(ctx context.Context, c *servicemodel.ChangeSet) (dataplane.Stats, error) {
	start := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := context.Cause(ctx); err != nil {
		return dataplane.Stats{}, fmt.Errorf("proxy: commit: %w", err)
	}
	e := b.edit(c)
	if err := b.apply(e); err != nil {
		return dataplane.Stats{}, fmt.Errorf("proxy: commit: %w", err)
	}
	for _, p := range c.Pools {
		switch {
		case p.New == nil:
			delete(b.pools, p.Old.ID)
		case b.pools[p.New.ID] == nil:
			b.pools[p.New.ID] = &pool{}
			fallthrough
		default:
			b.pools[p.New.ID].update(p.New)
		}
	}
	b.table, b.drifted = c.New, false
	stats := b.plan(c, e).Stats()
	stats.Duration = time.Since(start)
	return stats, nil
}

// apply opens and closes sockets, or does nothing.
func (b *Backend) apply(e edit) error {
	if b.ctx.Err() != nil {
		return errors.New("the proxy is closed")
	}
	var opened []*socket
	for _, w := range e.open {
		b.closeSocket(w) // if it is to be opened again
		s, err := b.open(w, e.claims[w])
		if err != nil {
			for _, s := range opened {
				if b.inherited[s.where] == nil {
					s.close()
				}
			}
			// Others took an address since Check: the engine looks again, and names the service.
			return fmt.Errorf("%w: %w", dataplane.ErrConflict, err)
		}
		opened = append(opened, s)
	}
	for _, w := range e.close {
		b.closeSocket(w)
	}
	for _, s := range opened {
		b.sockets[s.where] = s
		s.serve()
	}
	for w, claims := range e.claims {
		if s := b.sockets[w]; s != nil {
			s.claims = claims
		}
	}
	b.disinherit()
	return nil
}

// closeSocket closes a socket if it is there.
func (b *Backend) closeSocket(w where) {
	if s := b.sockets[w]; s != nil {
		s.close()
		delete(b.sockets, w)
	}
}

// Cleanup closes all listeners, and with them the UDP flows. TCP connections go on; [Backend.Drain]
// waits for them, [Backend.Close] resets them.
func (b *Backend) Cleanup(context.Context) (dataplane.Stats, error) {
	start := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	n := len(b.sockets)
	for w := range b.sockets {
		b.closeSocket(w)
	}
	clear(b.pools)
	b.clients.init(b.cfg.MaxClients)
	b.table, b.drifted = nil, false
	return dataplane.Stats{Messages: n, Elements: n, Duration: time.Since(start)}, nil
}

// Retire closes all listeners, and with them the UDP flows, for a process that ends. Connections
// that were accepted before are still given an endpoint, unlike after [Backend.Cleanup], and
// [Backend.Drain] waits for them. There must be no commit after it.
func (b *Backend) Retire() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for w := range b.sockets {
		b.closeSocket(w)
	}
}

// Drain waits until no connection is open, or until ctx ends, whose error it returns then. It is
// for after [Backend.Retire] or [Backend.Cleanup].
func (b *Backend) Drain(ctx context.Context) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	// Who accepts takes a slot before it ends, and a slot is free when its connection has ended.
	for b.accepting.Load() > 0 || len(b.slots) > 0 || b.Stats().Open > 0 {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("proxy: drain: %d connections are open: %w", b.Stats().Open,
				context.Cause(ctx))
		}
	}
	return nil
}

// Close closes all listeners, resets all connections, and returns when all of the proxy's
// goroutines have ended.
func (b *Backend) Close() error {
	b.stop()
	b.mu.Lock()
	for w := range b.sockets {
		b.closeSocket(w)
	}
	b.disinherit()
	b.mu.Unlock()
	b.work.Wait()
	return nil
}

// plan is what a commit would do.
type plan struct {
	text    string
	sockets int
}

// String returns the sockets that are opened and closed, and the change set.
func (p plan) String() string { return p.text }

// Stats counts the lines of the plan as messages, and sockets as elements.
func (p plan) Stats() dataplane.Stats {
	return dataplane.Stats{Messages: strings.Count(p.text, "\n"), Elements: p.sockets}
}
