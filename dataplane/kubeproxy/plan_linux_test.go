package kubeproxy

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

func server(protocol, addr string) VirtualServer {
	return VirtualServer{protocol, netip.MustParseAddrPort(addr)}
}

func ports(l ...uint16) map[VirtualServer]bool {
	m := map[VirtualServer]bool{}
	for _, p := range l {
		m[VirtualServer{Address: netip.AddrPortFrom(netip.Addr{}, p)}] = true
	}
	return m
}

// A virtual server is kube-proxy's if its sets list it, or if it is at an address of its device.
// Those of keepalived, at other ports of the node, are not.
func TestVirtualServersOfKubeProxy(t *testing.T) {
	t.Parallel()
	of := []VirtualServer{
		server("TCP", "10.96.0.1:443"), server("UDP", "10.96.0.10:53"),
		server("TCP", "192.0.2.10:80"), server("TCP", "192.0.2.10:30080"),
		server("UDP", "192.0.2.10:30053"), server("SCTP", "192.0.2.10:30090"),
		server("TCP", "[2001:db8::10]:30081"),
	}
	foreign := []VirtualServer{
		server("TCP", "192.0.2.10:443"), server("UDP", "192.0.2.10:30080"),
		server("TCP", "192.0.2.99:30080"), server("SCTP", "192.0.2.10:30091"),
		server("TCP", "[2001:db8::10]:30080"), server("UDP", "192.0.2.10:80"),
	}
	v := &virtual{
		servers: append(foreign, of...),
		sets: map[string]map[VirtualServer]bool{
			"KUBE-CLUSTER-IP":          {of[0]: true},
			"KUBE-EXTERNAL-IP":         {of[2]: true},
			"KUBE-NODE-PORT-TCP":       ports(30080),
			"KUBE-NODE-PORT-UDP":       ports(30053),
			"KUBE-NODE-PORT-SCTP-HASH": {of[5]: true},
			"KUBE-6-NODE-PORT-TCP":     ports(30081),
		},
		device: &dummy{kind: "dummy",
			addresses: map[netip.Addr]bool{netip.MustParseAddr("10.96.0.10"): true}},
		local: map[netip.Addr]bool{netip.MustParseAddr("192.0.2.10"): true,
			netip.MustParseAddr("2001:db8::10"): true},
	}
	var p Plan
	p.planVirtual(v)
	require.ElementsMatch(t, of, p.VirtualServers)
	require.Equal(t, "kube-ipvs0", p.Device)
	require.Len(t, p.Sets, 6)
	require.Contains(t, p.String(), "ipvsadm -D -u 10.96.0.10:53\n")
	require.Contains(t, p.String(), "ipvsadm -D -t [2001:db8::10]:30081\n")
	require.Contains(t, p.String(), "ipvsadm -D --sctp-service 192.0.2.10:30090\n")
	require.Contains(t, p.String(), "ip link delete kube-ipvs0\nipset destroy KUBE-6-NODE-PORT-TCP")
}

func TestDevicesThatStay(t *testing.T) {
	t.Parallel()
	for want, d := range map[string]*dummy{
		"it is of the type \"veth\", which kube-proxy does not make": {kind: "veth"},
		"an instance of kernlb's ipvs backend made it":               {kind: "dummy", kernlb: true},
		"it has the address 10.96.0.7, which kube-proxy did not bind": {kind: "dummy",
			foreign: netip.MustParseAddr("10.96.0.7")},
	} {
		var p Plan
		p.planVirtual(&virtual{device: d})
		require.Empty(t, p.Device)
		require.Equal(t, []Left{{Object: "device kube-ipvs0", Reason: want}}, p.Left)
	}
}

func TestNamesOfChains(t *testing.T) {
	t.Parallel()
	nat, filter, mangle := Table{"ip", "nat"}, Table{"ip6", "filter"}, Table{"ip", "mangle"}
	all, kernlb := owner{}, owner{kernlb: true}
	for _, c := range []Chain{{nat, "KUBE-SVC-ERIFXISQEP7F7OF4"}, {nat, "KUBE-SERVICES"},
		{filter, "KUBE-EXTERNAL-SERVICES"}, {nat, "KUBE-MARK-MASQ"}} {
		require.True(t, all.owns(c), c)
		require.False(t, kernlb.owns(c), c)
	}
	for _, c := range []Chain{{mangle, "KUBE-PROXY-CANARY"}, {filter, "KUBE-IPVS-OUT-FILTER"},
		{nat, "KUBE-LOAD-BALANCER"}} {
		require.True(t, all.owns(c), c)
		require.True(t, kernlb.owns(c), c)
	}
	for _, c := range []Chain{{nat, "KUBE-SVC-erifxisqep7f7of4"}, {nat, "KUBE-SVC-ERIFXISQEP7F7O"},
		{filter, "KUBE-SVC-ERIFXISQEP7F7OF4"}, {filter, "KUBE-FIREWALL"}, {nat, "KUBE-MARK-DROP"},
		{mangle, "KUBE-IPTABLES-HINT"}, {nat, "KUBE-KUBELET-CANARY"}, {mangle, "KUBE-SERVICES"},
		{Table{"ip", "raw"}, "KUBE-SERVICES"}, {filter, "KUBE-NWPLCY-AAAAAAAAAAAAAAAA"}} {
		require.False(t, all.owns(c), c)
	}
	names := setNames()
	require.Len(t, names, 34)
	require.Contains(t, names, "KUBE-6-NODE-PORT-LOCAL-SCTP-HAS", "cut off at 31 characters")
}

// legacyEntry is an entry of a legacy table that begins a chain.
func legacyEntry(chain string) []byte {
	e := make([]byte, 112+64)
	binary.NativeEndian.PutUint16(e[88:], 112)
	binary.NativeEndian.PutUint16(e[90:], uint16(len(e)))
	copy(e[112+targetName:], errorTarget)
	copy(e[112+targetLen:], chain)
	return e
}

func TestChainsOfLegacyTables(t *testing.T) {
	t.Parallel()
	f := &legacyFamilies[0]
	chains, err := f.chainsOf(append(legacyEntry("KUBE-SERVICES"), legacyEntry("DOCKER")...))
	require.NoError(t, err)
	require.Equal(t, []string{"KUBE-SERVICES", "DOCKER"}, chains)
	_, err = f.chainsOf(legacyEntry("KUBE-SERVICES")[:100])
	require.Error(t, err)
	_, err = f.chainsOf(make([]byte, 200))
	require.Error(t, err)
}

func FuzzChainsOfLegacyTables(f *testing.F) {
	f.Add(legacyEntry("KUBE-SERVICES"))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, family := range legacyFamilies {
			_, _ = family.chainsOf(data)
		}
	})
}
