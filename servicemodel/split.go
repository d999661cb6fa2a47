package servicemodel

import "net/netip"

// Split divides a change set that is too large to be written at once. The first part changes the
// rules of the node and adds half of the new service ports, with their addresses. The rest begins
// where the first part ends, and leads to c.New. Each part leaves only whole service ports. Both
// are nil if c adds fewer than two service ports.
func (c *ChangeSet) Split() (first, rest *ChangeSet) {
	half := c.halfOfNew()
	if half == nil {
		return nil, nil
	}
	first = &ChangeSet{Old: c.Old, Rules: c.Rules}
	answers, endpoints := map[netip.Addr]bool{}, map[netip.Addr]bool{}
	for _, f := range c.Frontends {
		if f.New != nil && half[f.New.Service] {
			first.Frontends = append(first.Frontends, f)
			answers[f.New.Key.Addr] = true
		}
	}
	for _, p := range c.Pools {
		if p.New == nil || !half[p.New.ID.Service] {
			continue
		}
		first.Pools = append(first.Pools, p)
		for _, s := range p.New.Slots {
			endpoints[s.Endpoint.Addr()] = true
		}
	}
	first.ClusterIPs = addedAmong(c.ClusterIPs, answers)
	first.Hairpins = addedAmong(c.Hairpins, endpoints)
	first.New = c.Old.Apply(first)
	return first, Diff(first.New, c.New)
}

// halfOfNew returns half of the service ports that c only adds to, in the order of their frontends;
// nil if there are not two of them.
func (c *ChangeSet) halfOfNew() map[PortName]bool {
	only := map[PortName]bool{}
	var order []PortName
	note := func(n PortName, added bool) {
		was, known := only[n]
		if !known {
			order = append(order, n)
		}
		only[n] = added && (was || !known)
	}
	for _, f := range c.Frontends {
		if f.New != nil {
			note(f.New.Service, f.Old == nil)
		}
	}
	for _, p := range c.Pools {
		note(either(p.Old, p.New).ID.Service, p.Old == nil)
	}
	var added []PortName
	for _, n := range order {
		if only[n] {
			added = append(added, n)
		}
	}
	if len(added) < 2 {
		return nil
	}
	half := map[PortName]bool{}
	for _, n := range added[:len(added)/2] {
		half[n] = true
	}
	return half
}

// addedAmong returns the changes of a list that add one of the given addresses.
func addedAmong(l []AddrChange, others map[netip.Addr]bool) []AddrChange {
	var some []AddrChange
	for _, a := range l {
		if a.Added && others[a.Addr] {
			some = append(some, a)
		}
	}
	return some
}
