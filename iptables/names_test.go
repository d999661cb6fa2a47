package iptables

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/rendering"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// The vectors are those of kube-proxy's own tests (pkg/proxy/iptables/proxier_test.go of
// Kubernetes).
func TestNamesAreThoseOfKubeProxy(t *testing.T) {
	t.Parallel()
	n := names{DefaultPrefix}
	for name, want := range map[string]string{
		"ns1/svc1": "XPGD46QRK7WJZT7O", "ns2/svc2": "GNZBNJ2PO5MGZ6GT",
		"ns3/svc3": "X27LE4BHSL4DOUIK",
		"ns4/svc4": "4SW47YFZTEDKD3PK", "ns5/svc5": "NUKIZ6OKUXPJNT4C",
	} {
		p := ok(rendering.ParsePortName(name+":p80", sm.TCP))(t)
		require.Equal(t, "KUBE-SVC-"+want, n.service(kindCluster, p, ""))
		require.Equal(t, "KUBE-EXT-"+want, n.service(kindEntry, p, ""))
	}
	p := ok(rendering.ParsePortName("ns1/svc1:p80", sm.TCP))(t)
	require.Equal(t, "KUBE-SEP-SXIVWICOYRO3J4NJ",
		n.affinityList(p, netip.MustParseAddrPort("10.180.0.1:80"), affinity{}))
}

func TestWhichChainsAreOurs(t *testing.T) {
	t.Parallel()
	n := names{DefaultPrefix}
	for chain, want := range map[string]bool{
		"KUBE-SERVICES": true, "KUBE-SVC-XPGD46QRK7WJZT7O": true, "KUBE-SEP-SXIVWICOYRO3J4NJ": true,
		"KUBE-EXTERNAL-SERVICES": true,
		"KUBE-IP-10.96.0.0/20":   true, "KUBE-NP-tcp-30720-30783": true, "KUBE-SETTINGS": true,
		"KUBE-FIREWALL": false, "KUBE-PROXY-CANARY": false, "KUBE-KUBELET-CANARY": false,
		"KUBE-MARK-DROP": false, "KUBE-SVC-web": false,
		"KUBE-NWPLCY-XPGD46QRK7WJZT7O": false, "KUBE-POD-FW-XPGD46QRK7WJZT7O": false,
		"KUBE-ROUTER-INPUT": false, "KUBE-IPVS-FILTER": false,
		"PREROUTING": false, "KUBE-": false, "KUBE": false, "OTHER-SERVICES": false,
		"KUBE-IP-": false,
	} {
		require.Equal(t, want, n.owned(chain), chain)
	}
	require.False(t, names{"KUB"}.owned("KUBE-SERVICES"))
}

func TestStepNamesFit(t *testing.T) {
	t.Parallel()
	n := names{"LONGEST"}
	require.Equal(t, "LONGEST-IP-10.96.0.0/20", n.step(stepService, "10.96.0.0/20"))
	require.Equal(t, "LONGEST-IP-fd00.10..a0/120", n.step(stepService, "fd00:10::a0/120"))
	long := n.step(stepService, "fd00:10:96:1234:5678:9abc:def0:1200/120")
	require.Equal(t, "LONGEST-IP-", long[:11])
	require.Len(t, long, 27)
	require.LessOrEqual(t, len(n.service(kindCluster, sm.PortName{}, "")), maxChainName)
	for _, name := range []string{n.sourceRanges(), n.masqOffPod(), n.clusterIPs(),
		n.postrouting()} {
		require.LessOrEqual(t, len(name), maxChainName)
		require.True(t, n.owned(name))
	}
}

func TestPrefixes(t *testing.T) {
	t.Parallel()
	for prefix, ok := range map[string]bool{
		"": true, "KUBE": true, "A": true, "A1_B": true, "LONGEST": true,
		"TOOLONGX": false, "kube": false, "1A": false, "A-B": false, "A B": false,
	} {
		got, err := (&Config{Prefix: prefix}).withDefaults()
		if !ok {
			require.ErrorContains(t, err, "prefix", prefix)
			_, err = openBackend(&Config{Prefix: prefix})
			require.ErrorContains(t, err, "prefix", prefix)
			continue
		}
		require.NoError(t, err, prefix)
		if prefix == "" {
			prefix = DefaultPrefix
		}
		require.Equal(t, prefix, got.Prefix)
	}
	var none *Config
	got, err := none.withDefaults()
	require.NoError(t, err)
	require.Equal(t, DefaultPrefix, got.Prefix)
}
