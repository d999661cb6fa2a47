package servicemodel_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	sm "github.com/kernlb/kernlb/servicemodel"
)

// source draws random states from few names, addresses and ports, so that collisions of all kinds
// are common.
type source struct{ *rand.Rand }

// newSource returns a source whose seed is printed if the test fails.
func newSource(t testing.TB) source {
	seed := rand.Uint64()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("seed: %#x", seed)
		}
	})

	return source{rand.New(rand.NewPCG(seed, 1))}
}

func (r source) chance(percent int) bool { return r.IntN(100) < percent }

func pick[T any](r source, list ...T) T { return list[r.IntN(len(list))] }

func some[T any](r source, most int, one func() T) []T {
	var list []T
	for range r.IntN(most + 1) {
		list = append(list, one())
	}
	return list
}

func (r source) name() sm.Name {
	return sm.Name{Namespace: pick(r, "a", "b"), Name: fmt.Sprintf("s%d", r.IntN(6))}
}

func (r source) addr(f sm.Family, net, n int) netip.Addr {
	i := byte(1 + r.IntN(n))
	if f == sm.IPv6 {
		return netip.AddrFrom16([16]byte{0xfd, byte(net), 15: i})
	}
	return netip.AddrFrom4([4]byte{10, byte(net), 0, i})
}

func (r source) family() sm.Family { return pick(r, sm.IPv4, sm.IPv4, sm.IPv6) }

func (r source) rangeOf(net, n int) netip.Prefix {
	a := r.addr(r.family(), net, n)
	return netip.PrefixFrom(a, pick(r, 0, 8, a.BitLen()-2, a.BitLen()-1, a.BitLen(), a.BitLen()))
}

func (r source) service(n sm.Name) *sm.Service {
	s := &sm.Service{
		Name: n,
		SessionAffinity: sm.SessionAffinity{ClientIP: r.chance(20),
			Timeout: pick(r, 0, time.Second, time.Hour)},
		InternalTrafficPolicy: pick(r, sm.PolicyCluster, sm.PolicyLocal),
		ExternalTrafficPolicy: pick(r, sm.PolicyCluster, sm.PolicyLocal),
		HealthCheckNodePort:   pick(r, uint16(0), 0, 30099),
		Scheduler: pick(r, sm.SchedulerDefault, sm.SchedulerDefault, sm.Maglev,
			sm.WeightedLC),
		Forwarding: pick(r, sm.ForwardNAT, sm.ForwardNAT, sm.ForwardDirect),
		Prefer:     pick(r, "", "", "node", "zone"),
		SlowStart:  pick(r, 0, 0, time.Minute),
	}
	if s.Forwarding == sm.ForwardNAT {
		s.SilentEndpoints = pick(r, sm.SilentDefault, sm.SilentStay, sm.SilentEject)
	}
	if r.chance(30) {
		policy := func() sm.MasqueradePolicy {
			return pick(r, sm.MasqueradeDefault, sm.MasqueradeAlways,
				sm.MasqueradeNotPods, sm.MasqueradeHost, sm.MasqueradeNever)
		}

		s.Masquerade = sm.Masquerade{ClusterIPs: policy(), LoadBalancerIPs: policy(),
			ExternalIPs: policy(), HostIPs: policy(), NodePorts: policy()}
	}

	s.HostIPs = some(r, 2, func() netip.Addr {
		return pick(r, r.addr(r.family(), 192, 4), ip("127.0.0.1"))
	})

	// External addresses overlap with cluster IPs, and with addresses of other services.
	if r.chance(70) {
		s.ClusterIPs = append(s.ClusterIPs, r.addr(sm.IPv4, 96, 8))
	}
	if r.chance(40) {
		s.ClusterIPs = append(s.ClusterIPs, r.addr(sm.IPv6, 96, 8))
	}
	s.ExternalIPs = some(r, 2, func() netip.Addr { return r.addr(r.family(), 96, 12) })
	s.LoadBalancerIPs = some(r, 2, func() sm.LoadBalancerIP {
		return sm.LoadBalancerIP{Addr: r.addr(r.family(), 96, 12),
			Proxy: pick(r, false, false, true)}
	})
	if r.chance(40) {
		s.LoadBalancerSourceRanges = some(r, 3, func() netip.Prefix {
			return r.rangeOf(pick(r, 1, 64, 192), 8)
		})
	}

	if r.chance(30) {
		some := func() []netip.Prefix {
			return some(r, 3, func() netip.Prefix { return r.rangeOf(pick(r, 1, 64, 192), 8) })
		}
		s.Clients = []sm.ClientRule{{Allow: some(), Deny: some()}, {Deny: prefixes("0.0.0.0/5")}}
		s.Clients[1].Addrs = append(addrs("10.96.0.9"), s.ClusterIPs...)
		if len(s.Clients[0].Allow)+len(s.Clients[0].Deny) == 0 {
			s.Clients = s.Clients[1:]
		}
	}

	for i, name := range []string{"http", "dns", "log"}[:r.IntN(4)] {
		s.Ports = append(s.Ports,
			sm.ServicePort{Name: name, Protocol: pick(r, sm.TCP, sm.UDP, sm.SCTP),
				Port: uint16(80 + i)})
		switch {
		case r.chance(40):
			s.Ports[i].NodePort = uint16(30000 + 3*i + r.IntN(3))
		case r.chance(40): // nested, adjacent, overlapping; equal in other services
			s.Ports[i].Port = pick(r, uint16(1), 78, 79, 80, uint16(80+i), 81)
			s.Ports[i].EndPort = s.Ports[i].Port + uint16(i) + pick(r, uint16(1), 4, 65400)
			if s.Ports[i].EndPort < 1000 {
				s.Ports[i].NodePort = pick(r, 0, 29998, uint16(30000+3*i))
			}
			if s.Ports[i].TargetPort = pick(r, 0, uint16(0), 40); s.Ports[i].EndPort < 1000 {
				s.Ports[i].TargetPort = pick(r, 0, s.Ports[i].Port, 9000)
			}
		}
	}

	r.Shuffle(len(s.Ports), func(i, j int) { s.Ports[i], s.Ports[j] = s.Ports[j], s.Ports[i] })
	return s
}

