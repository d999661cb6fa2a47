package servicemodel

import (
	"fmt"
	"iter"
	"net/netip"
	"slices"

	"github.com/kernlb/kernlb/servicemodel/internal/pmap"
)

// Table is the meaning of services on one node: frontends, pools, and sets that depend on them.
// Tables are immutable. [Resolve] builds tables from a state, and [NewTable] from a backend's
// reading of the kernel. The nil *Table is an empty table.
//
// Tables share their contents with each other and with the callers of their methods. A caller must
// not modify the objects that a method returns. With the build tag sharecheck, such callers are
// detected.
type Table struct {
	rules      Rules
	frontends  pmap.Map[FrontendKey, *Frontend, keyHash]
	owned      pmap.Map[PortName, []*Frontend, portHash] // the frontends of each service port
	ranges     rangeIndex                                // the frontends at ranges of ports
	pools      pmap.Map[PoolID, *Pool, poolHash]
	clusterIPs addrCounts
	hairpins   addrCounts
	health     pmap.Map[Name, *HealthCheck, nameHash]
	// contested has all claims of each key that several services claim; the first claim wins.
	contested pmap.Map[FrontendKey, []*Frontend, keyHash]

	memory *memory // nil unless Resolve built the table
	ramps  *ramps  // nil if all endpoints have their whole weights
}

// orEmpty returns t, or an empty table if t is nil.
func (t *Table) orEmpty() *Table {
	if t == nil {
		return &Table{}
	}
	return t
}

// Contents are the objects of a table, as a backend reads them from the kernel.
type Contents struct {
	Rules      Rules        `json:"rules"`
	Frontends  []*Frontend  `json:"frontends,omitempty"`
	Pools      []*Pool      `json:"pools,omitempty"`
	ClusterIPs []netip.Addr `json:"clusterIPs,omitempty"`
	Hairpins   []netip.Addr `json:"hairpins,omitempty"`
}

// NewTable returns a table with a copy of the contents, which may be in any order. It returns an
// error if a key or an identity occurs twice.
func NewTable(c Contents) (*Table, error) {
	t := &Table{rules: c.Rules.clone(), clusterIPs: countAddrs(slices.Clone(c.ClusterIPs)),
		hairpins: countAddrs(slices.Clone(c.Hairpins))}
	if slices.Contains(c.Frontends, nil) || slices.Contains(c.Pools, nil) {
		return nil, fmt.Errorf("new table: a frontend or pool is nil")
	}
	all := make([]*Frontend, len(c.Frontends))
	for i, f := range c.Frontends {
		all[i] = f.clone()
	}
	var frontends pmap.Builder[FrontendKey, *Frontend, keyHash]
	for _, f := range inOrder(all, func(a, b *Frontend) int {
		return a.Key.Compare(b.Key)
	}) {
		if !frontends.Append(f.Key, f) {
			return nil, fmt.Errorf("new table: frontend %v occurs twice", f.Key)
		}
		t.indexRange(nil, f)
	}

	var pools pmap.Builder[PoolID, *Pool, poolHash]
	for _, p := range inOrder(c.Pools, comparePools) {
		if err := p.checkUnits(); err != nil {
			return nil, err
		}
		if !pools.Append(p.ID, p.clone()) {
			return nil, fmt.Errorf("new table: pool %v occurs twice", p.ID)
		}
	}

	var owned pmap.Builder[PortName, []*Frontend, portHash]
	for port, own := range byPort(inOrder(all, compareClaims)) {
		owned.Append(port, own)
	}
	t.frontends, t.pools, t.owned = frontends.Map(), pools.Map(), owned.Map()
	return t, nil
}

// Rules returns the table's node-wide rules.
func (t *Table) Rules() Rules { return *lend(&t.orEmpty().rules) }

// Len returns the number of frontends.
func (t *Table) Len() int { return t.orEmpty().frontends.Len() }

// Frontends returns all frontends in the order of their keys.
func (t *Table) Frontends() iter.Seq[*Frontend] { return each(t.orEmpty().frontends.All(), lend) }

// Frontend returns the frontend with the given key, or nil if there is none.
func (t *Table) Frontend(k FrontendKey) *Frontend { return lend(t.orEmpty().frontends.At(k)) }

// FrontendsOf returns the frontends of a service port in the order of their keys, in both families.
func (t *Table) FrontendsOf(n PortName) []*Frontend { return lendAll(t.orEmpty().owned.At(n)) }

// FrontendsOfService returns the frontends of all ports of a service.
func (t *Table) FrontendsOfService(n Name) (l []*Frontend) {
	in := func(port PortName) bool { return port.Name == n }
	for _, own := range t.orEmpty().owned.From(PortName{Name: n}, in) {
		l = append(l, own...)
	}
	return lendAll(l)
}

// Pools returns all pools in the order of their identities. At least one frontend uses each pool.
func (t *Table) Pools() iter.Seq[*Pool] { return each(t.orEmpty().pools.All(), lend) }

// Pool returns the pool with the given identity, or nil if there is none.
func (t *Table) Pool(id PoolID) *Pool { return lend(t.orEmpty().pools.At(id)) }

