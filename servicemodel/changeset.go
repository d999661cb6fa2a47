package servicemodel

import "net/netip"

// ChangeSet is the difference between two tables: a value that can be printed, counted and applied. Its size depends on
// what differs, never on how much exists. Every list is in the order of its keys.
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
}

// RulesChange is a change of the node-wide rules.
type RulesChange struct{ Old, New Rules }

// FrontendChange is a frontend added (Old nil), removed (New nil) or changed.
type FrontendChange struct{ Old, New *Frontend }

// PoolChange is a pool added (Old nil), removed (New nil) or changed.
type PoolChange struct {
	Old, New *Pool
	// Slots are the slots that differ, by index. For an added or removed pool, all of them.
	Slots []SlotChange
}

// SlotChange is a slot that was filled (Old invalid), emptied (New invalid) or given another endpoint or weight.
type SlotChange struct {
	Index    int
	Old, New Slot
}

// AddrChange is an address added to a set of addresses, or removed from it.
type AddrChange struct {
	Addr  netip.Addr
	Added bool
}

// HealthChange is a health check node port added (Old nil), removed (New nil) or changed.
type HealthChange struct{ Old, New *HealthCheck }

// Counts are the number of objects a change set adds, changes and removes.
type Counts struct{ Added, Changed, Removed int }

// Diff returns what leads from old to new. Equal tables give an empty change set. What the tables share is not looked at.
func Diff(old, new *Table) *ChangeSet { panic("skeleton") }

// Empty reports whether nothing differs.
func (c *ChangeSet) Empty() bool { panic("skeleton") }

// Counts counts frontends, and endpoints (slots) of pools that are neither added nor removed.
func (c *ChangeSet) Counts() Counts { panic("skeleton") }

// String returns the change set as text, one line for each change: "+" added, "~" changed, "-" removed.
func (c *ChangeSet) String() string { panic("skeleton") }
