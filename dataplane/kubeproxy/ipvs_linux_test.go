package kubeproxy

import (
	"errors"
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/test/nstest"
)

// ipvsMode is a namespace with the objects of the ipvs mode.
type ipvsMode struct {
	t     *testing.T
	ns    *netnstest.NS
	ipvs  *ipvsnl.Client
	links *netlink.Handle
}

// newIPVSMode returns a namespace with the device and the IP sets, or skips the test.
func newIPVSMode(t *testing.T) *ipvsMode {
	t.Helper()
	m := &ipvsMode{t: t, ns: nstest.New(t)}
	var err error
	m.ipvs, err = ipvsnl.Dial(t.Context(), &rawnl.Config{NetNS: m.ns.NetNS()})
	if errors.Is(err, ipvsnl.ErrNotSupported) {
		t.Skip("the kernel has no IPVS")
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.ipvs.Close()) })
	m.links = ok(netlink.NewHandleAt(netns.NsHandle(m.ns.Fd()), unix.NETLINK_ROUTE,
		unix.NETLINK_NETFILTER))(t)
	t.Cleanup(m.links.Close)
	makeSets(t, m.ns)
	attrs := netlink.NewLinkAttrs()
	attrs.Name = device
	require.NoError(t, m.links.LinkAdd(&netlink.Dummy{LinkAttrs: attrs}))
	m.bind(device, "10.96.0.1")
	m.bind("lo", "192.0.2.10")
	return m
}

// bind binds an address as kube-proxy does.
func (m *ipvsMode) bind(link, addr string) {
	m.t.Helper()
	l := ok(m.links.LinkByName(link))(m.t)
	a := &netlink.Addr{IPNet: netlink.NewIPNet(net.ParseIP(addr))}
	require.NoError(m.t, m.links.AddrAdd(l, a))
}

// serve creates a virtual server.
func (m *ipvsMode) serve(k ipvsnl.ServiceKey, flags ipvsnl.ServiceFlags) {
	m.t.Helper()
	s := ipvsnl.Service{ServiceKey: k, Scheduler: "rr", Flags: flags}
	require.NoError(m.t, m.ipvs.Submit(m.t.Context(), ipvsnl.NewService(s)), k)
}

func tcp(addr string) ipvsnl.ServiceKey {
	return ipvsnl.AddressService(ipvsnl.TCP, netip.MustParseAddrPort(addr))
}

// These tests run one after the other: if two requests need the module dummy at once, the kernel
// refuses one request.

// The virtual servers of kube-proxy are deleted, with its device and sets. Virtual servers of
// keepalived and of kernlb stay, even at an address of the node.
func TestKernelVirtualServers(t *testing.T) {
	m := newIPVSMode(t)
	k := ok(open(&Config{NetNS: m.ns.NetNS()}))(t)
	defer k.close()
	addPort(t, k, "KUBE-NODE-PORT-TCP", 30080)
	port, protocol := uint16(80), uint8(unix.IPPROTO_TCP)
	require.NoError(t, m.links.IpsetAdd("KUBE-LOAD-BALANCER", &netlink.IPSetEntry{
		IP: net.ParseIP("203.0.113.1"), Port: &port, Protocol: &protocol}))
	m.serve(tcp("10.96.0.1:443"), 0)
	m.serve(tcp("192.0.2.10:30080"), ipvsnl.FlagPersistent)
	m.serve(tcp("203.0.113.1:80"), 0)
	others := []ipvsnl.ServiceKey{tcp("192.0.2.10:443"), tcp("203.0.113.1:8080"),
		tcp("198.51.100.9:30080"), ipvsnl.MarkService(ipvsnl.FamilyIPv4, 7)}
	for _, k := range others {
		m.serve(k, 0)
	}
	ours := tcp("10.96.0.1:80")
	m.serve(ours, 0x12340000)

	for i, weight := range []uint32{1, 0} { // no new connections for the second
		d := ipvsnl.Destination{Weight: weight, DestinationKey: ipvsnl.DestinationKey{
			Addr: netip.AddrFrom4([4]byte{10, 1, 1, byte(i)}), Port: 8080}}
		require.NoError(t, m.ipvs.Submit(t.Context(),
			ipvsnl.NewDestination(tcp("192.0.2.10:30080"), d)))
	}

	text, _ := frontends(t, m.ns)
	require.Equal(t, "*4:30080/tcp  [10.1.1.0:8080]\n10.96.0.1:443/tcp  []\n"+
		"203.0.113.1:80/tcp  []\n", text)

	plan := find(t, m.ns)
	require.Equal(t, []VirtualServer{server("TCP", "10.96.0.1:443"),
		server("TCP", "192.0.2.10:30080"), server("TCP", "203.0.113.1:80")}, plan.VirtualServers)
	require.Equal(t, device, plan.Device)
	require.Equal(t, setNames(), plan.Sets)
	require.Equal(t, plan, cleanup(t, m.ns))
	require.True(t, cleanup(t, m.ns).Empty())

	services := ok(m.ipvs.Services(t.Context()))(t)
	var left []ipvsnl.ServiceKey
	for _, s := range services {
		left = append(left, s.ServiceKey)
	}
	require.ElementsMatch(t, append(others, ours), left)
	_, err := m.links.LinkByName(device)
	require.ErrorAs(t, err, &netlink.LinkNotFoundError{})
	ok(m.links.IpsetList("others"))(t)
}

