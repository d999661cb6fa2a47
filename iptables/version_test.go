package iptables

import (
	"maps"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rendering"
	sm "github.com/kernlb/kernlb/servicemodel"
)

func TestVersionsAreNamesOfChains(t *testing.T) {
	t.Parallel()
	n := names{"LONGEST"}
	for _, v := range []uint32{0, 1, 0x1a2b3c4d, 1<<32 - 1} {
		name := n.version(v)
		require.LessOrEqual(t, len(name), maxChainName)
		got, ok := n.parseVersion(name)
		require.True(t, ok)
		require.Equal(t, v, got)
		require.False(t, n.owned(name), "it is not a chain that may be missing or be too many")
	}

	for _, name := range []string{
		"LONGEST-VERSION-", "LONGEST-VERSION-1a2b3c4", "LONGEST-VERSION-1A2B3C4D",
		"KUBE-VERSION-1a2b3c4d",
		"LONGEST-VERSION-1a2b3c4d5", "LONGEST-VERSION-+a2b3c4d", "LONGEST-VERSION-1a2b3c4x",
		"LONGEST",
	} {
		_, ok := n.parseVersion(name)
		require.False(t, ok, name)
	}

	require.NotEqual(t, newVersion(), newVersion(), "one in four thousand million times this fails")
}

// An existing instance has exactly one version. Without an instance there is no version.
func TestVersionsThatDoNotBelong(t *testing.T) {
	t.Parallel()
	l := newLayout(defaultPrefix)
	there := newMemory()
	p := planFor(t, webService())[0]
	there.apply(l, p)
	for _, c := range []struct {
		name     string
		m        *memory
		versions []uint32
		drift    []string
		renewed  bool
	}{
		{"as it should be", there, []uint32{7}, nil, false},
		{"none", there, nil, []string{"chain KUBE-VERSION of table ip nat is missing"}, true},
		{"two", there, []uint32{7, 9},
			[]string{"chain KUBE-VERSION-00000009 of table ip nat does not belong"}, true},
		{"nothing is there", newMemory(), nil, nil, false},
		{
			"nothing but a version", newMemory(), []uint32{1},
			[]string{"chain KUBE-VERSION-00000001 of table ip nat does not belong"}, true,
		},
	} {
		maps.DeleteFunc(c.m.raw.chains, func(id chainID, _ *rawChain) bool {
			return l.isVersion(id)
		})
		var versions []chainID
		for _, v := range c.versions {
			versions = append(versions, nat4.chain(l.names.version(v)))
			c.m.raw.put(versions[len(versions)-1], &rawChain{})
		}

		o, err := l.interpret(c.m.list(), nil)
		require.NoError(t, err)
		require.Equal(t, c.drift, o.text, c.name)
		require.Equal(t, versions, o.kernel.versions, c.name)
		require.Equal(t, c.name == "none", o.kernel.unversioned, c.name)
		p := l.plan(&o.kernel, o.state, changes{})
		require.Equal(t, !c.renewed, p.empty(), c.name)
		if c.renewed {
			require.Equal(t, versions, p.version.gone, c.name)
			require.Equal(t, o.state.present[nft.IPv4], p.version.made, c.name)
		}
	}
}

// The vectors come from kube-proxy's own tests (pkg/proxy/iptables/proxier_test.go of Kubernetes).
func TestNamesAreThoseOfKubeProxy(t *testing.T) {
	t.Parallel()
	n := names{defaultPrefix}
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
	n := names{defaultPrefix}
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
			prefix = defaultPrefix
		}
		require.Equal(t, prefix, got.Prefix)
	}

	var none *Config
	got, err := none.withDefaults()
	require.NoError(t, err)
	require.Equal(t, defaultPrefix, got.Prefix)
}
