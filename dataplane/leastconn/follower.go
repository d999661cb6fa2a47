package leastconn

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/netns"
	"github.com/kernlb/kernlb/internal/logkey"
	"github.com/kernlb/kernlb/servicemodel"
)

// Config tunes a [Follower]. A nil *Config is the zero Config.
type Config struct {
	// NetNS names the network namespace of the services. Empty means the namespace of the process.
	NetNS netns.Namespace
	// Logger gets an error if connections cannot be counted. Nil disables logging.
	Logger *slog.Logger
}

// Follower passes states to an engine, with the shares of endpoints under lc and wlc. Its methods
// are safe for concurrent use.
type Follower struct {
	engine *dataplane.Engine
	log    *slog.Logger
	table  *conntrack.Table

	// Only Run uses these.
	of      *servicemodel.Table // pools are in it
	whole   bool                // all pools of it were looked at
	scanned time.Time           // when all pools of a table were looked at
	pools   []*pool

	mu     sync.Mutex
	state  servicemodel.State // as the program wants it
	shares map[servicemodel.PortName]map[netip.AddrPort]uint16
	has    bool // Set was called
}

// NewFollower returns a follower without a state. It calls Set of the engine with each state, and
// adds the newest shares to it. Nothing else may set states of that engine. The caller closes the
// follower. The errors are those of [conntrack.Open].
func NewFollower(e *dataplane.Engine, cfg *Config) (*Follower, error) {
	cfg = cmp.Or(cfg, &Config{})
	table, err := conntrack.Open(&conntrack.Config{NetNS: cfg.NetNS})
	if err != nil {
		return nil, fmt.Errorf("leastconn: %w", err)
	}
	return &Follower{engine: e, log: cfg.Logger, table: table,
		shares: map[servicemodel.PortName]map[netip.AddrPort]uint16{}}, nil
}

// Close releases the follower's sockets. Run must have returned.
func (f *Follower) Close() error { return f.table.Close() }

// Set passes a state to the engine with the newest shares, like [dataplane.Engine.Set]. If the
// shares of an endpoint's ports differ, the engine's state has additional copies of the endpoint
// after the other endpoints of the service, so an index in a refusal may be beyond the program's
// list. The cost depends on the number of services that have shares. A service without shares in
// the state keeps its shares in the kernel.
func (f *Follower) Set(s servicemodel.State) dataplane.Revision {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.state, f.has = s, true
	return f.engine.Set(f.shared())
}

// The times between two counts of the connections.
const (
	shortest, longest = 100 * time.Millisecond, 5 * time.Second
	// perLife is the number of counts in the mean life of a connection.
	perLife = 10
	// costShare limits the CPU time of counting to 1/costShare of one CPU.
	costShare = 20
	// idle is the time until the next search for services with a scheduler that uses connection
	// counts.
	idle = time.Second
)

// Run counts connections and sets shares until the context ends. When Run ends, the shares stay in
// the kernel. If connections cannot be counted, it tries again every few seconds.
func (f *Follower) Run(ctx context.Context) {
	next := time.NewTimer(0)
	defer next.Stop()
	last := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-next.C:
		}

		began := time.Now()
		wait, err := f.work(ctx, began.Sub(last))
		if err != nil && ctx.Err() == nil && f.log != nil {
			f.log.ErrorContext(ctx, "connections are not counted", logkey.Error, err)
		}
		last = began
		next.Reset(wait)
	}
}

// work counts connections, and sets shares. It returns the time until the next count.
func (f *Follower) work(ctx context.Context, passed time.Duration) (time.Duration, error) {
	if f.search(time.Now()); len(f.pools) == 0 {
		return idle, nil
	}
	cost, err := costOf(func() error { return f.count(ctx) })
	if err != nil {
		return longest, err
	}
	wait := longest
	for _, p := range f.pools {
		p.learn(passed)
		wait = min(wait, p.pause())
	}

	if !f.engine.Status().Pending() { // otherwise new shares would undo the engine's pauses
		f.feed(passed)
	}
	return min(max(wait, costShare*cost), longest), nil
}

// countsItself is the backend whose kernel counts connections.
const countsItself = "ipvs"

