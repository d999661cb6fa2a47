package servicemodel

import (
	"cmp"
	"net/netip"
	"slices"
	"time"
)

// resolver resolves one service after the other. It holds the view and space to work in.
type resolver struct {
	view   view
	found  []candidate
	claims []Frontend
	addrs  []netip.Addr
}

// resolution is what one service means on the node, before it is known which of its claims win.
type resolution struct {
	claims     []*Frontend // sorted by service port and key, each key once
	pools      []poolDraft // those that claims balance over, sorted by identity
	clusterIPs []netip.Addr
	health     *HealthCheck
}

// poolDraft is a pool whose slots are sorted rather than where they were before.
type poolDraft struct {
	pool     *Pool
	hairpins []netip.Addr // sorted
}

// resolve decides what the service means; nil means nothing. old are the claims it had; those that
// stay the same are used again.
func (r *resolver) resolve(svc *Service, eps []Endpoint, old []*Frontend) resolution {
	if svc == nil {
		return resolution{}
	}
	r.claims = r.claims[:0]
	res := resolution{health: r.health(svc, eps)}
	nodePorts := nodePortFamilies(svc, eps)
	ports := sortedPorts(svc.Ports)
	for i := range ports {
		for _, f := range families {
			if svc.exists(f) {
				r.resolvePort(&res, svc, &ports[i], f, eps, *nodePorts.of(f))
			}
		}
	}
	if len(ports) > 0 {
		res.clusterIPs = sortedAddrs(svc.ClusterIPs)
	}
	res.claims = keepClaims(old, r.claims)
	return res
}

// resolvePort adds what port p means in family f.
func (r *resolver) resolvePort(res *resolution, svc *Service, p *ServicePort, f Family,
	eps []Endpoint, nodePort bool) {
	candidates := r.candidates(p, f, eps)
	anyCluster, anyLocal := r.view.choose(candidates)
	cluster, local := Reject, Reject
	if anyCluster {
		cluster, local = BalanceCluster, Drop
	}
	if anyLocal {
		local = BalanceLocal
	}
	d := decider{
		svc: svc, port: p, family: f, view: &r.view, name: PortName{Name: svc.Name, Port: p.Name,
			Protocol: p.Protocol},
		cluster: cluster, local: local, affinity: svc.SessionAffinity.duration(),
	}
	first := len(r.claims)
	r.claims = d.claims(r.claims, nodePort)
	r.claims = append(r.claims[:first], sortClaims(r.claims[first:])...)

	var balances [2]bool
	for i := first; i < len(r.claims); i++ {
		c := &r.claims[i]
		balances[ScopeCluster] = balances[ScopeCluster] || c.balancesOver(ScopeCluster)
		balances[ScopeLocal] = balances[ScopeLocal] || c.balancesOver(ScopeLocal)
	}
	for _, scope := range [...]Scope{ScopeCluster, ScopeLocal} {
		if balances[scope] {
			id := PoolID{Service: d.name, Family: f, Scope: scope}
			res.pools = append(res.pools, r.draft(svc, id, candidates))
		}
	}
}

// keepClaims returns the claims as the table holds them: where an old one is equal, that one, and
// if all are, the old list.
func keepClaims(old []*Frontend, claims []Frontend) []*Frontend {
	if len(claims) == 0 {
		return nil
	}
	if len(old) == 0 {
		own := slices.Clone(claims)
		list := make([]*Frontend, len(own))
		for i := range own {
			list[i] = &own[i]
		}
		return list
	}
	list := make([]*Frontend, 0, len(claims))
	for i := range claims {
		f := &claims[i]
		j, found := slices.BinarySearchFunc(old, f, compareClaims)
		if found && old[j].Equal(f) {
			list = append(list, old[j])
			continue
		}
		own := *f
		list = append(list, &own)
	}
	if slices.Equal(list, old) {
		return old
	}
	return list
}

// balancesOver reports whether a verdict of f is to balance over the pool of scope s.
func (f *Frontend) balancesOver(s Scope) bool {
	v := BalanceCluster
	if s == ScopeLocal {
		v = BalanceLocal
	}
	return f.Internal == v || f.External == v
}

