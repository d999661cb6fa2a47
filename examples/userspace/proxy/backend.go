package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/flows"
	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/servicemodel"
)

// Name is the backend's name.
const Name = "proxy"

// Backend is a proxy. [New] returns one. Many goroutines may call its methods.
type Backend struct {
	cfg           Config
	ctx           context.Context // ends with Close
	stop          context.CancelFunc
	work          sync.WaitGroup // all goroutines
	slots         chan struct{}  // one for each TCP connection
	full, refused notice
	forkTime      time.Duration // forkTime, except in tests

	mu      sync.Mutex
	table   *servicemodel.Table
	node    []netip.Addr // the node's addresses for which the sockets were opened
	sockets map[where]*socket
	pools   map[servicemodel.PoolID]*pool
	clients map[client]memory
	conns   map[*conn]struct{}
	stats   Stats

	flows udpFlows // has a lock of its own
}

var (
	_ backends.Backend = (*Backend)(nil)
	_ flows.Table      = (*Backend)(nil)
)

// New returns a proxy that serves nothing yet. For a wrong value in the configuration, it returns a
// *[servicemodel.FieldError].
func New(cfg *Config) (*Backend, error) {
	c, err := cfg.filled()
	if err != nil {
		return nil, err
	}
	b := &Backend{cfg: c, forkTime: forkTime, slots: make(chan struct{}, c.MaxConnections),
		sockets: map[where]*socket{}, pools: map[servicemodel.PoolID]*pool{},
		conns: map[*conn]struct{}{}, clients: map[client]memory{},
		flows: udpFlows{most: c.MaxFlows, timeout: c.UDPTimeout,
			known: map[udpClient]*udpFlow{}}}
	b.ctx, b.stop = context.WithCancel(context.Background())
	b.node, err = b.addresses()
	return b, err
}

// addresses returns the present addresses of the node.
func (b *Backend) addresses() (list []netip.Addr, err error) {
	err = b.cfg.Within(func() (err error) {
		list, err = b.cfg.Addresses()
		return err
	})
	return slices.Compact(slices.SortedFunc(slices.Values(list), netip.Addr.Compare)), err
}

// Name returns "proxy".
func (b *Backend) Name() string { return Name }

// Observe returns the table that the proxy serves. It reports missing and unwanted listeners as
// drift: they exist if the addresses of the node changed or a commit failed.
func (b *Backend) Observe(
	context.Context, *servicemodel.Table,
) (*backends.Observation, error) {
	node, err := b.addresses()
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.node = node
	o := &backends.Observation{}
	if e := b.edit(b.table, node, nil); e.sockets() > 0 {
		o.Drift = strings.Split(strings.TrimSpace(e.String()), "\n")
	}
	o.Table, err = servicemodel.NewTable(servicemodel.Contents{Rules: b.table.Rules(),
		Frontends: slices.Collect(b.table.Frontends()), Pools: slices.Collect(b.table.Pools()),
		ClusterIPs: slices.Collect(b.table.ClusterIPs()),
		Hairpins:   slices.Collect(b.table.Hairpins())})
	return o, err
}

// Integrity reports Broken if Observe would find drift.
func (b *Backend) Integrity(context.Context) (backends.Integrity, error) {
	node, err := b.addresses()
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil || b.edit(b.table, node, nil).sockets() > 0 {
		return backends.Broken, err
	}
	return backends.Intact, nil
}

// Plan returns the listeners that a commit would close and open, and the change set.
func (b *Backend) Plan(c *servicemodel.ChangeSet) (backends.Plan, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.edit(c.New, b.node, c), nil
}

// Commit opens and closes listeners, and serves the new table from then on. For each new
// connection, either the old table or the new table decides.
func (b *Backend) Commit(ctx context.Context, c *servicemodel.ChangeSet) (backends.Stats, error) {
	start := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	err := ctx.Err()
	if b.ctx.Err() != nil {
		err = errors.New("the proxy is closed")
	}
	e := b.edit(c.New, b.node, c)
	if err == nil {
		err = b.apply(&e)
	}
	if err != nil {
		return backends.Stats{}, fmt.Errorf("proxy: commit: %w", err)
	}
	for _, p := range c.Pools {
		if p.New == nil {
			delete(b.pools, p.Old.ID)
		} else {
			b.pools[p.New.ID] = b.pools[p.New.ID].updated(p.New)
		}
	}

	b.table = c.New
	stats := e.Stats()
	stats.Duration = time.Since(start)
	return stats, nil
}

// apply closes and opens sockets. If a socket cannot be opened, it opens no socket, and the engine
// reads again.
func (b *Backend) apply(e *edit) error {
	if len(e.refused) > 0 {
		return fmt.Errorf("%w: %w", kernelerr.ErrConflict, errors.Join(e.refused...))
	}
	for _, w := range e.close {
		b.sockets[w].close()
		delete(b.sockets, w)
	}

	var opened []*socket
	for _, k := range e.open {
		s, err := b.listen(k)
		if err != nil { // another program took it since Check
			for _, s := range opened {
				s.close()
			}
			return fmt.Errorf("%w: %w", kernelerr.ErrConflict, err)
		}

		opened = append(opened, s)
	}

	for _, s := range opened {
		b.sockets[s.where] = s
		s.serve()
	}

	return nil
}

// Cleanup closes all listeners, which ends the UDP flows. TCP connections continue; [Backend.Drain]
// waits for them, [Backend.Close] resets them.
func (b *Backend) Cleanup(context.Context) (backends.Stats, error) {
	start := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	n := len(b.sockets)
	b.retire()
	clear(b.pools)
	clear(b.clients)
	b.table = nil
	return backends.Stats{Messages: n, Elements: n, Duration: time.Since(start)}, nil
}

// Retire is for the end of the process: it closes all listeners, which ends the UDP flows. Unlike
// after [Backend.Cleanup], connections that were accepted before still get an endpoint, and
// [Backend.Drain] waits for them. No commit may follow.
func (b *Backend) Retire() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.retire()
}

func (b *Backend) retire() {
	for _, s := range b.sockets {
		s.close()
	}
	clear(b.sockets)
}

// Drain waits until no connection is open. If ctx ends before, it returns the error of ctx. Call it
// after [Backend.Retire] or [Backend.Cleanup].
func (b *Backend) Drain(ctx context.Context) error {
	ended := make(chan struct{})
	go func() { // ends with Close or earlier
		b.work.Wait()
		close(ended)
	}()

	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("proxy: drain: %d connections are open: %w", b.Stats().Open, ctx.Err())
	}
}

// Close closes all listeners, resets all connections, and returns when all of the proxy's
// goroutines have ended.
func (b *Backend) Close() error {
	b.stop()
	b.Retire()
	b.work.Wait()
	return nil
}
