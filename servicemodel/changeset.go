package servicemodel

import (
	"fmt"
	"iter"
	"net/netip"
	"slices"

	"github.com/kernlb/kernlb/servicemodel/internal/pmap"
)

// ChangeSet is the difference between two tables: a value that can be printed, counted and applied.
// Its size depends on the difference, never on the size of the tables. Every list is sorted by key.
// The nil *ChangeSet changes nothing.
//
// A change set shares its frontends, pools and health checks with the tables. They must not be
// modified, see [Table].
type ChangeSet struct {
	// Old and New are the two compared tables.
	Old, New *Table `json:"-"`

	// Rules says that the node-wide rules differ.
	Rules *Change[Rules] `json:"rules,omitempty"`

	Frontends  []Change[Frontend] `json:"frontends,omitempty"`
	Pools      []Change[Pool]     `json:"pools,omitempty"`
	ClusterIPs []AddrChange       `json:"clusterIPs,omitempty"`
	Hairpins   []AddrChange       `json:"hairpins,omitempty"`
	// Health lists changes of the program's answers to health checks. The kernel does not store
	// them: see [ChangeSet.Empty].
	Health []Change[HealthCheck] `json:"healthChecks,omitempty"`

	// from and to are the fingerprints of Old and New, if the change set was read from JSON.
	from, to string
}

// Change is an object added (Old nil), removed (New nil) or changed.
type Change[T any] struct {
	Old *T `json:"old,omitempty"`
	New *T `json:"new,omitempty"`
}

// SlotsSince yields the slots of p that differ from old's, by index. If either pool is nil, it
// yields no slots, because all slots are added or removed.
func (p *Pool) SlotsSince(old *Pool) iter.Seq[SlotChange] {
	return func(yield func(SlotChange) bool) {
		if old == nil || p == nil || old == p {
			return
		}
		a, b := old.Slots, p.Slots
		for i := range max(len(a), len(b)) {
			s := SlotChange{Index: i}
			if i < len(a) {
				s.Old = a[i]
			}
			if i < len(b) {
				s.New = b[i]
			}
			if s.Old != s.New && !yield(s) {
				return
			}
		}
	}
}

// SlotChange is a slot that was filled (Old invalid), emptied (New invalid) or given a different
// endpoint or weight.
type SlotChange struct {
	Index int  `json:"index"`
	Old   Slot `json:"old,omitzero"`
	New   Slot `json:"new,omitzero"`
}

// AddrChange is an address added to a set of addresses, or removed from it.
type AddrChange struct {
	Addr  netip.Addr `json:"addr"`
	Added bool       `json:"added"`
}

// Counts are the numbers of objects that a change set adds, changes and removes. [ChangeSet.Counts]
// defines the objects.
type Counts struct {
	Added   int `json:"added"`
	Changed int `json:"changed"`
	Removed int `json:"removed"`
}

// String returns "2 added, 1 changed, 0 removed".
func (c Counts) String() string {
	return fmt.Sprintf("%d added, %d changed, %d removed", c.Added, c.Changed, c.Removed)
}

// orEmpty returns c, or an empty change set if c is nil.
func (c *ChangeSet) orEmpty() *ChangeSet {
	if c == nil {
		return &ChangeSet{}
	}
	return c
}

// Empty reports whether the kernel has nothing to do: Old and New are equal ([Table.Equal]). The
// change set may still change health checks, because the program answers them; the kernel only
// accepts their packets.
func (c *ChangeSet) Empty() bool {
	c = c.orEmpty()
	return c.Rules == nil && len(c.Frontends) == 0 && len(c.Pools) == 0 &&
		len(c.ClusterIPs) == 0 && len(c.Hairpins) == 0
}

// Schedulers yields the service ports whose services or endpoints differ between the states of Old
// and New, with the schedulers that they request. A service without endpoints has no pool that
// records its scheduler. With Schedulers, a backend can refuse such a service if it lacks the
// scheduler, without waiting for endpoints. If Old was not resolved from a state, for example
// because it was read from the kernel, all services of New differ. If New was not resolved from a
// state, Schedulers yields nothing.
func (c *ChangeSet) Schedulers() iter.Seq2[PortName, Scheduler] {
	return func(yield func(PortName, Scheduler) bool) {
		c := c.orEmpty()
		if !c.New.remembers() {
			return
		}
		var old State
		if c.Old.remembers() {
			old = c.Old.memory.state
		}

		for e := range pmap.Diff(old.entries, c.New.memory.state.entries, entry.equal) {
			svc := e.New.service
			if svc == nil || svc.Scheduler == SchedulerDefault {
				continue
			}
			for i := range svc.Ports {
				p := &svc.Ports[i]
				if !yield(PortName{svc.Name, p.Name, p.Protocol}, svc.Scheduler) {
					return
				}
			}
		}
	}
}

// Counts counts frontends, and the slots that were filled, emptied, or given a different endpoint
// or weight. It skips the slots of pools that were added or removed. A pool whose scheduler or
// forwarding changed counts as one more change. Counts ignores the consequences of these changes,
// and changes that concern the whole node (rules, cluster IPs, hairpins, health checks).
func (c *ChangeSet) Counts() Counts {
	var n Counts
	c = c.orEmpty()
	count := func(was, is bool) {
		switch {
		case !was:
			n.Added++
		case !is:
			n.Removed++
		default:
			n.Changed++
		}
	}

	for _, f := range c.Frontends {
		count(f.Old != nil, f.New != nil)
	}
	for _, p := range c.Pools {
		if p.Old == nil || p.New == nil {
			continue
		}
		if p.Old.Scheduler != p.New.Scheduler || p.Old.Forwarding != p.New.Forwarding {
			n.Changed++
		}
		for s := range p.New.SlotsSince(p.Old) {
			count(s.Old.Endpoint.IsValid(), s.New.Endpoint.IsValid())
		}
	}

	return n
}

