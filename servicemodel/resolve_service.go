package servicemodel

import (
	"cmp"
	"net/netip"
	"slices"
)

// view is the part of a [Node] that the resolution of a single service depends on. When it changes,
// every service is resolved again.
type view struct {
	name, zone    string
	only          Family
	primary       perFamily[netip.Addr]
	detectsPods   perFamily[bool]
	masqueradeAll bool
	localhost     bool // IPv4 loopback addresses may answer, because node ports may answer there
}

// perFamily holds one value for each family.
type perFamily[T any] struct{ v4, v6 T }

func (p *perFamily[T]) of(f Family) *T {
	if f == IPv6 {
		return &p.v6
	}
	return &p.v4
}

// families in the order in which everything is sorted.
var families = [...]Family{IPv4, IPv6}

func (n *Node) view() view {
	v := view{name: n.Name, zone: n.Zone, only: n.OnlyFamily, primary: n.primary(),
		masqueradeAll: n.MasqueradeAll, localhost: n.LocalhostNodePorts &&
			slices.ContainsFunc(n.nodePorts(), loopback4.Overlaps)}
	for _, f := range families {
		*v.detectsPods.of(f) = n.LocalPods.detects(f)
	}
	return v
}

// servedBy reports whether a node serves the family that serves only one, or both if only is zero.
func (f Family) servedBy(only Family) bool { return only == 0 || only == f }

// local reports whether e runs on this node.
func (v *view) local(e *Endpoint) bool { return e.Node != "" && e.Node == v.name }

// resolver resolves one service after the other. It holds the node's view, and buffers.
type resolver struct {
	view   view
	found  []candidate
	claims []Frontend
	addrs  []netip.Addr
	// ports are the indexes of long lists of ports, by their first element.
	ports map[*EndpointPort]map[portKey]uint16
}

// resolution is the meaning of one service on the node, before it is known which of its claims win.
type resolution struct {
	name       Name
	claims     []*Frontend  // sorted by service port and key, each key once
	pools      []sortedPool // the pools of the claims, sorted by identity
	clusterIPs []netip.Addr
	health     *HealthCheck
}

// sortedPool is a pool with sorted slots: they do not have their previous positions yet.
type sortedPool struct {
	pool     *Pool
	from, to int          // which claims of the resolution may balance over it
	hairpins []netip.Addr // sorted
}

// resolve decides what a service means. Endpoints without a service mean nothing. old are the
// service's previous claims; the result reuses those that stay the same.
func (r *resolver) resolve(n Name, e entry, old []*Frontend) (res resolution) {
	res.name = n
	svc, eps := e.service, e.endpoints
	if svc == nil {
		return res
	}
	r.claims = r.claims[:0]
	clear(r.ports)
	if svc.HealthCheckNodePort != 0 && svc.ExternalTrafficPolicy == PolicyLocal {
		res.health = r.health(svc, eps)
	}
	nodePorts := perFamily[bool]{true, true}
	if len(svc.ClusterIPs) == 0 { // otherwise exists limits them
		nodePorts = nodePortFamilies(svc, eps)
	}
	ports := inOrder(svc.Ports, func(a, b ServicePort) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Protocol, b.Protocol))
	})
	for i := range ports {
		for _, f := range families {
			if svc.exists(f, r.view.only) {
				r.resolvePort(&res, svc, &ports[i], f, eps, *nodePorts.of(f))
			}
		}
	}
	if len(ports) > 0 {
		served := func(a netip.Addr) bool { return FamilyOf(a).servedBy(r.view.only) }
		res.clusterIPs = filter(inOrder(svc.ClusterIPs, netip.Addr.Compare), served)
	}
	same := func(f *Frontend, c Frontend) bool { return f.Equal(&c) }
	if res.claims = old; !slices.EqualFunc(old, r.claims, same) {
		res.claims = keepClaims(old, r.claims)
	}
	return res
}

