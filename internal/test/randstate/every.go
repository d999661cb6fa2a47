package randstate

import (
	"net/netip"
	"time"

	"github.com/kernlb/kernlb/servicemodel"
)

// rest varies the fields of a service that need [Config.Every].
func (g *Source) rest(svc *servicemodel.Service, i int) {
	if g.chance(0.2) {
		svc.HostIPs = []netip.Addr{pick(g, netip.MustParseAddr("127.0.0.1"), VIPv4(1, i+64),
			VIPv6(1, i+64))}
	}

	if g.chance(0.2) {
		svc.MasqueradeIPs = []netip.Addr{pick(g, netip.IPv4Unspecified(), VIPv4(1, i+64)),
			pick(g, netip.IPv6Unspecified(), VIPv6(1, i+64))}[:1+g.rng.IntN(2)]
	}

	if g.chance(0.1) {
		svc.ClusterIPs = nil
	}
	if g.chance(0.2) {
		svc.Forwarding = pick(g, servicemodel.ForwardDirect, servicemodel.ForwardTunnel)
	}
	if g.chance(0.2) {
		svc.Connections = pick(g, servicemodel.ConnectionPolicy{Mode: servicemodel.CutConnections},
			servicemodel.ConnectionPolicy{Mode: servicemodel.DrainConnections,
				Drain: 30 * time.Second})
	}

	if g.chance(0.4) {
		svc.SlowStart = pick(g, 5*time.Second, 20*time.Second)
	}
	if g.chance(0.2) {
		svc.SilentEndpoints = pick(g, servicemodel.SilentEject, servicemodel.SilentStay)
	}
	if svc.Validate() != nil { // the scheduler does not follow weights
		svc.SlowStart, svc.Forwarding = 0, ""
	}
}

// node returns a node with any settings.
func (g *Source) node() servicemodel.Node {
	p := pick(g, g.c.Places...)
	n := servicemodel.Node{Name: p.Node, Zone: p.Zone,
		OnlyFamily:           pick(g, 0, 0, 0, servicemodel.IPv4, servicemodel.IPv6),
		MasqueradeAll:        g.chance(0.2),
		MasqueradeMark:       pick[uint32](g, 0, 0, 1, 1<<20),
		LocalhostNodePorts:   g.chance(0.3),
		MasqueradeNeighbours: g.chance(0.2),
		NoEndpoints:          pick(g, "", "", "reject", "drop"),
		Forbidden:            pick(g, "", "", "reject", "reset")}
	if g.chance(0.7) {
		n.Addresses = []netip.Addr{netip.MustParseAddr("192.0.2.10"),
			netip.MustParseAddr("2001:db8::10")}
	}

	ranges := func(l ...string) (out []netip.Prefix) {
		for _, s := range l {
			if g.chance(0.5) {
				out = append(out, netip.MustParsePrefix(s))
			}
		}

		return out
	}

	switch g.rng.IntN(4) {
	case 0:
		n.NodePortAddresses.Primary = true
	case 1:
		n.NodePortAddresses.CIDRs = ranges("192.0.2.0/24", "127.0.0.0/8", "2001:db8::/64")
	}

	switch g.rng.IntN(4) {
	case 0:
		n.LocalPods.CIDRs = ranges("10.244.0.0/16", "fd00:10:244::/56")
	case 1:
		n.LocalPods.Bridge = "cni0"
	case 2:
		n.LocalPods.InterfacePrefix = "veth"
	}

	n.ServiceCIDRs = ranges("10.96.0.0/16", "fd00:10:96::/112")
	return n
}
