package kubeproxy

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/test/nstest"
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
// The virtual servers of keepalived, at other ports of the node, are not kube-proxy's.
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
	nat, filter, mangle := TableID{"ip", "nat"}, TableID{"ip6", "filter"}, TableID{"ip", "mangle"}
	all, kernlb := owner{}, owner{kernlb: true}
	for _, c := range []ChainID{{nat, "KUBE-SVC-ERIFXISQEP7F7OF4"}, {nat, "KUBE-SERVICES"},
		{filter, "KUBE-EXTERNAL-SERVICES"}, {nat, "KUBE-MARK-MASQ"}} {
		require.True(t, all.owns(c), c)
		require.False(t, kernlb.owns(c), c)
	}

	for _, c := range []ChainID{{mangle, "KUBE-PROXY-CANARY"}, {filter, "KUBE-IPVS-OUT-FILTER"},
		{nat, "KUBE-LOAD-BALANCER"}} {
		require.True(t, all.owns(c), c)
		require.True(t, kernlb.owns(c), c)
	}

	for _, c := range []ChainID{{nat, "KUBE-SVC-erifxisqep7f7of4"},
		{nat, "KUBE-SVC-ERIFXISQEP7F7O"},
		{filter, "KUBE-SVC-ERIFXISQEP7F7OF4"}, {filter, "KUBE-FIREWALL"}, {nat, "KUBE-MARK-DROP"},
		{mangle, "KUBE-IPTABLES-HINT"}, {nat, "KUBE-KUBELET-CANARY"}, {mangle, "KUBE-SERVICES"},
		{TableID{"ip", "raw"}, "KUBE-SERVICES"}, {filter, "KUBE-NWPLCY-AAAAAAAAAAAAAAAA"}} {
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

// recordedFrontends are the frontends in the recorded rules of all versions.
const recordedFrontends = `*4:3001/tcp ns2/svc2:p80 []
*4:3002/tcp ns5/svc5:p80 [10.180.0.3:80]
*4:3003/tcp ns3/svc3:p80 [10.180.0.3:80]
1.2.3.4:80/tcp ns2/svc2:p80 []
5.6.7.8:80/tcp ns5/svc5:p80 [10.180.0.3:80]
172.30.0.41:80/tcp ns1/svc1:p80 [10.180.0.1:80]
172.30.0.42:80/tcp ns2/svc2:p80 [10.180.0.2:80]
172.30.0.43:80/tcp ns3/svc3:p80 [10.180.0.3:80]
172.30.0.44:80/tcp ns4/svc4:p80 [10.180.0.4:80 10.180.0.5:80]
172.30.0.45:80/tcp ns5/svc5:p80 [10.180.0.3:80]
172.30.0.46:80/tcp ns6/svc6:p80 []
192.168.99.22:80/tcp ns2/svc2:p80 []
192.168.99.33:80/tcp ns4/svc4:p80 [10.180.0.4:80 10.180.0.5:80]
`

// frontends returns the frontends of each family as text.
func frontends(t *testing.T, ns *netnstest.NS) (v4, v6 string) {
	t.Helper()
	all := ok(Frontends(t.Context(), &Config{NetNS: ns.NetNS()}))(t)
	for _, f := range all {
		text := &v4
		if f.Key.Addr.Is6() {
			text = &v6
		}
		*text += fmt.Sprintf("%s %s %v\n", f.Key, f.Service, f.Endpoints)
	}

	return v4, v6
}

// Both families of each version are read, with the same result.
func TestFrontendsOfEachVersion(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"iptables-1.28.rules", "iptables-1.30.rules",
		"iptables-1.36.rules", "nftables-1.29.nft", "nftables-1.36.nft"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			ns := nstest.New(t)
			others(t, ns)
			got, got6 := frontends(t, ns)
			require.Empty(t, got+got6)
			load(t, ns, version)
			got, got6 = frontends(t, ns)
			require.Equal(t, recordedFrontends, got)
			require.ElementsMatch(t, strings.Split(frontends6(recordedFrontends), "\n"),
				strings.Split(got6, "\n"))
		})
	}
}

// frontends6 converts text about IPv4 to IPv6.
func frontends6(text string) string {
	text = regexp.MustCompile(`(?m)^[\d.]+:80/`).ReplaceAllStringFunc(text, rules6)
	text = regexp.MustCompile(`[\d.]+:80\b`).ReplaceAllStringFunc(text, rules6)
	return strings.ReplaceAll(text, "*4:", "*6:")
}

func TestLegacyTablesAreNotTakenForNothing(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	nstest.Exec(t, ns, recorded(t, "iptables-1.28.rules"), "iptables-legacy-restore", "--noflush")
	_, err := Frontends(t.Context(), &Config{NetNS: ns.NetNS()})
	require.ErrorIs(t, err, ErrLegacy)
}

// In legacy tables, too, chains of a kubelet before 1.27 are not kube-proxy's.
func TestLegacyTablesOfAnOldKubelet(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	nstest.Exec(t, ns, `*nat
:KUBE-MARK-DROP - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-POSTROUTING - [0:0]
COMMIT
`, "iptables-legacy-restore", "--noflush")
	require.True(t, find(t, ns).Empty())
	require.Empty(t, find(t, ns).Left)
	ok(Frontends(t.Context(), &Config{NetNS: ns.NetNS()}))(t)
	ok(Cleanup(t.Context(), &Config{NetNS: ns.NetNS()}))(t)
}

// A plan that deletes chains of kube-proxy says why KUBE-FIREWALL stays. Without a kube-proxy, the
// chain is the kubelet's alone, and no plan mentions it.
func TestKubeFirewallStays(t *testing.T) {
	t.Parallel()
	const kubelet = "*filter\n:KUBE-FIREWALL - [0:0]\n-A INPUT -j KUBE-FIREWALL\nCOMMIT\n"
	ns := nstest.New(t)
	nstest.Exec(t, ns, kubelet, "iptables-nft-restore", "--noflush")
	require.Empty(t, find(t, ns).Left)
	nstest.Exec(t, ns, "*nat\n:KUBE-SERVICES - [0:0]\nCOMMIT\n", "iptables-nft-restore",
		"--noflush")
	require.Contains(t, find(t, ns).String(),
		"# left: chain ip filter KUBE-FIREWALL: the kubelet makes it, too, ")
}

// Matches of ports that are extensions of x_tables are read, too: SCTP has no other match.
func TestFrontendsOfSCTP(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	nstest.Exec(t, ns, `*nat
:KUBE-SERVICES - [0:0]
:KUBE-SVC-A - [0:0]
:KUBE-SEP-A - [0:0]
-A KUBE-SERVICES -m comment --comment "a/b:c cluster IP" -p sctp -d 10.96.0.1 --dport 80 `+
		`-j KUBE-SVC-A
-A KUBE-SVC-A -m comment --comment "a/b:c -> 10.1.1.1:8080" -j KUBE-SEP-A
-A KUBE-SEP-A -p sctp -j DNAT --to-destination 10.1.1.1:8080
COMMIT
`, "iptables-nft-restore", "--noflush")
	got, _ := frontends(t, ns)
	require.Equal(t, "10.96.0.1:80/sctp a/b:c [10.1.1.1:8080]\n", got)
}
