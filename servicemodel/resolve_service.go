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
	neighbours    bool // [Rules.MasqueradeNeighbours], for warnings
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
	v := n.rules().view()
	v.name, v.zone, v.primary, v.masqueradeAll = n.Name, n.Zone, n.primary(), n.MasqueradeAll
	return v
}

// view returns the part of a view that follows from the rules of a table.
func (r Rules) view() view {
	v := view{only: r.OnlyFamily, neighbours: r.MasqueradeNeighbours,
		localhost: r.LocalhostNodePorts && slices.ContainsFunc(r.NodePorts, loopback4.Overlaps)}
	for _, f := range families {
		*v.detectsPods.of(f) = r.LocalPods.detects(f)
	}
	return v
}

// answers reports whether frontends at an address can exist.
func (v *view) answers(a netip.Addr) bool {
	return FamilyOf(a).servedBy(v.only) && (!a.IsLoopback() || v.localhost)
}

// servedBy reports whether a node serves the family: only is its only family, or zero for both.
func (f Family) servedBy(only Family) bool { return only == 0 || only == f }

// local reports whether e runs on this node.
func (v *view) local(e *endpoint) bool { return e.Node != "" && e.Node == v.name }

// resolver resolves services one after the other. It holds the node's view, and buffers.
type resolver struct {
	view   view
	found  []candidate
	claims []Frontend
	addrs  []netip.Addr
	// ports are the indexes of long lists of ports, by their first element.
	ports map[*EndpointPort]map[portKey]uint16
}

// resolution is the meaning of one service on the node, before the winners of its claims are known.
type resolution struct {
	name       Name
	claims     []*Frontend  // sorted by service port and key, each key once
	pools      []sortedPool // the pools of the claims, sorted by identity
	clusterIPs []netip.Addr
	health     *HealthCheck
	warnings   []Warning
}

// sortedPool is a pool with sorted slots: they do not have their previous positions yet.
type sortedPool struct {
	pool     *Pool
	from, to int          // the claims of the resolution that may balance over it
	hairpins []netip.Addr // sorted
}

// resolve computes the meaning of a service. Endpoints without a service have no meaning. old are
// the service's previous claims; the result reuses the claims that stay the same.
func (r *resolver) resolve(n Name, e entry, old []*Frontend) (res resolution) {
	res.name = n
	svc, eps := e.service, e.endpoints
	if svc == nil {
		res.warnings = r.warnings(n, e, nil)
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
	res.claims = old
	if !slices.EqualFunc(old, r.claims, same) {
		res.claims = keepClaims(old, r.claims)
	}
	res.warnings = r.warnings(n, e, res.claims)
	return res
}

// keepClaims returns the claims, and replaces new claims by equal old ones.
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

// exists reports whether s answers in family f on a node that serves only one family, or both if
// only is zero. A service with cluster IPs answers only in their families.
func (s *Service) exists(f, only Family) bool {
	in := func(a netip.Addr) bool { return FamilyOf(a) == f }
	return f.servedBy(only) &&
		(len(s.ClusterIPs) == 0 || slices.ContainsFunc(s.ClusterIPs, in))
}