// search finds the pools in the kernel whose scheduler uses connection counts. Known pools keep
// what was learnt about them. It looks at all pools at most once a second.
func (f *Follower) search(now time.Time) {
	status, all := f.engine.Status(), now.Sub(f.scanned) >= idle
	held := status.Held
	if status.Backend == countsItself {
		held = &servicemodel.Table{}
	}
	if held == nil || held == f.of && (f.whole || !all) {
		return
	}
	var ids []servicemodel.PoolID
	if all {
		f.scanned = now
		for p := range held.Pools() {
			// The pool of this node is a subset of the cluster's pool, so the latter covers both.
			wide := p.ID
			wide.Local = false
			if p.Scheduler.Fed() && (!p.ID.Local || held.Pool(wide) == nil) {
				ids = append(ids, p.ID)
			}
		}
	} else {
		for _, p := range f.pools {
			ids = append(ids, p.id)
		}
	}

	known := map[servicemodel.PoolID]*pool{}
	for _, p := range f.pools {
		known[p.id] = p
	}
	f.of, f.whole, f.pools = held, all, nil
	for _, id := range ids {
		in := held.Pool(id)
		if in == nil || !in.Scheduler.Fed() {
			continue
		}
		p := known[id]
		if p == nil {
			p = &pool{id: id}
		}
		p.is(in)
		f.pools = append(f.pools, p)
	}
}

// count counts the open connections of all endpoints.
func (f *Follower) count(ctx context.Context) error {
	type key struct {
		protocol conntrack.Protocol
		endpoint netip.AddrPort
	}
	type place struct {
		pool *pool
		slot int
	}
	places := map[key][]place{}
	filter := conntrack.Filter{Status: conntrack.StatusDstNAT}
	for i, p := range f.pools {
		protocol := conntrack.Protocol(p.id.Service.Protocol)
		if i == 0 {
			filter.Protocol = protocol
		} else if filter.Protocol != protocol {
			filter.Protocol = 0
		}

		p.begin()
		for slot, e := range p.endpoints {
			k := key{protocol, e}
			places[k] = append(places[k], place{p, slot})
		}
	}

	for flow, err := range f.table.Flows(ctx, filter) {
		if err != nil {
			return err
		}
		if flow.Protocol == conntrack.TCP && !flow.TCP.Open() {
			continue
		}
		k := key{flow.Protocol, flow.Reply.Src}
		at := places[k]
		if at == nil { // the endpoint of a range
			k.endpoint = netip.AddrPortFrom(k.endpoint.Addr(), 0)
			at = places[k]
		}
		for _, to := range at {
			to.pool.add(to.slot, flow.ID)
		}
	}

	return nil
}

// feed passes new shares to the engine, if some differ from the current ones.
func (f *Follower) feed(period time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	of := map[servicemodel.PortName]map[netip.AddrPort]uint16{}
	changed := false
	for _, p := range f.pools {
		shares := of[p.id.Service]
		if shares == nil {
			shares = map[netip.AddrPort]uint16{}
			of[p.id.Service] = shares
		}
		for i, n := range p.next(period) {
			shares[p.endpoints[i]] = uint16(n)
		}
	}

	for name, shares := range of {
		changed = changed || !maps.Equal(shares, f.shares[name])
	}
	f.shares = of
	if changed && f.has {
		f.engine.Set(f.shared())
	}
}

// shared returns the program's state with the shares.
func (f *Follower) shared() servicemodel.State {
	s, done := f.state, map[servicemodel.Name]bool{}
	for port := range f.shares {
		svc, eps := f.state.Peek(port.Name)
		if svc == nil || !svc.Scheduler.Fed() || done[port.Name] {
			continue
		}
		done[port.Name] = true
		s = s.WithEndpoints(port.Name, f.sharedEndpoints(svc, eps))
	}

	return s
}

// sharedEndpoints returns endpoints with their shares. An endpoint keeps the ports whose share is
// the same as that of its first port. Its other ports follow after all endpoints, each in a
// separate endpoint, so the indices of the program's endpoints do not change.
func (f *Follower) sharedEndpoints(svc *servicemodel.Service,
	eps iter.Seq[servicemodel.Endpoint]) []servicemodel.Endpoint {
	var further []servicemodel.Endpoint
	out := slices.Collect(eps)
	for i := range out {
		ep := &out[i]
		ports := ep.Ports
		ep.Ports = nil
		for _, p := range ports {
			of := servicemodel.PortName{Name: svc.Name, Port: p.Name, Protocol: p.Protocol}
			share := f.shares[of][netip.AddrPortFrom(ep.Addr, svc.TargetPort(p))]
			if len(ep.Ports) == 0 {
				ep.Share = share
			}
			if ep.Share == share {
				ep.Ports = append(ep.Ports, p)
				continue
			}
			other := *ep
			other.Share, other.Ports = share, []servicemodel.EndpointPort{p}
			further = append(further, other)
		}
	}

	return append(out, further...)
}
