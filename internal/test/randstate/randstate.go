// Package randstate generates random service states, for tests that compare kernlb with a model.
// All choices come from the given source of randomness, so a seed reproduces a run.
package randstate

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/kernlb/kernlb/servicemodel"
)

// Place is a possible place of an endpoint: an address of each family, and the node that has it.
type Place struct {
	IPv4, IPv6 netip.Addr
	Node       string // empty: unknown
	Zone       string
}

// Config limits the random states.
type Config struct {
	// Services is the maximum number of services.
	Services int
	// Places are the possible places of endpoints.
	Places []Place
	// EndpointPorts are the ports of endpoints, at every place and for every protocol.
	EndpointPorts []uint16
	// Node is the node of the states.
	Node servicemodel.Node
	// Nodes, if not empty, are nodes that can replace Node in a change.
	Nodes []servicemodel.Node
	// Weights gives endpoints different weights.
	Weights bool
	// Edit, if set, removes features of a service that the tested backend refuses.
	Edit func(*servicemodel.Service)
	// NoAffinity leaves out session affinity.
	NoAffinity bool
	// Every varies every field of services, endpoints and nodes. Some backends refuse some of them.
	Every bool
	// Ranges makes the third port of services a range of ports, which endpoints keep.
	Ranges bool
	// NodeRanges gives some of these ranges the same node ports.
	NodeRanges bool
	// Shifted maps some of these ranges, of up to 1,000 ports or so, to the range of the endpoints
	// that begins one port later or earlier.
	Shifted bool
	// MasqueradeIPs are addresses for [servicemodel.Service.MasqueradeIPs].
	MasqueradeIPs []netip.Addr
	// Schedulers are the schedulers of services. Without any, services leave the choice to the
	// backend.
	Schedulers []servicemodel.Scheduler
}

// Source generates random states.
type Source struct {
	c   Config
	rng *rand.Rand
}

// New returns a source of states.
func New(c Config, rng *rand.Rand) *Source { return &Source{c, rng} }

// With returns a source of the same states that takes its choices from rng.
func (g *Source) With(rng *rand.Rand) *Source { return &Source{g.c, rng} }

// State returns a state with about half of the services.
func (g *Source) State() servicemodel.State {
	s := servicemodel.State{}.WithNode(g.c.Node)
	for i := range g.c.Services {
		if g.chance(0.6) {
			s = g.withService(s, i)
		}
		if g.chance(0.7) {
			s = g.withEndpoints(s, i)
		}
	}

	return s
}

// Change returns s with one random change: most often of one endpoint.
func (g *Source) Change(s servicemodel.State) servicemodel.State {
	i := g.rng.IntN(g.c.Services)
	n := name(i)
	switch r := g.rng.IntN(20); {
	case r < 3:
		return g.withService(s, i)
	case r < 5:
		return s.WithoutService(n)
	case r < 7:
		return g.withEndpoints(s, i)
	case r == 7:
		return s.WithEndpoints(n, nil)
	case r == 8 && g.c.Every:
		return s.WithNode(g.node())
	case r == 8 && len(g.c.Nodes) > 0:
		return s.WithNode(g.c.Nodes[g.rng.IntN(len(g.c.Nodes))])
	}

	eps := s.Endpoints(n)
	switch {
	case len(eps) == 0 || g.chance(0.3):
		eps = append(eps, g.endpoint(i))
	case g.chance(0.4):
		k := g.rng.IntN(len(eps))
		eps = slices.Delete(eps, k, k+1)
	default:
		eps[g.rng.IntN(len(eps))] = g.endpoint(i)
	}

	return s.WithEndpoints(n, unique(eps))
}

// isRange reports whether the k-th port of a service is a range.
func (g *Source) isRange(k int) bool { return g.c.Ranges && k == 2 }

// ForRanges removes from a service with a range of ports the features that nftables lacks at
// ranges.
func ForRanges(svc *servicemodel.Service) {
	for _, p := range svc.Ports {
		if p.EndPort == 0 {
			continue
		}
		a := &svc.SessionAffinity
		if p.NodePort != 0 {
			a.ClientIP, svc.MasqueradeIPs = false, nil
		}
		a.WholeService, a.Bits4, a.Bits6 = false, 0, 0
		name, _, _ := svc.Scheduler.Split()
		if name == servicemodel.SourceHash || name == servicemodel.Maglev {
			svc.Scheduler = servicemodel.WeightedRR
		}
	}
}

func (g *Source) chance(p float64) bool { return g.rng.Float64() < p }

func pick[T any](g *Source, l ...T) T { return l[g.rng.IntN(len(l))] }