// resolvePort adds the frontends and pools of port p in family f.
func (r *resolver) resolvePort(res *resolution, svc *Service, p *ServicePort, f Family,
	eps []Endpoint, nodePort bool) {
	candidates := r.candidates(p, f, eps)
	anyCluster, anyLocal := r.view.choose(candidates, svc)
	d := decider{svc: svc, family: f, view: &r.view, cluster: Reject, local: Reject,
		service: PortName{Name: svc.Name, Port: p.Name, Protocol: p.Protocol}}
	if anyCluster {
		d.cluster, d.local = BalanceCluster, Drop
	}
	if anyLocal {
		d.local = BalanceLocal
	}
	if len(svc.LoadBalancerSourceRanges) > 0 && len(svc.LoadBalancerIPs) > 0 {
		d.sources = d.allowed()
	}

	first := len(r.claims)
	claim := func(k Kind, a netip.Addr, port uint16) {
		if FamilyOf(a) == f && (!a.IsLoopback() || r.view.localhost) {
			r.claims = append(r.claims, d.frontend(k, a, port))
		}
	}
	for _, a := range svc.ClusterIPs {
		claim(ClusterIP, a, p.Port)
	}
	for _, lb := range svc.LoadBalancerIPs {
		if !lb.Proxy {
			claim(LoadBalancer, lb.Addr, p.Port)
		}
	}
	for _, a := range svc.ExternalIPs {
		claim(ExternalIP, a, p.Port)
	}
	for _, a := range svc.HostIPs {
		claim(HostIP, a, p.Port)
	}
	if nodePort && p.NodePort != 0 {
		claim(NodePort, unspecified(f), p.NodePort)
	}

	// If the port claims a key twice, for example as load balancer IP and as external IP, the lower
	// kind stays.
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

// keepClaims returns the claims with equal old ones in place of new ones.
func keepClaims(old []*Frontend, claims []Frontend) []*Frontend {
	list := make([]*Frontend, 0, len(claims))
	var fresh []Frontend // in one array
	for i := range claims {
		f := &claims[i]
		if j, found := slices.BinarySearchFunc(old, f, compareClaims); found && old[j].Equal(f) {
			list = append(list, old[j])
			continue
		}
		if fresh == nil {
			fresh = make([]Frontend, 0, len(claims)-i)
		}
		fresh = append(fresh, *f)
		list = append(list, &fresh[len(fresh)-1])
	}
	return list
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

// pool returns a pool with the candidates that are chosen for it. The weights have no common
// divisor, because backends that choose at random need one element for each unit of weight.
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
	slots, divisor := make([]Slot, 0, chosen), uint16(0)
	p := sortedPool{}
	if hairpins > 0 {
		p.hairpins = make([]netip.Addr, 0, hairpins)
	}
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
		if divisor != 1 {
			divisor = uint16(gcd(uint64(divisor), uint64(w)))
		}
		a, last := c.addr.Addr(), len(p.hairpins)-1
		if hairpin(c) && (last < 0 || p.hairpins[last] != a) {
			p.hairpins = append(p.hairpins, a)
		}
	}
	if divisor > 1 {
		for i := range slots {
			slots[i].Weight /= divisor
		}
	}
	if svc.SlowStart > 0 {
		stretch(slots)
	}
	p.pool = &Pool{ID: id, Scheduler: svc.Scheduler, Forwarding: svc.Forwarding, Slots: slots}
	return p
}

// exists reports whether s answers in family f on a node that serves only one family, or both if
// only is zero. A service with cluster IPs answers only in their families.
func (s *Service) exists(f, only Family) bool {
	in := func(a netip.Addr) bool { return FamilyOf(a) == f }
	return f.servedBy(only) &&
		(len(s.ClusterIPs) == 0 || slices.ContainsFunc(s.ClusterIPs, in))
}

// decider decides about the frontends of one service port in one family.
type decider struct {
	svc     *Service
	service PortName
	family  Family
	view    *view
	// cluster and local are the verdicts under traffic policy Cluster and Local.
	cluster, local Verdict
	sources        []netip.Prefix // that may use load balancer IPs
}

// frontend decides about an address and port.
//
// At a cluster IP only the internal policy counts, wherever a packet comes from. At other addresses
// clients outside the cluster keep their source address under policy Local, and reach local
// endpoints only. Pods and the node itself reach all endpoints, because replies to them come back
// to this node anyway.
func (d *decider) frontend(k Kind, a netip.Addr, port uint16) Frontend {
	f := Frontend{
		Key:     FrontendKey{Addr: a, Protocol: d.service.Protocol, Port: port},
		Service: d.service, Kind: k, Internal: d.cluster, External: d.cluster,
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
		switch {
		case d.view.masqueradeAll:
			f.Masquerade = FromAnywhere
		case *d.view.detectsPods.of(d.family):
			f.Masquerade = FromHost | FromOutside
		}
	case d.svc.ExternalTrafficPolicy == PolicyLocal:
		f.External, f.Masquerade = d.local, FromHost
	default:
		f.Masquerade = FromAnywhere
	}
	if d.svc.Masquerade != (Masquerade{}) {
		f.Masquerade = d.svc.Masquerade.origins(k, f.Masquerade)
	}
	if d.view.localhost && (a.IsLoopback() || k == NodePort && d.family == IPv4) {
		f.Masquerade |= FromHost // no endpoint could answer to a loopback address
	}
	if k == LoadBalancer {
		f.Sources = d.sources
	}
	return f
}
