package kernelspace

import (
	"net/netip"
	"slices"

	"github.com/kernlb/kernlb/servicemodel"
)

// spec is one load balancer as the model asks for it. It does not depend on the network: endpoints
// are addresses.
type spec struct {
	key       servicemodel.FrontendKey
	endpoints []target
	local     bool // only endpoints that HNS has on this node
	gateway   bool // the only endpoint is the root endpoint of the node, for health checks
	vip       bool // a cluster IP, which is an endpoint of its own on overlay networks
	port      uint16
	dist      uint32
	portFlags uint32
	flags     uint32
}

// target is an endpoint of a load balancer.
type target struct {
	addr netip.Addr
	here bool // the model says that it is, or may be, on this node
}

// renderer translates frontends. It holds the settings on which the translation depends.
type renderer struct {
	dsr         bool   // [Config.EnableDSR]
	forward     bool   // [Config.ForwardHealthCheckVIP]
	healthzPort uint16 // [Config.HealthzPort]
}

// verdict returns the verdict that a load balancer can express. HNS cannot tell clients apart:
// cluster IPs are for clients inside, all other addresses for clients outside, as in winkernel
// (proxier.go, syncProxyRules: hnsEndpoints and hnsLocalEndpoints).
func verdict(f *servicemodel.Frontend) servicemodel.Verdict {
	if f.Kind == servicemodel.ClusterIP {
		return f.Internal
	}
	return f.External
}

// pool returns the pool that f balances over on HNS, nil if it balances over none.
func pool(t *servicemodel.Table, f *servicemodel.Frontend) *servicemodel.Pool {
	id, ok := f.Pool(verdict(f))
	if !ok {
		return nil
	}
	return t.Pool(id)
}

// render returns the load balancer of a frontend, nil if it has none. here has the addresses of
// endpoints that are, or may be, on this node.
func (r *renderer) render(t *servicemodel.Table, f *servicemodel.Frontend,
	here map[netip.Addr]bool) *spec {
	p := pool(t, f)
	if p == nil {
		return nil
	}
	s := &spec{key: f.Key, local: p.ID.Local, vip: f.Kind == servicemodel.ClusterIP,
		port: p.Slots[0].Endpoint.Port()}
	for _, slot := range p.Slots {
		a := slot.Endpoint.Addr()
		s.endpoints = append(s.endpoints, target{a, s.local || here[a]})
	}
	slices.SortFunc(s.endpoints, func(a, b target) int { return a.addr.Compare(b.addr) })
	if f.Affinity > 0 || p.Scheduler == servicemodel.SourceHash {
		s.dist = DistributeSourceIP
	}
	s.flags = family(f.Key)
	dsr := r.dsr
	if f.Kind != servicemodel.ClusterIP {
		s.portFlags = PortVIPExternalIP
		dsr = s.local // clients keep their address under external traffic policy Local
	}
	switch f.Kind {
	case servicemodel.NodePort:
		s.portFlags |= PortLocalRoutedVIP
	case servicemodel.LoadBalancer:
		if p.Forwarding == servicemodel.ForwardDirect {
			s.portFlags |= PortUseMux | PortPreserveDIP
			dsr = true
		}
	}
	if dsr {
		s.flags |= FlagDSR
	}
	return s
}

// health returns the load balancer that brings the health checks of a load balancer's address to
// the node, nil if there is none. port is the health check node port, or 0.
func (r *renderer) health(t *servicemodel.Table, f *servicemodel.Frontend, port uint16) *spec {
	p := pool(t, f)
	if !r.forward || f.Kind != servicemodel.LoadBalancer || p == nil {
		return nil
	}
	if port == 0 {
		port = r.healthzPort
	}
	key := servicemodel.FrontendKey{Addr: f.Key.Addr, Protocol: servicemodel.TCP, Port: port}
	if port == 0 || t.Frontend(key) != nil {
		return nil
	}
	s := &spec{key: key, gateway: true, port: port, flags: family(key)}
	if p.Forwarding == servicemodel.ForwardDirect {
		s.portFlags = PortUseMux | PortPreserveDIP
	}
	return s
}

// family returns the flag of a key's family.
func family(k servicemodel.FrontendKey) uint32 {
	if k.Family() == servicemodel.IPv6 {
		return FlagIPv6
	}
	return 0
}