// Diff returns the changes from old to new. The change set is empty ([ChangeSet.Empty]) if and only
// if the tables are equal. Diff skips contents that the tables share, so its cost depends on the
// difference.
func Diff(old, new *Table) *ChangeSet {
	c := &ChangeSet{Old: old, New: new}
	a, b := old.orEmpty(), new.orEmpty()
	if !a.rules.Equal(b.rules) {
		was, is := a.rules.clone(), b.rules.clone()
		c.Rules = &Change[Rules]{&was, &is}
	}

	c.Frontends = changes(a.frontends, b.frontends, (*Frontend).Equal)
	c.Pools = changes(a.pools, b.pools, (*Pool).Equal)
	c.Health = changes(a.health, b.health, sameHealth)
	c.ClusterIPs = diffAddrs(a.clusterIPs, b.clusterIPs)
	c.Hairpins = diffAddrs(a.hairpins, b.hairpins)
	return c
}

// changes returns the differences between two maps of a table.
func changes[K pmap.Key[K], T any, O pmap.Hasher[K]](a, b pmap.Map[K, *T, O],
	same func(a, b *T) bool) (list []Change[T]) {
	if a.Len() == 0 {
		list = make([]Change[T], 0, b.Len())
	}
	for d := range pmap.Diff(a, b, same) {
		list = append(list, Change[T]{lend(d.Old), lend(d.New)})
	}
	return list
}

func diffAddrs(a, b addrCounts) (list []AddrChange) {
	if a.Len() == 0 {
		list = make([]AddrChange, 0, b.Len())
	}
	for d := range pmap.Diff(a, b, always[int]) {
		list = append(list, AddrChange{Addr: d.Key, Added: d.InNew})
	}
	return list
}

func sameHealth(a, b *HealthCheck) bool { return *a == *b }

// always treats any two values of one key as equal.
func always[V any](V, V) bool { return true }

// Equal reports whether t and o have the same effect in a kernel: they have the same rules,
// frontends, pools (slots in the same order), cluster IPs and hairpins. Health checks and conflicts
// are not compared, because a table that was read from a kernel lacks them.
func (t *Table) Equal(o *Table) bool { return Diff(t, o).Empty() }

// Apply returns t with the changes applied. The result shares the objects of t. Applying Diff(a, b)
// to a gives a table equal to b. The result has no conflicts, and does not know the state from
// which b was resolved.
func (t *Table) Apply(c *ChangeSet) *Table {
	n := *t.orEmpty()
	c = c.orEmpty()
	n.memory, n.ramps, n.contested = nil, nil, pmap.Map[FrontendKey, []*Frontend, keyHash]{}
	if c.Rules != nil {
		n.rules = c.Rules.New.clone()
	}
	for _, f := range c.Frontends {
		if f.Old != nil {
			n.disown(f.Old)
		}
		if f.New != nil {
			n.own(f.New)
		}
	}

	n.pools = applied(n.pools, c.Pools, poolKey)
	n.health = applied(n.health, c.Health, healthKey)
	n.clusterIPs = applyAddrs(n.clusterIPs, c.ClusterIPs)
	n.hairpins = applyAddrs(n.hairpins, c.Hairpins)
	return &n
}

func applied[K pmap.Key[K], T any, O pmap.Hasher[K]](to pmap.Map[K, *T, O], changes []Change[T],
	key func(*T) K) pmap.Map[K, *T, O] {
	for _, c := range changes {
		if c.New == nil {
			to = to.Delete(key(c.Old))
		} else {
			to = to.Set(key(c.New), c.New)
		}
	}

	return to
}

func applyAddrs(set addrCounts, changes []AddrChange) addrCounts {
	for _, c := range changes {
		if c.Added {
			set = set.Set(c.Addr, 1)
		} else {
			set = set.Delete(c.Addr)
		}
	}

	return set
}

// own adds f to the frontends of the table and of its service port. disown removes it.
func (t *Table) own(f *Frontend) {
	t.indexRange(f, f)
	t.frontends = t.frontends.Set(f.Key, f)
	list := slices.Clone(t.owned.At(f.Service))
	i, found := slices.BinarySearchFunc(list, f, compareClaims)
	if found {
		list[i] = f
	} else {
		list = slices.Insert(list, i, f)
	}

	t.owned = t.owned.Set(f.Service, list)
}

func (t *Table) disown(f *Frontend) {
	t.indexRange(f, nil)
	t.frontends = t.frontends.Delete(f.Key)
	list := t.owned.At(f.Service)
	i, found := slices.BinarySearchFunc(list, f, compareClaims)
	switch {
	case found && len(list) == 1:
		t.owned = t.owned.Delete(f.Service)
	case found:
		t.owned = t.owned.Set(f.Service, slices.Delete(slices.Clone(list), i, i+1))
	}
}

// Changes returns Diff(t, c.New), but only for the objects that c changes. The cost depends on the
// size of c. With it, an engine that retries a change of the table checks only the new part.
func (t *Table) Changes(c *ChangeSet) *ChangeSet {
	if c == nil {
		return &ChangeSet{Old: t, New: t}
	}
	part := Diff(t, t.Apply(c))
	part.New = c.New
	return part
}

// The keys of objects in a table.
func frontendKey(f *Frontend) FrontendKey { return f.Key }
func poolKey(p *Pool) PoolID              { return p.ID }
func healthKey(h *HealthCheck) Name       { return h.Service }
