package servicemodel

import (
	"fmt"
	"iter"
	"net/netip"
)

// ChangeSet is the difference between two tables: a value that can be printed, counted and applied.
// Its size depends on the difference, never on the size of the tables. Every list is sorted by key.
type ChangeSet struct {
	// Old and New are the tables compared.
	Old, New *Table

	// Rules is set if the node-wide rules differ.
	Rules *Change[Rules]

	Frontends  []Change[Frontend]
	Pools      []Change[Pool]
	ClusterIPs []AddrChange
	Hairpins   []AddrChange
	// Health lists changes of the program's answers to health checks. No kernel holds them: see
	// [ChangeSet.Empty].
	Health []Change[HealthCheck]

	// from and to are the fingerprints of Old and New, if the change set was read from JSON.
	from, to string
}

// Change is an object added (Old nil), removed (New nil) or changed.
type Change[T any] struct {
	Old *T `json:"old,omitempty"`
	New *T `json:"new,omitempty"`
}

// SlotsSince yields the slots of p that differ from old's, by index. If either pool is nil it
// yields none, because all slots come or go.
func (p *Pool) SlotsSince(old *Pool) iter.Seq[slotChange] {
	return func(yield func(slotChange) bool) {
		if old == nil || p == nil || old == p {
			return
		}
		a, b := old.Slots, p.Slots
		for i := range max(len(a), len(b)) {
			s := slotChange{Index: i}
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

// slotChange is a slot that was filled (Old invalid), emptied (New invalid) or given another
// endpoint or weight.
type slotChange struct {
	Index int  `json:"index"`
	Old   Slot `json:"old,omitzero"`
	New   Slot `json:"new,omitzero"`
}

// AddrChange is an address added to a set of addresses, or removed from it.
type AddrChange struct {
	Addr  netip.Addr `json:"addr"`
	Added bool       `json:"added"`
}

// Counts are the number of objects a change set adds, changes and removes. See [ChangeSet.Counts]
// for what counts as an object.
type Counts struct {
	Added   int `json:"added"`
	Changed int `json:"changed"`
	Removed int `json:"removed"`
}

// String returns "2 added, 1 changed, 0 removed".
func (c Counts) String() string {
	return fmt.Sprintf("%d added, %d changed, %d removed", c.Added, c.Changed, c.Removed)
}

// Empty reports whether a kernel that holds Old already holds New ([Table.Equal]). The change set
// may still change health checks: the program answers them, and the kernel at most lets them pass.
func (c *ChangeSet) Empty() bool {
	return c.Rules == nil && len(c.Frontends) == 0 && len(c.Pools) == 0 &&
		len(c.ClusterIPs) == 0 && len(c.Hairpins) == 0
}

// Counts counts frontends, and those slots that were filled, emptied, or given another endpoint or
// weight. It skips the slots of pools that were added or removed. A pool whose scheduler or
// forwarding changed is one more changed object. Counts ignores consequences of these changes, and
// changes that concern the whole node (rules, cluster IPs, hairpins, health checks).
func (c *ChangeSet) Counts() Counts {
	var n Counts
	for _, f := range c.Frontends {
		n.count(f.Old != nil, f.New != nil)
	}
	for _, p := range c.Pools {
		if p.Old == nil || p.New == nil {
			continue
		}
		if p.Old.Scheduler != p.New.Scheduler || p.Old.Forwarding != p.New.Forwarding {
			n.Changed++
		}
		for s := range p.New.SlotsSince(p.Old) {
			n.count(s.Old.Endpoint.IsValid(), s.New.Endpoint.IsValid())
		}
	}
	return n
}

func (n *Counts) count(was, is bool) {
	switch {
	case !was:
		n.Added++
	case !is:
		n.Removed++
	default:
		n.Changed++
	}
}
