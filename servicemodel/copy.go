package servicemodel

import "slices"

// States, tables and change sets share their common contents with each other, never with a caller.
// Values are copied when a caller passes them in and when a caller gets them. This file holds the
// copying. Inside the package, shared values are read without a copy.

// clone returns a deep copy of s.
func (s *Service) clone() *Service {
	own := *s
	own.Ports = slices.Clone(s.Ports)
	own.ClusterIPs = slices.Clone(s.ClusterIPs)
	own.ExternalIPs = slices.Clone(s.ExternalIPs)
	own.HostIPs = slices.Clone(s.HostIPs)
	own.LoadBalancerIPs = slices.Clone(s.LoadBalancerIPs)
	own.LoadBalancerSourceRanges = slices.Clone(s.LoadBalancerSourceRanges)
	return &own
}

// cloneEndpoints returns a deep copy of eps: no two of its lists share memory.
func cloneEndpoints(eps []Endpoint) []Endpoint {
	own := slices.Clone(eps)
	n := 0
	for i := range own {
		n += len(own[i].Ports)
	}
	ports := make([]EndpointPort, 0, n)
	for i := range own {
		e := &own[i]
		from := len(ports)
		ports = append(ports, e.Ports...)
		if e.Ports != nil {
			e.Ports = ports[from:len(ports):len(ports)]
		}
		e.ForNodes, e.ForZones = slices.Clone(e.ForNodes), slices.Clone(e.ForZones)
	}
	return own
}

// compactEndpoints returns a copy of eps that needs little memory. Most endpoints of a service have
// the same ports and hints, and neighbours in the list share them. like are the endpoints that a
// state already has.
func compactEndpoints(eps, like []Endpoint) []Endpoint {
	own := slices.Clone(eps)
	var last Endpoint
	if len(like) > 0 {
		last = like[0]
	}
	for i := range own {
		e := &own[i]
		e.Ports = cloneUnless(e.Ports, last.Ports)
		e.ForNodes = cloneUnless(e.ForNodes, last.ForNodes)
		e.ForZones = cloneUnless(e.ForZones, last.ForZones)
		last = *e
	}
	return own
}

// cloneUnless returns known if it equals list, else a copy of list.
func cloneUnless[T comparable](list, known []T) []T {
	if slices.Equal(list, known) {
		return known
	}
	return slices.Clone(list)
}

// clone returns a deep copy of n.
func (n Node) clone() *Node {
	n.Addresses = slices.Clone(n.Addresses)
	n.NodePortAddresses.CIDRs = slices.Clone(n.NodePortAddresses.CIDRs)
	n.LocalPods.CIDRs = slices.Clone(n.LocalPods.CIDRs)
	n.ServiceCIDRs = slices.Clone(n.ServiceCIDRs)
	return &n
}

// clone returns a deep copy of r.
func (r Rules) clone() Rules {
	r.LocalPods.CIDRs = slices.Clone(r.LocalPods.CIDRs)
	r.NodePorts = slices.Clone(r.NodePorts)
	r.ServiceCIDRs = slices.Clone(r.ServiceCIDRs)
	return r
}

// clone returns a deep copy of f, nil if f is nil.
func (f *Frontend) clone() *Frontend {
	if f == nil {
		return nil
	}
	own := *f
	own.Sources = slices.Clone(f.Sources)
	return &own
}

// clone returns a deep copy of p, nil if p is nil.
func (p *Pool) clone() *Pool {
	if p == nil {
		return nil
	}
	own := *p
	own.Slots = slices.Clone(p.Slots)
	return &own
}

// detach replaces the objects that c shares with tables by copies. The copies of one kind lie in
// one array, because a change set is dropped as a whole.
func (c *ChangeSet) detach() {
	detach(c.Frontends, func(f *Frontend) { f.Sources = slices.Clone(f.Sources) })
	n := 0
	for _, p := range c.Pools {
		for _, pool := range [...]*Pool{p.Old, p.New} {
			if pool != nil {
				n += len(pool.Slots)
			}
		}
	}
	slots := make([]Slot, 0, n)
	detach(c.Pools, func(p *Pool) {
		from := len(slots)
		slots = append(slots, p.Slots...)
		p.Slots = slots[from:len(slots):len(slots)]
	})
	detach(c.Health, func(*HealthCheck) {})
}

// detach copies the objects of changes. own replaces what a copy still shares with its original.
func detach[T any](changes []Change[T], own func(*T)) {
	n := 0
	for _, c := range changes {
		if n++; c.Old != nil && c.New != nil {
			n++
		}
	}
	all := make([]T, 0, n)
	for i := range changes {
		for _, x := range [...]**T{&changes[i].Old, &changes[i].New} {
			if *x != nil {
				all = append(all, **x)
				*x = &all[len(all)-1]
				own(*x)
			}
		}
	}
}
