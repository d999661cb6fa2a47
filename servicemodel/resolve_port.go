package servicemodel

import (
	"cmp"
	"net/netip"
	"slices"
)

// This file resolves one service port in one family: it chooses endpoints, decides about frontends,
// and fills pools.

// resolvePort adds the frontends and pools of port p in family f.
func (r *resolver) resolvePort(res *resolution, svc *Service, p *ServicePort, f Family,
	eps []endpoint, nodePort bool) {
	candidates := r.candidates(p, f, eps)
	anyCluster, anyLocal := r.view.choose(candidates, svc)
	d := decider{svc: svc, family: f, view: &r.view, cluster: Reject, local: Reject,
		shifted: p.TargetPort != 0,
		service: PortName{Name: svc.Name, Port: p.Name, Protocol: p.Protocol}}
	if anyCluster {
		d.cluster, d.local = BalanceCluster, Drop
	}
	if anyLocal {
		d.local = BalanceLocal
	}
	d.sources = d.allowed()

	first := len(r.claims)
	claim := func(k Kind, a netip.Addr, port, end uint16) {
		if FamilyOf(a) == f && r.view.answers(a) {
			r.claims = append(r.claims, d.frontend(k, a, port, end))
		}
	}

	for _, a := range svc.ClusterIPs {
		claim(ClusterIP, a, p.Port, p.EndPort)
	}
	for _, lb := range svc.LoadBalancerIPs {
		if !lb.Proxy {
			claim(LoadBalancer, lb.Addr, p.Port, p.EndPort)
		}
	}

	for _, a := range svc.ExternalIPs {
		claim(ExternalIP, a, p.Port, p.EndPort)
	}
	for _, a := range svc.HostIPs {
		claim(HostIP, a, p.Port, p.EndPort)
	}
	if nodePort && p.NodePort != 0 {
		claim(NodePort, unspecified(f), p.NodePort, p.endNodePort())
	}

	// If the port claims a key twice, for example as load balancer IP and as external IP, the claim
	// of the lower kind stays.
	claims := r.claims[first:]
	slices.SortFunc(claims, func(a, b Frontend) int {
		return cmp.Or(a.Key.Compare(b.Key), cmp.Compare(a.Kind, b.Kind))
	})
	claims = slices.CompactFunc(claims, func(a, b Frontend) bool { return a.Key == b.Key })
	r.claims = r.claims[:first+len(claims)]

	for _, local := range [...]bool{false, true} {
		if slices.ContainsFunc(claims, func(c Frontend) bool { return c.balancesOver(local) }) {
			id := PoolID{Service: d.service, Family: f, Local: local}
			p := r.pool(svc, id, candidates)
			p.from, p.to = first, len(r.claims)
			res.pools = append(res.pools, p)
		}
	}
}

// candidate is an endpoint from the view of a service port: at one address and port.
type candidate struct {
	addr           netip.AddrPort
	endpoint       *endpoint
	cluster, local exclusion // from the pool of all endpoints, and from this node's pool
	weight         uint16    // in the cluster's pool; 0 means the endpoint's weight
}

// usability orders endpoints: higher values are preferred.
type usability int

const (
	unusable    usability = iota
	terminating           // still serves; used if no endpoint is ready
	ready
)

func usabilityOf(e *endpoint) usability {
	switch e.Condition {
	case Ready:
		return ready
	case Serving:
		return terminating
	}

	return unusable
}

// candidates returns the endpoints of family f that have a port for p, sorted, each address and
// port once. Of several endpoints with the same address and port, the most usable wins, then an
// endpoint that is not terminating, then the first in the list. The result is valid until the next
// call.
func (r *resolver) candidates(p *ServicePort, f Family, eps []endpoint) []candidate {
	found := slices.Grow(r.found[:0], len(eps))
	for i := range eps {
		e := &eps[i]
		if FamilyOf(e.Addr) != f {
			continue
		}
		if port, ok := r.portOf(e, p); ok {
			found = append(found, candidate{addr: netip.AddrPortFrom(e.Addr, port), endpoint: e})
		}
	}

	slices.SortStableFunc(found, func(a, b candidate) int { return a.addr.Compare(b.addr) })
	r.found = found
	if len(found) < 2 {
		return found
	}
	unique := found[:1]
	for _, c := range found[1:] {
		last := &unique[len(unique)-1]
		switch {
		case last.addr != c.addr:
			unique = append(unique, c)
		case preferred(c.endpoint, last.endpoint):
			*last = c
		}
	}

	return unique
}

