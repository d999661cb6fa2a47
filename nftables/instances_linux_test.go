package nftables_test

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/iptables"
	"github.com/kernlb/kernlb/nftables"
	"github.com/kernlb/kernlb/servicemodel"
)

// instance is one of several that share a node. Each has a service at a cluster IP and an external
// address of its own.
type instance struct {
	name    string
	number  int
	all     bool   // everything is masqueraded
	mark    uint32 // 0: the default
	backend dataplane.Backend
}

func (i *instance) address(external bool) netip.Addr {
	if external {
		return netip.MustParseAddr(fmt.Sprintf("203.0.113.%d", i.number))
	}
	return netip.MustParseAddr(fmt.Sprintf("10.96.0.%d", i.number))
}

func (i *instance) state(endpoint netip.Addr) servicemodel.State {
	name := servicemodel.Name{Namespace: "default", Name: "web"}
	return servicemodel.State{}.
		WithNode(servicemodel.Node{
			Name: "n1", MasqueradeAll: i.all, MasqueradeMark: i.mark,
			LocalPods: servicemodel.PodDetector{
				CIDRs: []netip.Prefix{netip.MustParsePrefix(netnstest.ClusterCIDRv4)}},
		}).
		WithService(&servicemodel.Service{
			Name:        name,
			Ports:       []servicemodel.ServicePort{{Protocol: servicemodel.TCP, Port: 80}},
			ClusterIPs:  []netip.Addr{i.address(false)},
			ExternalIPs: []netip.Addr{i.address(true)},
		}).
		WithEndpoints(name, []servicemodel.Endpoint{{Addr: endpoint, Ready: true,
			Ports: []servicemodel.EndpointPort{{Protocol: servicemodel.TCP, Port: 8080}}}})
}

// kubeProxys is what kube-proxy's iptables mode writes for a service with a cluster IP and an
// external IP, with the mark that it has by default.
const kubeProxys = `*nat
:KUBE-SERVICES - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-EXT-A - [0:0]
:KUBE-SVC-A - [0:0]
-A PREROUTING -j KUBE-SERVICES
-A OUTPUT -j KUBE-SERVICES
-A POSTROUTING -j KUBE-POSTROUTING
-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --xor-mark 0x4000
-A KUBE-POSTROUTING -j MASQUERADE --random-fully
-A KUBE-SERVICES -d CLUSTERIP -p tcp --dport 80 -j KUBE-SVC-A
-A KUBE-SERVICES -d EXTERNAL -p tcp --dport 80 -j KUBE-EXT-A
-A KUBE-EXT-A -j KUBE-MARK-MASQ
-A KUBE-EXT-A -j KUBE-SVC-A
-A KUBE-SVC-A ! -s 10.244.0.0/16 -d CLUSTERIP -j KUBE-MARK-MASQ
-A KUBE-SVC-A -p tcp -j DNAT --to-destination ENDPOINT:8080
COMMIT
*filter
:KUBE-FORWARD - [0:0]
-A FORWARD -j KUBE-FORWARD
-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT
COMMIT
`

// Instances with settings of their own, of one backend and of another, and kube-proxy share a node:
// the packets of each meet what its own settings say, in whatever order they came, and an instance
// that goes takes nothing of the others with it.
func TestInstancesSideBySide(t *testing.T) {
	t.Parallel()
	netnstest.Require(t)
	if _, err := exec.LookPath("iptables-nft-restore"); err != nil {
		t.Skip("the program iptables-nft-restore is not installed")
	}
	c, err := netnstest.New(t.Context(), netnstest.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	require.NoError(t, c.Pods[1].Serve(netnstest.TCP, 8080))
	ns, endpoint := c.Node.NS.Fd(), c.Pods[1].IPv4

	l := []*instance{
		{name: "the default mark", number: 1},
		{name: "a mark of its own", number: 2, mark: 1 << 12, all: true},
		{name: "iptables", number: 3},
	}
	l[0].backend, err = nftables.New(&nftables.Config{NetNS: ns, Table: "one"})
	require.NoError(t, err)
	path := fmt.Sprintf("/proc/self/fd/%d", ns)
	l[1].backend, err = nftables.New(&nftables.Config{NetNSPath: path, Table: "two"})
	require.NoError(t, err)
	l[2].backend, err = iptables.New(&iptables.Config{NetNSPath: path, Prefix: "KTHREE"})
	require.NoError(t, err)
	kubeProxy := &instance{name: "kube-proxy", number: 4}
	apply := func(i *instance) {
		_, err := dataplane.New(i.backend, nil).Apply(t.Context(), i.state(endpoint))
		require.NoError(t, err, i.name)
	}
	apply(l[0])
	restore(t, c.Node.NS, strings.NewReplacer("CLUSTERIP", kubeProxy.address(false).String(),
		"EXTERNAL", kubeProxy.address(true).String(), "ENDPOINT", endpoint.String()).Replace(
		kubeProxys))
	apply(l[1])
	apply(l[2])
	for _, i := range append(l, kubeProxy) {
		i.requireFate(t, c)
	}
	for n, i := range l {
		_, err := i.backend.Cleanup(t.Context())
		require.NoError(t, err)
		require.NoError(t, i.backend.Close())
		for _, other := range append(l[n+1:len(l):len(l)], kubeProxy) {
			other.requireFate(t, c)
		}
	}
}

// requireFate requires that a pod and a client outside reach the service of an instance, and
// masqueraded as it says.
func (i *instance) requireFate(t *testing.T, c *netnstest.Cluster) {
	t.Helper()
	for _, from := range []struct {
		host       *netnstest.Host
		external   bool
		masquerade bool
	}{
		{c.Pods[0], false, i.all}, {c.Pods[0], true, true}, {c.Outside[0], true, true},
	} {
		p := netnstest.Probe{From: from.host, Proto: netnstest.TCP,
			To: netip.AddrPortFrom(i.address(from.external), 80)}
		o := p.Send(t.Context())
		require.Equal(t, netnstest.Answered, o.Kind, "%s: %s: %s", i.name, p, o)
		require.Equal(t, from.masquerade, o.Source.Addr() != from.host.IPv4, "%s: %s: %s", i.name,
			p, o)
	}
}

// restore loads rules of iptables in a namespace.
func restore(t *testing.T, ns *netnstest.NS, rules string) {
	t.Helper()
	require.NoError(t, ns.Do(func() error {
		cmd := exec.CommandContext(t.Context(), "iptables-nft-restore", "--noflush")
		cmd.Stdin = strings.NewReader(rules)
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}))
}
