package servicemodel

import "slices"

// States, tables and change sets share what they have in common, so nobody else may hold it. What
// is given to them is copied on the way in, and what they hand out is copied on the way out. This
// file says how; inside the package the shared values are read as they are.

// clone returns a copy of s that shares nothing that can be changed.
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

// cloneEndpoints returns a copy of eps. Every list in it is apart from all others.
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

// compactEndpoints returns a copy of eps that takes little memory: the endpoints of a service
// mostly have the same ports and hints, and those that follow one another share them. like are
// endpoints that a state has already.
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

// clone returns a copy of n that shares nothing that can be changed.
func (n Node) clone() *Node {
	n.Addresses = slices.Clone(n.Addresses)
	n.NodePortAddresses.CIDRs = slices.Clone(n.NodePortAddresses.CIDRs)
	n.LocalPods.CIDRs = slices.Clone(n.LocalPods.CIDRs)
	n.ServiceCIDRs = slices.Clone(n.ServiceCIDRs)
	return &n
}

// clone returns a copy of r that shares nothing that can be changed.
func (r Rules) clone() Rules {
	r.LocalPods.CIDRs = slices.Clone(r.LocalPods.CIDRs)
	r.NodePorts = slices.Clone(r.NodePorts)
	r.ServiceCIDRs = slices.Clone(r.ServiceCIDRs)
	return r
}

// clone returns a copy of f that shares nothing that can be changed; nil if f is.
func (f *Frontend) clone() *Frontend {
	if f == nil {
		return nil
	}
	own := *f
	own.Sources = slices.Clone(f.Sources)
	return &own
}

// clone returns a copy of p that shares nothing that can be changed; nil if p is.
func (p *Pool) clone() *Pool {
	if p == nil {
		return nil
	}
	own := *p
	own.Slots = slices.Clone(p.Slots)
	return &own
}

// detach replaces the frontends and pools that c shares with tables by copies. They lie together,
// since a change set is dropped as a whole.
func (c *ChangeSet) detach() {
	c.detachFrontends()
	c.detachPools()
}

func (c *ChangeSet) detachFrontends() {
	n := 0
	for _, f := range c.Frontends {
		n += count(f.Old) + count(f.New)
	}
	frontends := make([]Frontend, 0, n)
	own := func(f *Frontend) *Frontend {
		if f == nil {
			return nil
		}
		frontends = append(frontends, *f)
		copied := &frontends[len(frontends)-1]
		copied.Sources = slices.Clone(f.Sources)
		return copied
	}
	for i, f := range c.Frontends {
		c.Frontends[i] = FrontendChange{own(f.Old), own(f.New)}
	}
}

func (c *ChangeSet) detachPools() {
	n, m := 0, 0
	for _, p := range c.Pools {
		n, m = n+count(p.Old)+count(p.New), m+p.Old.len()+p.New.len()
	}
	pools, slots := make([]Pool, 0, n), make([]Slot, 0, m)
	own := func(p *Pool) *Pool {
		if p == nil {
			return nil
		}
		from := len(slots)
		slots = append(slots, p.Slots...)
		pools = append(pools, *p)
		copied := &pools[len(pools)-1]
		copied.Slots = slots[from:len(slots):len(slots)]
		return copied
	}
	for i, p := range c.Pools {
		c.Pools[i] = PoolChange{own(p.Old), own(p.New)}
	}
}

// count returns 1, or 0 if p is nil.
func count[T any](p *T) int {
	if p == nil {
		return 0
	}
	return 1
}

// len returns the number of slots; 0 if p is nil.
func (p *Pool) len() int {
	if p == nil {
		return 0
	}
	return len(p.Slots)
}