// portKey is the common part of a service port and the endpoint port that serves it.
type portKey struct {
	name     string
	protocol Protocol
}

// fewPorts is the number of ports of an endpoint that are compared one by one. More ports get an
// index: otherwise a service with thousands of ports would take time quadratic in their number.
const fewPorts = 16

// portOf returns the port of an endpoint that serves p, or zero if packets keep their ports.
// Endpoints of a service mostly share their lists of ports, and so the index.
func (r *resolver) portOf(e *endpoint, p *ServicePort) (port uint16, ok bool) {
	if len(e.Ports) <= fewPorts {
		for _, q := range e.Ports {
			if q.Protocol == p.Protocol && q.Name == p.Name {
				return p.target(q.Port), true
			}
		}

		return 0, false
	}

	index := r.ports[&e.Ports[0]]
	if index == nil {
		index = make(map[portKey]uint16, len(e.Ports))
		for _, q := range e.Ports {
			index[portKey{q.Name, q.Protocol}] = q.Port
		}
		if r.ports == nil {
			r.ports = map[*EndpointPort]map[portKey]uint16{}
		}
		r.ports[&e.Ports[0]] = index
	}

	port, ok = index[portKey{p.Name, p.Protocol}]
	return p.target(port), ok
}

// preferred reports whether a wins over b for an address that both have. b must precede a in the
// list.
func preferred(a, b *endpoint) bool {
	if c := cmp.Compare(usabilityOf(a), usabilityOf(b)); c != 0 {
		return c > 0
	}
	return b.Condition == Terminating && a.Condition != Terminating
}

// choose decides which candidates this node may use, for traffic to the whole cluster and for
// traffic that must stay on the node, and records the reasons why it excludes the rest. It reports
// whether it chose any candidates of each kind. The two kinds fall back to terminating endpoints
// independently. Topology hints affect only the traffic to the whole cluster, and only ready
// endpoints (KEP-1669, KEP-2433, KEP-3015). If there are no hints, the service's preference applies
// instead.
func (v *view) choose(cs []candidate, svc *Service) (anyCluster, anyLocal bool) {
	best, bestLocal, hinted := unusable, unusable, false
	for i := range cs {
		e := cs[i].endpoint
		u := usabilityOf(e)
		best = max(best, u)
		if v.local(e) {
			bestLocal = max(bestLocal, u)
		}
		hinted = hinted || len(e.ForNodes)+len(e.ForZones) > 0
	}

	hints := noHints
	if hinted {
		hints = v.hintsOf(cs)
	}
	for i := range cs {
		c, e := &cs[i], cs[i].endpoint
		u := usabilityOf(e)
		if u == unusable {
			c.cluster = unready
			if e.Condition == Quiesced {
				c.cluster = takesNoNew
			}
			c.local = c.cluster
			continue
		}

		switch {
		case u != best:
			c.cluster = lastResort
		case u == ready && hints == nodeHints && !slices.Contains(e.ForNodes, v.name):
			c.cluster = hintedAwayNode
		case u == ready && hints == zoneHints && !slices.Contains(e.ForZones, v.zone):
			c.cluster = hintedAwayZone
		}

		switch {
		case !v.local(e):
			c.local = notHere
		case u != bestLocal:
			c.local = lastResort
		}
	}

	if svc.Prefer != "" && best == ready && hints == noHints {
		v.prefer(cs, svc)
	}
	return best != unusable, bestLocal != unusable
}

// decider decides about the frontends of one service port in one family.
type decider struct {
	svc     *Service
	service PortName
	family  Family
	view    *view
	// cluster and local are the verdicts under traffic policy Cluster and Local.
	cluster, local Verdict
	sources        []netip.Prefix // the ranges that may use load balancer IPs
	shifted        bool           // [Frontend.Shifted]
}

