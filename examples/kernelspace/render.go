package kernelspace

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/kernlb/kernlb/servicemodel"
)

// spec is one load balancer as the model asks for it. It does not depend on the network: endpoints
// are addresses.
type spec struct {
	key       servicemodel.FrontendKey
	frontends []servicemodel.FrontendKey // that need it
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

// render returns the load balancers of a table, by their places.
func (b *Backend) render(t *servicemodel.Table) map[servicemodel.FrontendKey]*spec {
	here := map[netip.Addr]bool{} // endpoints that are, or may be, on this node
	for a := range t.Hairpins() {
		here[a] = true
	}
	healthPorts := map[servicemodel.Name]uint16{}
	for h := range t.HealthChecks() {
		healthPorts[h.Service] = h.Port
	}
	all := map[servicemodel.FrontendKey]*spec{}
	add := func(f *servicemodel.Frontend, s *spec) {
		if s.key.Family() == servicemodel.IPv6 {
			s.flags |= FlagIPv6
		}
		if all[s.key] == nil {
			all[s.key] = s
		}
		all[s.key].frontends = append(all[s.key].frontends, f.Key)
	}

	for f := range t.Frontends() {
		// HNS cannot distinguish clients: cluster IPs are for clients inside, all other addresses
		// for clients outside, as in winkernel (proxier.go, syncProxyRules: hnsEndpoints and
		// hnsLocalEndpoints).
		verdict := f.External
		if f.Kind == servicemodel.ClusterIP {
			verdict = f.Internal
		}
		id, balances := f.Pool(verdict)
		if !balances {
			continue
		}
		p := t.Pool(id)
		add(f, b.balance(f, p, here))
		if !b.cfg.ForwardHealthCheckVIP || f.Kind != servicemodel.LoadBalancer {
			continue
		}
		key := servicemodel.FrontendKey{Addr: f.Key.Addr, Protocol: servicemodel.TCP,
			Port: cmp.Or(healthPorts[f.Service.Name], b.cfg.HealthzPort)}
		if key.Port == 0 || t.Frontend(key) != nil {
			continue
		}

		// Health checks of this address go to the node.
		s := &spec{key: key, gateway: true, port: key.Port}
		if p.Forwarding == servicemodel.ForwardDirect {
			s.portFlags = PortUseMux | PortPreserveDIP
		}
		add(f, s)
	}

	return all
}

// balance returns the load balancer of a frontend over a pool.
func (b *Backend) balance(f *servicemodel.Frontend, p *servicemodel.Pool,
	here map[netip.Addr]bool) *spec {
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
	dsr := b.cfg.EnableDSR
	if !s.vip {
		s.portFlags = PortVIPExternalIP
		dsr = s.local // clients keep their address under external traffic policy Local
	}

	switch {
	case f.Kind == servicemodel.NodePort:
		s.portFlags |= PortLocalRoutedVIP
	case f.Kind == servicemodel.LoadBalancer && p.Forwarding == servicemodel.ForwardDirect:
		s.portFlags |= PortUseMux | PortPreserveDIP
		dsr = true
	}

	if dsr {
		s.flags |= FlagDSR
	}
	return s
}