// A device stays if kernlb created it or has an address on it.
func TestKernelDeviceOfKernlb(t *testing.T) {
	m := newIPVSMode(t)
	l := ok(m.links.LinkByName(device))(t)
	require.NoError(t, m.links.AddrAdd(l, &netlink.Addr{Scope: unix.RT_SCOPE_HOST,
		IPNet: netlink.NewIPNet(net.ParseIP("10.96.0.7")), Flags: unix.IFA_F_NOPREFIXROUTE}))
	require.Contains(t, find(t, m.ns).String(),
		"# left: device kube-ipvs0: it has the address 10.96.0.7, which kube-proxy did not bind\n")
	require.NoError(t, m.links.LinkSetGroup(l, 0x6b001234))
	require.Contains(t, cleanup(t, m.ns).String(),
		"# left: device kube-ipvs0: an instance of kernlb's ipvs backend made it\n")
	ok(m.links.LinkByName(device))(t)
}

// Sets are read as ipset fills them: addresses of both families, ports, and protocols.
func TestEntriesOfSets(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	makeSets(t, ns)
	h := ok(netlink.NewHandleAt(netns.NsHandle(ns.Fd()), unix.NETLINK_NETFILTER))(t)
	defer h.Close()
	add := func(set, ip string, protocol uint8, port uint16) {
		require.NoError(t, h.IpsetAdd(set, &netlink.IPSetEntry{IP: net.ParseIP(ip), Port: &port,
			Protocol: &protocol}), set)
	}

	add("KUBE-CLUSTER-IP", "10.96.0.1", unix.IPPROTO_TCP, 443)
	add("KUBE-CLUSTER-IP", "10.96.0.10", unix.IPPROTO_UDP, 53)
	add("KUBE-6-LOAD-BALANCER", "2001:db8:113::1", unix.IPPROTO_SCTP, 80)

	k := ok(open(&Config{NetNS: ns.NetNS()}))(t)
	defer k.close()
	addPort(t, k, "KUBE-NODE-PORT-UDP", 30053)
	v := ok(k.readVirtual(t.Context()))(t)
	require.Len(t, v.sets, len(setNames()))
	require.Equal(t, map[VirtualServer]bool{server("TCP", "10.96.0.1:443"): true,
		server("UDP", "10.96.0.10:53"): true}, v.sets["KUBE-CLUSTER-IP"])
	require.Equal(t, map[VirtualServer]bool{server("SCTP", "[2001:db8:113::1]:80"): true},
		v.sets["KUBE-6-LOAD-BALANCER"])
	require.Equal(t, ports(30053), v.sets["KUBE-NODE-PORT-UDP"])
	require.Empty(t, v.sets["KUBE-EXTERNAL-IP"])
}

// addPort adds a port to a set of ports. netlink v1.3.1 cannot, because it sends a protocol, too.
func addPort(t *testing.T, k *kernel, set string, port uint16) {
	t.Helper()
	b := setRequest(nl.IPSET_CMD_ADD, "add to", set)
	data := b.Nest(nl.IPSET_ATTR_DATA)
	b.U16(nl.IPSET_ATTR_PORT|rawnl.AttrNetByteOrder, port)
	b.End(data)
	_, err := k.nf.SendAll(t.Context(), b, nil)
	require.NoError(t, err, set)
}