// frontend decides about an address and port, or a range of ports that ends with end.
//
// At a cluster IP only the internal policy applies, whatever the origin of a packet. At other
// addresses clients outside the cluster keep their source address under policy Local, and reach
// only local endpoints. Pods and the node itself reach all endpoints, because replies to them
// return to this node anyway.
func (d *decider) frontend(k Kind, a netip.Addr, port, end uint16) Frontend {
	f := Frontend{
		Key:     FrontendKey{Addr: a, Protocol: d.service.Protocol, Port: port, EndPort: end},
		Service: d.service, Kind: k, Internal: d.cluster, External: d.cluster,
		Shifted: d.shifted,
	}
	if affinity := d.svc.SessionAffinity; affinity.ClientIP {
		f.Affinity = cmp.Or(affinity.Timeout, defaultAffinityTimeout)
		f.AffinityBits, f.AffinityService = affinity.bits(d.family), affinity.WholeService
	}

	switch {
	case k == ClusterIP:
		if d.svc.InternalTrafficPolicy == PolicyLocal {
			f.Internal, f.External = d.local, d.local
		}
		if d.view.masqueradeAll {
			f.Masquerade = FromAnywhere
		}
	case d.svc.ExternalTrafficPolicy == PolicyLocal:
		f.External, f.Masquerade = d.local, FromHost
	default:
		f.Masquerade = FromAnywhere
	}

	f.MasqueradePolicy = d.svc.Masquerade.policies()[k]
	f.Masquerade = f.masquerade(d.view)
	f.MasqueradeIP = f.masqueradeIP(d.svc.MasqueradeIPs)
	if k == LoadBalancer {
		f.Sources = d.sources
	}
	if len(d.svc.Clients) > 0 && k != NodePort {
		f.Sources = d.clients(a, f.Sources)
	}
	return f
}

// balancesOver reports whether a verdict of f balances over the local pool, or over the cluster
// pool if local is false.
func (f *Frontend) balancesOver(local bool) bool {
	v := BalanceCluster
	if local {
		v = BalanceLocal
	}
	return f.Internal == v || f.External == v
}

// pool returns a pool with the candidates that were chosen for it.
func (r *resolver) pool(svc *Service, id PoolID, candidates []candidate) sortedPool {
	in := func(c *candidate) bool {
		return !id.Local && c.cluster == included || id.Local && c.local == included
	}
	hairpin := func(c *candidate) bool {
		return c.endpoint.Node == "" || r.view.local(c.endpoint)
	}
	chosen, hairpins := 0, 0
	for i := range candidates {
		if c := &candidates[i]; in(c) {
			chosen++
			if hairpin(c) {
				hairpins++
			}
		}
	}

	slots := make([]Slot, 0, chosen)
	p := sortedPool{hairpins: slices.Grow([]netip.Addr(nil), hairpins)}
	for i := range candidates {
		c := &candidates[i]
		if !in(c) {
			continue
		}
		w := max(c.endpoint.Weight, 1)
		if !id.Local && c.weight > 0 {
			w = c.weight
		}
		slots = append(slots, Slot{Endpoint: c.addr, Weight: w})
		a, last := c.addr.Addr(), len(p.hairpins)-1
		if hairpin(c) && (last < 0 || p.hairpins[last] != a) {
			p.hairpins = append(p.hairpins, a)
		}
	}

	p.pool = &Pool{ID: id, Scheduler: svc.Scheduler, Forwarding: svc.Forwarding, Slots: slots}
	p.pool.reduce(svc)
	if svc.Scheduler.Fed() {
		r.feed(p.pool, candidates)
	}
	return p
}

// reduce divides the weights by their common divisor, because backends that choose at random need
// one element for each unit of weight. With a slow start it multiplies them. Units of a hash keep
// the endpoints' weights.
func (p *Pool) reduce(svc *Service) {
	total, divisor := uint64(0), uint64(0)
	for _, s := range p.Slots {
		total += uint64(s.Weight)
		if divisor != 1 {
			divisor = gcd(divisor, uint64(s.Weight))
		}
	}

	keeps, scale := p.hashes() && total <= maxUnits, 1
	if divisor > 1 && !(keeps && svc.SlowStart > 0) {
		for i := range p.Slots {
			p.Slots[i].Weight /= uint16(divisor)
		}
		if keeps {
			scale = int(divisor)
		}
	}

	if svc.SlowStart > 0 && !(keeps && svc.Prefer != "") {
		stretch(p.Slots, keeps)
	}
	if p.hashes() {
		p.lay(nil, scale)
	}
}