func name(i int) servicemodel.Name {
	return servicemodel.Name{Namespace: []string{"default", "kube-system"}[i%2],
		Name: fmt.Sprintf("svc-%d", i)}
}

// VIPv4 and VIPv6 return the addresses of services: a cluster IP for kind 0, a load-balancer IP for
// 1, an external IP for 2. A few external IPs are shared by services, so that they collide.
func VIPv4(kind, i int) netip.Addr {
	return netip.AddrFrom4([...][4]byte{{10, 96, 0, byte(10 + i)}, {203, 0, 113, byte(10 + i)},
		{203, 0, 113, byte(200 + i%5)}}[kind])
}

// VIPv6 is the same for IPv6.
func VIPv6(kind, i int) netip.Addr {
	base := [...]string{"fd00:10:96::", "2001:db8:113::1:", "2001:db8:113::2:"}[kind]
	if kind == 2 {
		i %= 5
	}
	return netip.MustParseAddr(fmt.Sprintf("%s%x", base, 16+i))
}

func (g *Source) addrs(kind, i int) []netip.Addr {
	switch g.rng.IntN(4) {
	case 0:
		return []netip.Addr{VIPv4(kind, i)}
	case 1:
		return []netip.Addr{VIPv6(kind, i)}
	}

	return []netip.Addr{VIPv4(kind, i), VIPv6(kind, i)}
}

var protocols = []servicemodel.Protocol{servicemodel.TCP, servicemodel.UDP, servicemodel.SCTP}

// port returns the k-th port of the i-th service.
func (g *Source) port(i, k int) servicemodel.ServicePort {
	p := servicemodel.ServicePort{Name: fmt.Sprintf("p%d", k), Protocol: pick(g, protocols...),
		Port: uint16(80 + k)}
	if g.chance(0.5) {
		p.NodePort = uint16(30000 + 4*i + k)
	}
	if g.isRange(k) {
		p.Port, p.NodePort = pick[uint16](g, 1, 79, 8000, 8079, 8080), 0
		p.EndPort = pick[uint16](g, 8081, 8083, 9000, 30003, 65535)
		if g.c.NodeRanges && p.EndPort < 32000 && g.chance(0.5) {
			p.NodePort = p.Port
		}
		narrow := p.EndPort-p.Port < 1100
		if g.c.Shifted && narrow && i%2 == 0 && g.chance(0.5) {
			p.TargetPort = p.Port - 1
			if p.EndPort < 65535 && (p.Port == 1 || g.chance(0.5)) {
				p.TargetPort = p.Port + 1
			}
		}
	}

	return p
}

func (g *Source) withService(s servicemodel.State, i int) servicemodel.State {
	svc := &servicemodel.Service{Name: name(i), ClusterIPs: g.addrs(0, i)}
	for k := range 1 + g.rng.IntN(3) {
		svc.Ports = append(svc.Ports, g.port(i, k))
	}

	if g.chance(0.4) {
		for _, a := range g.addrs(1, i) {
			svc.LoadBalancerIPs = append(svc.LoadBalancerIPs, servicemodel.LoadBalancerIP{Addr: a,
				Proxy: g.rng.IntN(8) == 7})
		}

		if g.chance(0.4) {
			svc.LoadBalancerSourceRanges = g.ranges()
		}
	}

	if g.chance(0.3) {
		svc.ExternalIPs = g.addrs(2, i)
	}
	if g.chance(0.2) {
		svc.Clients = g.clients(svc)
	}
	if g.chance(0.3) {
		svc.ExternalTrafficPolicy = servicemodel.PolicyLocal
		svc.HealthCheckNodePort = uint16(32000 + i)
	}

	if g.chance(0.2) {
		svc.InternalTrafficPolicy = servicemodel.PolicyLocal
	}
	if g.chance(0.2) {
		policy := func() servicemodel.MasqueradePolicy {
			return pick(g, servicemodel.MasqueradeDefault, servicemodel.MasqueradeAlways,
				servicemodel.MasqueradeNotPods, servicemodel.MasqueradeHost,
				servicemodel.MasqueradeNever)
		}

		svc.Masquerade = servicemodel.Masquerade{ClusterIPs: policy(), LoadBalancerIPs: policy(),
			ExternalIPs: policy(), HostIPs: policy(), NodePorts: policy()}
	}

	g.masqueradeIPs(svc)
	if !g.c.NoAffinity && g.chance(0.3) {
		svc.SessionAffinity = servicemodel.SessionAffinity{ClientIP: true,
			Timeout: pick(g, 0, 60*time.Second, 600*time.Second),
			Bits4:   pick[uint8](g, 0, 0, 24, 31), Bits6: pick[uint8](g, 0, 0, 64, 127),
			WholeService: g.chance(0.3)}
	}

	if len(g.c.Schedulers) > 0 {
		svc.Scheduler = pick(g, g.c.Schedulers...)
	}
	if g.chance(0.2) {
		svc.Prefer = pick(g, "node", "zone")
		if svc.Validate() != nil { // the scheduler does not follow weights
			svc.Prefer = ""
		}
	}

	if g.c.Every {
		g.rest(svc, i)
	}
	if g.c.Edit != nil {
		g.c.Edit(svc)
	}
	return s.WithService(svc)
}

