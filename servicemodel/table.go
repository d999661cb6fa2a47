package servicemodel

import (
	"fmt"
	"iter"
	"net/netip"
	"slices"

	"github.com/kernlb/kernlb/internal/persist"
)

// Table says what services mean on one node: frontends, pools, and what goes with them. Tables are
// immutable and share what they have in common; what a table hands out is a copy. [Resolve] makes
// them from a state, [NewTable] from what a backend found in the kernel. The nil *Table is an empty
// table.
type Table struct {
	rules      Rules
	frontends  persist.Map[FrontendKey, *Frontend, keyOrder]
	owned      persist.Map[PortName, []*Frontend, portOrder] // the frontends of each service port
	pools      persist.Map[PoolID, *Pool, poolIDOrder]
	clusterIPs addrCounts
	hairpins   addrCounts
	health     persist.Map[Name, HealthCheck, nameOrder]
	// claims that are no frontend because another won
	losers persist.Map[claimKey, *Frontend, claimOrder]

	memory *memory // nil unless made by Resolve
}

// orEmpty returns what t stands for: nil is an empty table.
func (t *Table) orEmpty() *Table {
	if t == nil {
		return &Table{}
	}
	return t
}

// Contents are the parts of a table, as a backend reads them back.
type Contents struct {
	Rules      Rules
	Frontends  []*Frontend
	Pools      []*Pool
	ClusterIPs []netip.Addr
	Hairpins   []netip.Addr
}

// NewTable returns the table with a copy of the given contents, in any order. It is an error if a
// key or an identity occurs twice.
func NewTable(c Contents) (*Table, error) {
	t := &Table{rules: c.Rules.clone(), clusterIPs: addrSet(c.ClusterIPs),
		hairpins: addrSet(c.Hairpins)}
	if slices.Contains(c.Frontends, nil) || slices.Contains(c.Pools, nil) {
		return nil, fmt.Errorf("new table: a frontend or pool is nil")
	}
	all := make([]*Frontend, len(c.Frontends))
	for i, f := range c.Frontends {
		all[i] = f.clone()
	}
	var frontends persist.Builder[FrontendKey, *Frontend, keyOrder]
	for _, f := range sorted(all, func(a, b *Frontend) int {
		return a.Key.Compare(b.Key)
	}) {
		if !frontends.Append(f.Key, f) {
			return nil, fmt.Errorf("new table: frontend %v occurs twice", f.Key)
		}
	}
	var pools persist.Builder[PoolID, *Pool, poolIDOrder]
	for _, p := range sorted(c.Pools, comparePools) {
		if !pools.Append(p.ID, p.clone()) {
			return nil, fmt.Errorf("new table: pool %v occurs twice", p.ID)
		}
	}
	var owned persist.Builder[PortName, []*Frontend, portOrder]
	for port, own := range byPort(sorted(all, compareClaims)) {
		owned.Append(port, own)
	}
	t.frontends, t.pools, t.owned = frontends.Map(), pools.Map(), owned.Map()
	return t, nil
}

// Contents returns what [NewTable] makes the table of: what a kernel holds of it.
func (t *Table) Contents() Contents {
	return Contents{Rules: t.Rules(), Frontends: slices.Collect(t.Frontends()),
		Pools: slices.Collect(t.Pools()), ClusterIPs: slices.Collect(t.ClusterIPs()),
		Hairpins: slices.Collect(t.Hairpins())}
}

func sorted[T any](list []T, compare func(a, b T) int) []T {
	list = slices.Clone(list)
	slices.SortFunc(list, compare)
	return list
}

// Rules returns the table's node-wide rules.
func (t *Table) Rules() Rules { return t.orEmpty().rules.clone() }

// Len returns the number of frontends.
func (t *Table) Len() int { return t.orEmpty().frontends.Len() }

// Frontends returns all frontends in the order of their keys.
func (t *Table) Frontends() iter.Seq[*Frontend] {
	return copies(t.orEmpty().frontends.All(), (*Frontend).clone)
}

// Frontend returns the frontend with the given key, nil if there is none.
func (t *Table) Frontend(k FrontendKey) *Frontend { return t.frontend(k).clone() }