func (r source) endpoint() sm.Endpoint {
	e := sm.Endpoint{
		Addr: r.addr(r.family(), 64, 12),
		Condition: pick(r, sm.Ready, sm.Ready, sm.Ready, sm.NotReady, sm.Serving, sm.Terminating,
			sm.Quiesced),
		Node: pick(r, "", "n1", "n1", "n2", "n3"), Zone: pick(r, "", "z1", "z2"),
		Weight: pick(r, uint16(0), 0, 1, 4, 5), Share: pick(r, uint16(0), 0, 0, 0, 7, 30),
	}
	for _, name := range []string{"http", "dns", "log"} {
		if r.chance(80) {
			e.Ports = append(e.Ports, sm.EndpointPort{Name: name, Protocol: pick(r, sm.TCP, sm.UDP),
				Port: pick(r, uint16(8000), 8001, 8001, 0)})
		}
	}

	if r.chance(50) {
		e.ForZones = []string{pick(r, "z1", "z2")}
	}
	if r.chance(30) {
		e.ForNodes = []string{pick(r, "n1", "n2"), "n3"}
	}
	return e
}

func (r source) endpoints() []sm.Endpoint { return some(r, 12, r.endpoint) }

func (r source) node() sm.Node {
	n := sm.Node{
		Name: pick(r, "n1", "n1", "n2", ""), Zone: pick(r, "", "z1", "z2"),
		Addresses:      some(r, 3, func() netip.Addr { return r.addr(r.family(), 192, 4) }),
		ServiceCIDRs:   some(r, 2, func() netip.Prefix { return r.rangeOf(96, 16) }),
		MasqueradeAll:  r.chance(20),
		MasqueradeMark: pick(r, uint32(0), 1, 1<<31), LocalhostNodePorts: r.chance(30),
		MasqueradeNeighbours: r.chance(30),
		OnlyFamily:           pick(r, sm.Family(0), 0, sm.IPv4, sm.IPv6),
		NoEndpoints:          pick(r, "", "", "reject", "reset", "drop"),
		Forbidden:            pick(r, "", "", "reject", "reset", "drop"),
	}
	switch r.IntN(4) {
	case 0:
		n.LocalPods.CIDRs = some(r, 2, func() netip.Prefix { return r.rangeOf(64, 12) })
	case 1:
		n.LocalPods.Bridge = "cbr0"
	case 2:
		n.LocalPods.InterfacePrefix = "veth"
	}

	switch r.IntN(3) {
	case 0:
		n.NodePortAddresses.Primary = true
	case 1:
		n.NodePortAddresses.CIDRs = some(r, 2, func() netip.Prefix { return r.rangeOf(192, 4) })
	}

	return n
}

// edit makes a few changes to a state.
func (r source) edit(s sm.State) sm.State {
	for range 1 + r.IntN(3) {
		n := r.name()
		switch k := r.IntN(20); {
		case k == 0:
			s = s.WithNode(r.node())
		case k < 6:
			s = s.WithService(r.service(n))
		case k < 9:
			s = s.WithoutService(n)
		case k < 12:
			s = s.WithEndpoints(n, r.endpoints())
		default:
			s = s.WithEndpoints(n, r.scale(s.Endpoints(n)))
		}

		s = fitted(s, n)
	}

	return s
}

// scale removes, adds or changes an endpoint.
func (r source) scale(eps []sm.Endpoint) []sm.Endpoint {
	if len(eps) == 0 || r.chance(40) {
		return append(eps, r.endpoint())
	}
	i := r.IntN(len(eps))
	if r.chance(50) {
		return append(eps[:i], eps[i+1:]...)
	}
	eps[i] = r.endpoint()
	return eps
}

// fitted clears the ports of the endpoints of ranges that are mapped to other ranges.
func fitted(s sm.State, n sm.Name) sm.State {
	svc, eps := s.Service(n), s.Endpoints(n)
	for k := 0; svc != nil && k < len(svc.Ports); k++ {
		for i := range eps {
			for j := range eps[i].Ports {
				q := &eps[i].Ports[j]
				if p := svc.Ports[k]; p.TargetPort != 0 && q.Name == p.Name &&
					q.Protocol == p.Protocol && q.Port != p.TargetPort {
					q.Port = 0
				}
			}
		}
	}

	return s.WithEndpoints(n, eps)
}

// state returns a state of several services.
func (r source) state() sm.State {
	s := sm.State{}.WithNode(r.node())
	for range r.IntN(12) {
		a, b := r.name(), r.name()
		s = s.WithService(r.service(a)).WithEndpoints(b, r.endpoints())
		s = fitted(fitted(s, a), b)
	}

	return s
}
