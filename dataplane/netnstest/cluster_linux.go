package netnstest

import (
	"context"
	"fmt"
	"net/netip"
)

// forwarding are the settings that make a namespace a router.
var forwarding = [][2]string{
	{"net/ipv4/ip_forward", "1"},
	{"net/ipv6/conf/all/forwarding", "1"},
}

// gateway is the next hop of a namespace, in both families. If its prefixes hold more than one
// address, it is an address of the node; otherwise it exists only as a permanent neighbour.
type gateway [2]netip.Prefix

func newGateway(v4, v6 string) gateway {
	return gateway{netip.MustParsePrefix(v4), netip.MustParsePrefix(v6)}
}

var (
	podGateway      = newGateway("169.254.1.1/32", "fe80::1/128")
	internetGateway = newGateway("192.0.2.1/32", "2001:db8:2::1/128")
	// bridgeGateway is the gateway of pods on a bridge, which has these addresses.
	bridgeGateway = newGateway("10.244.1.254/24", "fd00:10:244:1::fe/64")
)

// everywhere are the destinations of default routes.
var everywhere = newGateway("0.0.0.0/0", "::/0")

// builder builds one cluster. Its steps share the wiring, and so its first error.
type builder struct {
	*wiring
	c    *Cluster
	opts Options
	node *NS
	// internet is the namespace that the node's default route leads to. It has no addresses.
	internet *NS
}

// build creates the network that the package documentation draws.
func (c *Cluster) build(ctx context.Context, opts Options) error {
	b := &builder{wiring: newWiring(), c: c, opts: opts}
	defer b.close()
	b.addNode()
	b.addInternet()
	b.addOutside()
	b.addUnderlay()
	b.addPods()
	b.settle(ctx)
	if b.err == nil {
		b.err = startInternet(b.internet)
	}
	return b.err
}

// namespace adds a namespace to the cluster.
func (b *builder) namespace(name string) *NS {
	failed := &NS{name: name}
	if b.err != nil {
		return failed
	}
	var ns *NS
	if ns, b.err = NewNS(name); b.err != nil {
		return failed
	}
	b.c.namespaces = append(b.c.namespaces, ns)
	return ns
}

// addNode adds the namespace under test, without links.
func (b *builder) addNode() {
	b.node = b.namespace("node")
	for _, s := range forwarding {
		if b.err == nil {
			b.err = b.node.SetSysctl(s[0], s[1])
		}
	}

	b.c.Node = &Host{
		Name: "node", NS: b.node, anySource: true,
		IPv4: netip.MustParseAddr(Net.NodeIPv4), IPv6: netip.MustParseAddr(Net.NodeIPv6),
	}
	for _, s := range []string{
		Net.NodeIPv4, Net.NodeSecondaryIPv4, Net.NodeOutsideIPv4, Net.NodeUnderlayIPv4,
		Net.NodeIPv6, Net.NodeSecondaryIPv6, Net.NodeOutsideIPv6, Net.NodeUnderlayIPv6,
	} {
		b.c.nodeAddrs = append(b.c.nodeAddrs, netip.MustParseAddr(s))
	}
}

// addInternet adds the destination of the node's default route: an interface without addresses
// behind which the internet answers every packet.
func (b *builder) addInternet() {
	near, far := iface{b.node, "eth0"}, iface{b.namespace(Net.Internet), "eth0"}
	b.internet = far.ns
	b.veth(near, far)

	// The secondary IPv6 address is added first, because among equal addresses the kernel prefers
	// the newest as a source.
	for _, prefix := range []string{Net.NodeIPv4 + "/24", Net.NodeSecondaryIPv4 + "/24",
		Net.NodeSecondaryIPv6 + "/64", Net.NodeIPv6 + "/64"} {
		b.addr(near, netip.MustParsePrefix(prefix))
	}

	for i, via := range internetGateway {
		b.neigh(near, via.Addr(), far)
		b.route(near, everywhere[i], via.Addr(), []netip.Addr{b.c.Node.IPv4, b.c.Node.IPv6}[i])
	}
}