// frontend and pool return the table's own values, which nobody else may hold.
func (t *Table) frontend(k FrontendKey) *Frontend {
	if t == nil {
		return nil
	}
	f, _ := t.frontends.Get(k)
	return f
}

// Pools returns all pools in the order of their identities. Each is used by at least one frontend.
func (t *Table) Pools() iter.Seq[*Pool] {
	return copies(t.orEmpty().pools.All(), (*Pool).clone)
}

// Pool returns the pool with the given identity, nil if there is none.
func (t *Table) Pool(id PoolID) *Pool { return t.pool(id).clone() }

func (t *Table) pool(id PoolID) *Pool {
	if t == nil {
		return nil
	}
	p, _ := t.pools.Get(id)
	return p
}

// PoolsOf returns the pools that a frontend balances over: that of internal traffic, and that of
// external traffic if it is another. Where traffic is not balanced, or the table does not have the
// pool, it is nil.
func (t *Table) PoolsOf(f *Frontend) (internal, external *Pool) {
	internal, external = Shared{t}.PoolsOf(f)
	return internal.clone(), external.clone()
}

// FrontendsOf returns the frontends of a service port in the order of their keys, both families.
func (t *Table) FrontendsOf(n PortName) []*Frontend {
	own := slices.Clone(t.frontendsOf(n))
	for i, f := range own {
		own[i] = f.clone()
	}
	return own
}

func (t *Table) frontendsOf(n PortName) []*Frontend {
	if t == nil {
		return nil
	}
	own, _ := t.owned.Get(n)
	return own
}

// ClusterIPs returns the cluster IPs of all services, sorted: the addresses whose other ports are
// rejected.
func (t *Table) ClusterIPs() iter.Seq[netip.Addr] { return keys(t.orEmpty().clusterIPs.All()) }

// HasClusterIP reports whether a is one of [Table.ClusterIPs].
func (t *Table) HasClusterIP(a netip.Addr) bool {
	_, ok := t.orEmpty().clusterIPs.Get(a)
	return ok
}

// Hairpins returns, sorted, the addresses of endpoints that may send to a service and be given
// themselves: those on this node and those of which the node is not known. Such a connection must
// be masqueraded, or its reply never comes back through the node.
func (t *Table) Hairpins() iter.Seq[netip.Addr] { return keys(t.orEmpty().hairpins.All()) }

// HasHairpin reports whether a is one of [Table.Hairpins].
func (t *Table) HasHairpin(a netip.Addr) bool {
	_, ok := t.orEmpty().hairpins.Get(a)
	return ok
}

// HealthChecks returns, by service name, what external load balancers ask for. They are answered by
// the program, not by the kernel.
func (t *Table) HealthChecks() iter.Seq[HealthCheck] { return values(t.orEmpty().health.All()) }

// Conflicts returns the claims that lost to another service, in the order of their keys. A table
// that does not come from [Resolve] knows of none.
func (t *Table) Conflicts() iter.Seq[Conflict] {
	t = t.orEmpty()
	return func(yield func(Conflict) bool) {
		for k := range t.losers.All() {
			winner := t.frontend(k.key)
			if !yield(Conflict{Key: k.key, Winner: winner.Service, Loser: k.service}) {
				return
			}
		}
	}
}

// HealthCheck is the state of one health check node port. Each family answers for itself, as a load
// balancer that asks over IPv4 sends IPv4.
type HealthCheck struct {
	Service Name   `json:"service"`
	Port    uint16 `json:"port"`
	// IPv4 and IPv6 count the addresses of ready endpoints on this node, [NotServed] in a family in
	// which the service does not exist: nobody answers there.
	IPv4 int `json:"ipv4"`
	IPv6 int `json:"ipv6"`
}

// NotServed is the count of a family in which a service does not exist, see [HealthCheck].
const NotServed = -1

// Conflict says that two services claim one key. The winner has the lower kind, then the lower
// name.
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
	return func(yield func(V) bool) {
		for _, v := range seq {
			if !yield(v) {
				return
			}
		}
	}
}

// copies yields copies of the values.
func copies[K, V any](seq iter.Seq2[K, V], clone func(V) V) iter.Seq[V] {
	return func(yield func(V) bool) {
		for _, v := range seq {
			if !yield(clone(v)) {
				return
			}
		}
	}
}
