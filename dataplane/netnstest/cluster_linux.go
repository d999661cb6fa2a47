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

// Next hops that exist as permanent neighbours only.
var (
	podGateway4      = netip.MustParseAddr("169.254.1.1")
	podGateway6      = netip.MustParseAddr("fe80::1")
	internetGateway4 = netip.MustParseAddr("192.0.2.1")
	internetGateway6 = netip.MustParseAddr("2001:db8:2::1")
)

// The gateway of pods on a bridge is an address of the node.
var (
	bridgeGateway4 = netip.MustParseAddr("10.244.1.254")
	bridgeGateway6 = netip.MustParseAddr("fd00:10:244:1::fe")
)

// Defaults of both families.
var (
	defaultRoute4 = netip.MustParsePrefix("0.0.0.0/0")
	defaultRoute6 = netip.MustParsePrefix("::/0")
)

// builder makes one cluster. Its steps share the wiring and so its first error.
type builder struct {
	*wiring
	c    *Cluster
	opts Options
	node *NS
	// internet is the destination of the node's default route. It has no addresses.
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
	b.c.nodeAddrs = nodeAddrs()
}

// addInternet adds the destination of the node's default route: an interface without addresses
// behind which the internet answers every packet.
func (b *builder) addInternet() {
	near, far := iface{b.node, "eth0"}, iface{b.namespace(Net.Internet), "eth0"}
	b.internet = far.ns
	b.veth(near, far)
	// The secondary IPv6 address is added first, because the kernel prefers the youngest of equal
	// addresses as a source.
	for _, prefix := range []string{Net.NodeIPv4 + "/24", Net.NodeSecondaryIPv4 + "/24",
		Net.NodeSecondaryIPv6 + "/64", Net.NodeIPv6 + "/64"} {
		b.addr(near, netip.MustParsePrefix(prefix))
	}
	b.neigh(near, internetGateway4, far)
	b.neigh(near, internetGateway6, far)
	b.route(near, defaultRoute4, internetGateway4, b.c.Node.IPv4)
	b.route(near, defaultRoute6, internetGateway6, b.c.Node.IPv6)
}

// addOutside adds the clients outside the cluster, all in one namespace.
func (b *builder) addOutside() {
	near, far := iface{b.node, "eth1"}, iface{b.namespace("outside"), "eth0"}
	b.veth(near, far)
	b.addr(near, netip.MustParsePrefix(Net.NodeOutsideIPv4+"/24"))
	b.addr(near, netip.MustParsePrefix(Net.NodeOutsideIPv6+"/64"))
	for i := range b.opts.OutsideClients {
		h := &Host{
			Name: fmt.Sprintf("outside%d", i+1), NS: far.ns, NodeInterface: near.name,
			IPv4: nth(Net.OutsideCIDRv4, 11+i), IPv6: nth(Net.OutsideCIDRv6, 11+i),
		}
		b.c.Outside = append(b.c.Outside, h)
		b.place(near, far, h)
	}
	b.gateway(near, far, netip.MustParseAddr(Net.NodeOutsideIPv4),
		netip.MustParseAddr(Net.NodeOutsideIPv6))
}

// addUnderlay adds the other node and its pods, each with a link of its own, as if there were
// tunnels.
func (b *builder) addUnderlay() {
	near, far := iface{b.node, "eth2"}, iface{b.namespace("othernode"), "eth0"}
	b.c.OtherNode = &Host{
		Name: "othernode", NS: far.ns, NodeInterface: near.name, anySource: true,
		IPv4: netip.MustParseAddr(Net.OtherNodeIPv4), IPv6: netip.MustParseAddr(Net.OtherNodeIPv6),
	}
	b.veth(near, far)
	b.addr(near, netip.MustParsePrefix(Net.NodeUnderlayIPv4+"/24"))
	b.addr(near, netip.MustParsePrefix(Net.NodeUnderlayIPv6+"/64"))
	b.place(near, far, b.c.OtherNode)
	b.gateway(near, far, netip.MustParseAddr(Net.NodeUnderlayIPv4),
		netip.MustParseAddr(Net.NodeUnderlayIPv6))
	for i := range b.opts.RemotePods {
		name := fmt.Sprintf("remote%d", i+1)
		near, far := iface{b.node, fmt.Sprintf("eth%d", i+3)}, iface{b.namespace(name), "eth0"}
		h := &Host{
			Name: name, NS: far.ns, NodeInterface: near.name,
			IPv4: nth(Net.RemoteCIDRv4, i+1), IPv6: nth(Net.RemoteCIDRv6, i+1),
		}
		b.c.RemotePods = append(b.c.RemotePods, h)
		b.veth(near, far)
		b.place(near, far, h)
		b.gateway(near, far, podGateway4, podGateway6)
	}
}

// addPods adds the node's own pods, on a bridge if the options name one.
func (b *builder) addPods() {
	bridge := iface{b.node, b.opts.Bridge}
	if bridge.name != "" {
		b.bridge(bridge)
		b.addr(bridge, netip.PrefixFrom(bridgeGateway4, 24))
		b.addr(bridge, netip.PrefixFrom(bridgeGateway6, 64))
		b.c.nodeAddrs = append(b.c.nodeAddrs, bridgeGateway4, bridgeGateway6)
	}
	for i := range b.opts.Pods {
		name := fmt.Sprintf("pod%d", i+1)
		port, far := iface{b.node, fmt.Sprintf("%s%d", b.opts.PodInterfacePrefix, i+1)},
			iface{b.namespace(name), "eth0"}
		near, gateway4, gateway6 := port, podGateway4, podGateway6
		b.veth(port, far)
		if bridge.name != "" {
			b.enslave(port, bridge)
			near, gateway4, gateway6 = bridge, bridgeGateway4, bridgeGateway6
		}
		h := &Host{
			Name: name, NS: far.ns, NodeInterface: near.name,
			IPv4: nth(Net.NodeCIDRv4, i+1), IPv6: nth(Net.NodeCIDRv6, i+1),
		}
		b.c.Pods = append(b.c.Pods, h)
		b.place(near, far, h)
		b.gateway(near, far, gateway4, gateway6)
	}
}

// place gives a host its addresses on far, and leads the node to them through near.
func (b *builder) place(near, far iface, h *Host) {
	for _, addr := range []netip.Addr{h.IPv4, h.IPv6} {
		own := netip.PrefixFrom(addr, addr.BitLen())
		b.addr(far, own)
		b.route(near, own, netip.Addr{}, netip.Addr{})
		b.neigh(near, addr, far)
	}
}

// gateway leads everything from far through near.
func (b *builder) gateway(near, far iface, gateway4, gateway6 netip.Addr) {
	b.neigh(far, gateway4, near)
	b.neigh(far, gateway6, near)
	b.route(far, defaultRoute4, gateway4, netip.Addr{})
	b.route(far, defaultRoute6, gateway6, netip.Addr{})
}

// nth returns an address of a prefix; n is less than 256.
func nth(prefix string, n int) netip.Addr {
	b := netip.MustParsePrefix(prefix).Addr().AsSlice()
	b[len(b)-1] = byte(n)
	addr, _ := netip.AddrFromSlice(b)
	return addr
}