// addOutside adds the clients outside the cluster, all in one namespace.
func (b *builder) addOutside() {
	b.c.Outside = hosts("outside", b.opts.OutsideClients, Net.OutsideCIDRv4, Net.OutsideCIDRv6, 11)
	near := iface{b.node, "eth1"}
	b.attach(near, near, "outside", newGateway(Net.NodeOutsideIPv4+"/24",
		Net.NodeOutsideIPv6+"/64"), b.c.Outside...)
}

// addUnderlay adds the other node and its pods, each with its own link, like tunnels.
func (b *builder) addUnderlay() {
	b.c.OtherNode = &Host{Name: "othernode", anySource: true,
		IPv4: netip.MustParseAddr(Net.OtherNodeIPv4), IPv6: netip.MustParseAddr(Net.OtherNodeIPv6)}
	near := iface{b.node, "eth2"}
	b.attach(near, near, "othernode", newGateway(Net.NodeUnderlayIPv4+"/24",
		Net.NodeUnderlayIPv6+"/64"), b.c.OtherNode)
	b.c.RemotePods = hosts("remote", b.opts.RemotePods, Net.RemoteCIDRv4, Net.RemoteCIDRv6, 1)
	for i, h := range b.c.RemotePods {
		near := iface{b.node, fmt.Sprintf("eth%d", i+3)}
		b.attach(near, near, h.Name, podGateway, h)
	}
}

// addPods adds the node's own pods, on a bridge if the options name a bridge.
func (b *builder) addPods() {
	bridge, via := iface{b.node, b.opts.Bridge}, podGateway
	if bridge.name != "" {
		via = bridgeGateway
		b.bridge(bridge)
		for _, own := range via {
			b.addr(bridge, own)
			b.c.nodeAddrs = append(b.c.nodeAddrs, own.Addr())
		}
	}

	b.c.Pods = hosts("pod", b.opts.Pods, Net.NodeCIDRv4, Net.NodeCIDRv6, 1)
	for i, h := range b.c.Pods {
		port := iface{b.node, fmt.Sprintf("%s%d", b.opts.PodInterfacePrefix, i+1)}
		near := port
		if bridge.name != "" {
			near = bridge
		}
		b.attach(port, near, h.Name, via, h)
	}
}

// attach adds a namespace with hosts, and joins it to a port of the node. The node reaches the
// hosts through near: the port, or the bridge that the port joins.
func (b *builder) attach(port, near iface, name string, via gateway, all ...*Host) {
	far := iface{b.namespace(name), "eth0"}
	b.veth(port, far)
	if port != near {
		b.enslave(port, near)
	}
	for i, own := range via {
		if port == near && !own.IsSingleIP() {
			b.addr(near, own)
		}
		b.neigh(far, own.Addr(), near)
		for _, h := range all {
			h.NS, h.NodeInterface = far.ns, near.name
			addr := []netip.Addr{h.IPv4, h.IPv6}[i]
			alone := netip.PrefixFrom(addr, addr.BitLen())
			b.addr(far, alone)
			b.route(near, alone, netip.Addr{}, netip.Addr{})
			b.neigh(near, addr, far)
		}

		b.route(far, everywhere[i], own.Addr(), netip.Addr{})
	}
}

// hosts returns n hosts with a number in the name, and addresses in two ranges from first on.
func hosts(name string, n int, cidr4, cidr6 string, first int) (l []*Host) {
	for i := range n {
		l = append(l, &Host{Name: fmt.Sprint(name, i+1), IPv4: nth(cidr4, first+i),
			IPv6: nth(cidr6, first+i)})
	}

	return l
}

// nth returns the address of a prefix whose last byte is n; n must be less than 256.
func nth(prefix string, n int) netip.Addr {
	b := netip.MustParsePrefix(prefix).Addr().AsSlice()
	b[len(b)-1] = byte(n)
	addr, _ := netip.AddrFromSlice(b)
	return addr
}
