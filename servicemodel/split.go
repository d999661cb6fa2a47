package servicemodel

import (
	"net/netip"
	"slices"
)

// Split divides a change set that is too large for one write. The first part changes the node's
// rules and half of the service ports. It prefers new service ports, then changed ports, then
// removed ports. A frontend that moves from one service port to another belongs to the latter. The
// rest begins where the first part ends, and results in c.New. In every intermediate table, the
// pools of all frontends exist. Both results are nil if fewer than two service ports differ.
func (c *ChangeSet) Split() (first, rest *ChangeSet) {
	if c == nil {
		return nil, nil
	}
	half := c.half()
	if half == nil {
		return nil, nil
	}
	first = &ChangeSet{Old: c.Old, Rules: c.Rules}
	losing := map[PortName]bool{} // service ports with frontends that move to other ports later
	for _, f := range c.Frontends {
		switch {
		case half[either(f.New, f.Old).Service]:
			first.Frontends = append(first.Frontends, f)
		case f.Old != nil:
			losing[f.Old.Service] = true
		}
	}

	for _, p := range c.Pools {
		service := either(p.New, p.Old).ID.Service
		if half[service] && (p.New != nil || !losing[service]) {
			first.Pools = append(first.Pools, p)
		}
	}

	between := c.Old.Apply(first)
	first.ClusterIPs = among(c.ClusterIPs, func(a netip.Addr) bool {
		for range between.frontendsAt(a) {
			return true
		}
		return false
	})
	unused := map[netip.Addr]bool{}
	for _, a := range c.Hairpins {
		unused[a.Addr] = true
	}
	between.leaveOutEndpoints(unused)
	first.Hairpins = among(c.Hairpins, func(a netip.Addr) bool { return !unused[a] })
	if first.Empty() {
		return nil, nil
	}
	first.New = c.Old.Apply(first)
	return first, Diff(first.New, c.New)
}

// half returns half of the service ports that differ, in the order in which they change, or nil if
// there are fewer than two.
func (c *ChangeSet) half() map[PortName]bool {
	type fate struct{ was, is bool }
	fates := map[PortName]fate{}
	var order []PortName
	note := func(n PortName, was, is bool) {
		f, noted := fates[n]
		if !noted {
			order = append(order, n)
		}
		fates[n] = fate{f.was || was, f.is || is}
	}

	rank := func(n PortName) int {
		switch f := fates[n]; {
		case !f.was: // it is added
			return 0
		case f.is: // it changes
			return 1
		}

		return 2
	}

	for _, f := range c.Frontends {
		note(either(f.New, f.Old).Service, f.Old != nil, f.New != nil)
	}
	for _, p := range c.Pools {
		note(either(p.New, p.Old).ID.Service, p.Old != nil, p.New != nil)
	}
	if len(order) < 2 {
		return nil
	}
	slices.SortStableFunc(order, func(a, b PortName) int { return rank(a) - rank(b) })
	half := map[PortName]bool{}
	for _, n := range order[:len(order)/2] {
		half[n] = true
	}
	return half
}

// among returns the changes of l that add a used address or remove an unused one.
func among(l []AddrChange, used func(netip.Addr) bool) []AddrChange {
	return filter(l, func(a AddrChange) bool { return a.Added == used(a.Addr) })
}
