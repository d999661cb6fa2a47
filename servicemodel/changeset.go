package servicemodel

import (
	"fmt"
	"iter"
	"net/netip"
)

// ChangeSet is the difference between two tables: a value that can be printed, counted and applied.
// Its size depends on what differs, never on how much exists. Every list is in the order of its
// keys.
type ChangeSet struct {
	// Old and New are the tables compared.
	Old, New *Table

	// Rules is set if the node-wide rules differ.
	Rules *RulesChange

	Frontends  []FrontendChange
	Pools      []PoolChange
	ClusterIPs []AddrChange
	Hairpins   []AddrChange
	Health     []HealthChange

	// from and to are the fingerprints of Old and New of a change set that was read from JSON.
	from, to string
}

// RulesChange is a change of the node-wide rules.
type RulesChange struct {
	Old Rules `json:"old"`
	New Rules `json:"new"`
}

// FrontendChange is a frontend added (Old nil), removed (New nil) or changed.
type FrontendChange struct {
	Old *Frontend `json:"old,omitempty"`
	New *Frontend `json:"new,omitempty"`
}

// PoolChange is a pool added (Old nil), removed (New nil) or changed.
type PoolChange struct {
	Old *Pool `json:"old,omitempty"`
	New *Pool `json:"new,omitempty"`
}

// Slots yields the slots that differ, by index, of a pool that is in both tables. Of an added or
// removed pool, whose slots all come or go, it yields none.
func (c PoolChange) Slots() iter.Seq[SlotChange] {
	return func(yield func(SlotChange) bool) {
		if c.Old == nil || c.New == nil || c.Old == c.New {
			return
		}
		a, b := c.Old.Slots, c.New.Slots
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

// SlotChange is a slot that was filled (Old invalid), emptied (New invalid) or given another
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

// HealthChange is a health check node port added (Old nil), removed (New nil) or changed.
type HealthChange struct {
	Old *HealthCheck `json:"old,omitempty"`
	New *HealthCheck `json:"new,omitempty"`
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

// Empty reports whether nothing differs.
func (c *ChangeSet) Empty() bool {
	return c.Rules == nil && len(c.Frontends) == 0 && len(c.Pools) == 0 &&
		len(c.ClusterIPs) == 0 && len(c.Hairpins) == 0 && len(c.Health) == 0
}

// Counts counts frontends, and endpoints (slots) of pools that are neither added nor removed: those
// that were filled, emptied, or given another endpoint or weight. A pool whose scheduler or
// forwarding changed is one more changed object. What follows from these, or concerns the whole
// node (rules, cluster IPs, hairpins, health checks), is not counted.
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
		for s := range p.Slots() {
			n.count(s.Old.Endpoint.IsValid(), s.New.Endpoint.IsValid())
		}
	}
	return n
}

// Plus returns the sums of n and o.
func (n Counts) Plus(o Counts) Counts {
	return Counts{Added: n.Added + o.Added, Changed: n.Changed + o.Changed, Removed: n.Removed +
		o.Removed}
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