// draft makes the pool of the candidates chosen for a scope.
func (r *resolver) draft(svc *Service, id PoolID, candidates []candidate) poolDraft {
	chosen, hairpins := 0, 0
	count := func(c *candidate) (in, hairpin bool) {
		in = c.cluster && id.Scope == ScopeCluster || c.local && id.Scope == ScopeLocal
		return in, in && (c.endpoint.Node == "" || r.view.local(c.endpoint))
	}
	for i := range candidates {
		in, hairpin := count(&candidates[i])
		if in {
			chosen++
		}
		if hairpin {
			hairpins++
		}
	}
	d := poolDraft{pool: &Pool{ID: id, Scheduler: svc.Scheduler, Forwarding: svc.Forwarding,
		Slots: make([]Slot, 0, chosen)}}
	if hairpins > 0 {
		d.hairpins = make([]netip.Addr, 0, hairpins)
	}
	for i := range candidates {
		c := &candidates[i]
		in, hairpin := count(c)
		if in {
			d.pool.Slots = append(d.pool.Slots,
				Slot{Endpoint: c.addr, Weight: max(c.endpoint.Weight, 1)})
		}
		if hairpin && (len(d.hairpins) == 0 || d.hairpins[len(d.hairpins)-1] != c.addr.Addr()) {
			d.hairpins = append(d.hairpins, c.addr.Addr())
		}
	}
	reduceWeights(d.pool.Slots)
	return d
}

// reduceWeights divides the weights by their greatest common divisor: backends that draw lots need
// one for each unit of weight.
func reduceWeights(slots []Slot) {
	divisor := uint16(0)
	for i := range slots {
		for a := slots[i].Weight; a != 0; {
			divisor, a = a, divisor%a
		}
		if divisor == 1 {
			return
		}
	}
	for i := range slots {
		slots[i].Weight /= divisor
	}
}

// health returns what the health check node port of svc answers in each family: how many addresses
// on this node are ready, over all ports. Nil if it does not ask.
func (r *resolver) health(svc *Service, eps []Endpoint) *HealthCheck {
	if svc.HealthCheckNodePort == 0 || svc.ExternalTrafficPolicy != PolicyLocal {
		return nil
	}
	addrs := r.addrs[:0]
	for i := range eps {
		if e := &eps[i]; usabilityOf(e) == ready && r.view.local(e) && svc.servedBy(e) {
			addrs = append(addrs, e.Addr)
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	r.addrs = addrs
	h := &HealthCheck{Service: svc.Name, Port: svc.HealthCheckNodePort}
	for _, a := range slices.Compact(addrs) {
		if FamilyOf(a) == IPv4 {
			h.IPv4++
		} else {
			h.IPv6++
		}
	}
	if !svc.exists(IPv4) {
		h.IPv4 = NotServed
	}
	if !svc.exists(IPv6) {
		h.IPv6 = NotServed
	}
	return h
}

// servedBy reports whether e has a port for any port of s.
func (s *Service) servedBy(e *Endpoint) bool {
	for i := range s.Ports {
		for j := range e.Ports {
			if s.Ports[i].Name == e.Ports[j].Name && s.Ports[i].Protocol == e.Ports[j].Protocol {
				return true
			}
		}
	}
	return false
}

// exists reports whether s answers in family f at all: with cluster IPs, only in their families.
func (s *Service) exists(f Family) bool {
	return len(s.ClusterIPs) == 0 || slices.ContainsFunc(s.ClusterIPs, func(a netip.Addr) bool {
		return FamilyOf(a) == f
	})
}

// nodePortFamilies returns the families in which the node ports of svc answer: those of its cluster
// IPs. Without cluster IPs they are those of its other addresses and of its endpoints; if it has
// none of these either, both.
func nodePortFamilies(svc *Service, eps []Endpoint) perFamily[bool] {
	var in perFamily[bool]
	if len(svc.ClusterIPs) > 0 {
		return perFamily[bool]{true, true} // limited by exists
	}
	for _, a := range svc.ExternalIPs {
		*in.of(FamilyOf(a)) = true
	}
	for _, a := range svc.HostIPs {
		*in.of(FamilyOf(a)) = true
	}
	for _, a := range svc.LoadBalancerIPs {
		*in.of(FamilyOf(a.Addr)) = true
	}
	for i := range eps {
		*in.of(FamilyOf(eps[i].Addr)) = true
	}
	if in == (perFamily[bool]{}) {
		return perFamily[bool]{true, true}
	}
	return in
}

// duration returns how long a client is remembered; zero if it is not.
func (a SessionAffinity) duration() time.Duration {
	switch {
	case !a.ClientIP:
		return 0
	case a.Timeout == 0:
		return DefaultAffinityTimeout
	}
	return a.Timeout
}

func sortedPorts(ports []ServicePort) []ServicePort {
	order := func(a, b ServicePort) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Protocol, b.Protocol))
	}
	if !slices.IsSortedFunc(ports, order) {
		ports = slices.SortedFunc(slices.Values(ports), order)
	}
	return ports
}

func sortedAddrs(addrs []netip.Addr) []netip.Addr {
	if !slices.IsSortedFunc(addrs, netip.Addr.Compare) {
		addrs = slices.SortedFunc(slices.Values(addrs), netip.Addr.Compare)
	}
	return addrs
}