// masqueradeIPs gives a service at most one of the addresses in each family.
func (g *Source) masqueradeIPs(svc *servicemodel.Service) {
	for _, a := range g.c.MasqueradeIPs {
		if g.chance(0.3) && !slices.ContainsFunc(svc.MasqueradeIPs, func(o netip.Addr) bool {
			return o.Is4() == a.Is4()
		}) {
			svc.MasqueradeIPs = append(svc.MasqueradeIPs, a)
		}
	}
}

// clients returns a rule for all addresses, a rule for one address, or both.
func (g *Source) clients(svc *servicemodel.Service) (l []servicemodel.ClientRule) {
	if g.chance(0.6) {
		l = append(l, servicemodel.ClientRule{Deny: g.ranges()})
	}
	if len(l) == 0 || g.chance(0.3) {
		own := slices.Concat(svc.ClusterIPs, svc.ExternalIPs)
		l = append(l, servicemodel.ClientRule{Allow: g.ranges(),
			Addrs: own[:min(len(own), g.rng.IntN(2))]})
	}
	return l
}

// ranges returns source ranges with some of the addresses that package netnstest uses.
func (g *Source) ranges() []netip.Prefix {
	all := []string{"198.51.100.11/32", "198.51.100.0/24", "10.244.0.0/16", "192.0.2.0/24",
		"203.0.113.0/25", "2001:db8:51::b/128", "2001:db8:51::/64", "fd00:10:244::/56", "::/0"}
	var l []netip.Prefix
	for range 1 + g.rng.IntN(3) {
		p := netip.MustParsePrefix(pick(g, all...))
		if !slices.Contains(l, p) {
			l = append(l, p)
		}
	}

	return l
}

func (g *Source) withEndpoints(s servicemodel.State, i int) servicemodel.State {
	var eps []servicemodel.Endpoint
	for range g.rng.IntN(6) {
		eps = append(eps, g.endpoint(i))
	}
	return s.WithEndpoints(name(i), unique(eps))
}

// unique keeps the first endpoint of each address.
func unique(eps []servicemodel.Endpoint) []servicemodel.Endpoint {
	var l []servicemodel.Endpoint
	for _, e := range eps {
		if !slices.ContainsFunc(l, func(o servicemodel.Endpoint) bool { return o.Addr == e.Addr }) {
			l = append(l, e)
		}
	}

	return l
}

func (g *Source) endpoint(i int) servicemodel.Endpoint {
	p := pick(g, g.c.Places...)
	e := servicemodel.Endpoint{Addr: pick(g, p.IPv4, p.IPv6), Node: p.Node, Zone: p.Zone}
	for k := range 3 {
		for _, proto := range protocols {
			if k == 2 && g.chance(0.2) {
				continue // it lacks this port
			}
			port := g.c.EndpointPorts[(i+k)%len(g.c.EndpointPorts)]
			if g.isRange(k) && i%2 == 0 { // packets keep their ports
				port = 0
			}
			e.Ports = append(e.Ports, servicemodel.EndpointPort{Name: fmt.Sprintf("p%d", k),
				Protocol: proto, Port: port})
		}
	}

	switch g.rng.IntN(8) {
	case 0:
		e.Condition = servicemodel.Serving
	case 1:
		e.Condition = servicemodel.NotReady
	case 2:
		e.Condition = servicemodel.Terminating
	}

	if g.chance(0.1) {
		e.Condition = servicemodel.Quiesced
	}
	if g.chance(0.2) && p.Node != "" {
		e.ForNodes = []string{p.Node}
	}
	if g.chance(0.2) && p.Zone != "" {
		e.ForZones = []string{p.Zone}
	}
	if g.c.Weights {
		e.Weight = uint16(g.rng.IntN(4))
	}
	if g.c.Every && g.chance(0.2) {
		e.Share = uint16(g.rng.IntN(100))
	}
	return e
}