// PoolsOf returns the pools over which a frontend balances: internal for internal traffic, and
// external for external traffic if it uses a different pool. A result is nil if that traffic is not
// balanced, or if the table lacks the pool.
func (t *Table) PoolsOf(f *Frontend) (internal, external *Pool) {
	if f == nil {
		return nil, nil
	}
	if id, ok := f.Pool(f.Internal); ok {
		internal = t.Pool(id)
	}
	if id, ok := f.Pool(f.External); ok && f.External != f.Internal {
		external = t.Pool(id)
	}
	return internal, external
}

// Slots yields the slots of the pools of a frontend. An endpoint in both pools is yielded twice.
func (t *Table) Slots(f *Frontend) iter.Seq[Slot] {
	internal, external := t.PoolsOf(f)
	return func(yield func(Slot) bool) {
		for _, p := range []*Pool{internal, external} {
			if p == nil {
				continue
			}
			for _, slot := range p.Slots {
				if !yield(slot) {
					return
				}
			}
		}
	}
}

// Contents returns the objects of the table that a kernel stores. [NewTable] builds an equal table
// from them.
func (t *Table) Contents() Contents {
	return Contents{Rules: t.Rules(), Frontends: slices.Collect(t.Frontends()),
		Pools: slices.Collect(t.Pools()), ClusterIPs: slices.Collect(t.ClusterIPs()),
		Hairpins: slices.Collect(t.Hairpins())}
}

// ClusterIPs returns the sorted cluster IPs of all services. Packets to other ports of these
// addresses are rejected.
func (t *Table) ClusterIPs() iter.Seq[netip.Addr] { return keys(t.orEmpty().clusterIPs.All()) }

// HasClusterIP reports whether a is one of [Table.ClusterIPs].
func (t *Table) HasClusterIP(a netip.Addr) bool {
	_, ok := t.orEmpty().clusterIPs.Get(a)
	return ok
}

// Hairpins returns, sorted, the addresses of endpoints whose connections to a service may be sent
// back to themselves: endpoints on this node, or on an unknown node. Such a connection must be
// masqueraded, because otherwise its reply does not come back through the node.
func (t *Table) Hairpins() iter.Seq[netip.Addr] { return keys(t.orEmpty().hairpins.All()) }

// HasHairpin reports whether a is one of [Table.Hairpins].
func (t *Table) HasHairpin(a netip.Addr) bool {
	_, ok := t.orEmpty().hairpins.Get(a)
	return ok
}

// HealthChecks returns, by service name, the answers to health checks of external load balancers.
// The program gives these answers, not the kernel.
func (t *Table) HealthChecks() iter.Seq[HealthCheck] {
	return each(t.orEmpty().health.All(), func(h *HealthCheck) HealthCheck { return *h })
}

// Conflicts returns the claims that lost to another service, in the order of their keys. Only
// tables from [Resolve] have conflicts.
func (t *Table) Conflicts() iter.Seq[Conflict] {
	return func(yield func(Conflict) bool) {
		for key, claims := range t.orEmpty().contested.All() {
			for _, f := range claims[1:] {
				if !yield(Conflict{Key: key, Winner: claims[0].Service, Loser: f.Service}) {
					return
				}
			}
		}
	}
}

// HealthCheck is the state of one health check node port. The families have separate counts,
// because a load balancer that checks over IPv4 sends IPv4 traffic.
type HealthCheck struct {
	Service Name   `json:"service"`
	Port    uint16 `json:"port"`
	// IPv4 and IPv6 count the addresses of ready endpoints on this node that have a port. As in
	// kube-proxy, the name of the port does not matter. The count is [NotServed] in a family that
	// the service does not have: nothing answers there.
	IPv4 int `json:"ipv4"`
	IPv6 int `json:"ipv6"`
}

// NotServed is the count in a family that a service does not have, see [HealthCheck].
const NotServed = -1

// Conflict says that two services claim the same key. The winner has the lower kind, then the lower
// name. Winner.Name and Loser.Name name the services.
type Conflict struct {
	Key    FrontendKey `json:"key"`
	Winner PortName    `json:"winner"`
	Loser  PortName    `json:"loser"`
}

// String returns "10.96.0.10:80/tcp: default/a:http wins over default/b:http".
func (c Conflict) String() string {
	return c.Key.String() + ": " + c.Winner.String() + " wins over " + c.Loser.String()
}

func keys[K, V any](seq iter.Seq2[K, V]) iter.Seq[K] {
	return func(yield func(K) bool) {
		for k := range seq {
			if !yield(k) {
				return
			}
		}
	}
}

func values[K, V any](seq iter.Seq2[K, V]) iter.Seq[V] {
	return each(seq, func(v V) V { return v })
}

// each yields the result of of for each value, such as a copy.
func each[K, V, T any](seq iter.Seq2[K, V], of func(V) T) iter.Seq[T] {
	return func(yield func(T) bool) {
		for _, v := range seq {
			if !yield(of(v)) {
				return
			}
		}
	}
}
