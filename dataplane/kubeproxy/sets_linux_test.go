package kubeproxy

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/test/nstest"
)

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

	k := ok(open(&Config{NetNS: ns.Fd()}))(t)
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
	_, err := k.nf.SendAll(t.Context(), b)
	require.NoError(t, err, set)
}
