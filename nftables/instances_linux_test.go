package nftables_test

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/test/nstest"
	"github.com/kernlb/kernlb/iptables"
	"github.com/kernlb/kernlb/nftables"
	"github.com/kernlb/kernlb/servicemodel"
)

// instance is one of several instances that share a node. Each has a service with its own cluster
// IP and external address.
type instance struct {
	name    string
	number  int
	all     bool   // everything is masqueraded
	mark    uint32 // 0: the default
	backend backends.Backend
	mute    []string // a command that stops the instance from masquerading
	muted   bool
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
				CIDRs: []netip.Prefix{netip.MustParsePrefix(netnstest.Net.ClusterCIDRv4)}},
		}).
		WithService(&servicemodel.Service{
			Name:        name,
			Ports:       []servicemodel.ServicePort{{Protocol: servicemodel.TCP, Port: 80}},
			ClusterIPs:  []netip.Addr{i.address(false)},
			ExternalIPs: []netip.Addr{i.address(true)},
		}).
		WithEndpoints(name, []servicemodel.Endpoint{{Addr: endpoint,
			Ports: []servicemodel.EndpointPort{{Protocol: servicemodel.TCP, Port: 8080}}}})
}

// kubeProxys is the output of kube-proxy's iptables mode for a service with a cluster IP and an
// external IP, with kube-proxy's default mark.
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

// Instances with different settings, of this backend and of another, share a node with kube-proxy.
// The packets of each instance are treated according to its settings, whatever the order in which
// the instances were added. An instance that is removed deletes nothing of the other instances, and
// no program masquerades its packets any more.
func TestInstancesSideBySide(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"iptables-nft-restore", "nft"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("the program %s is not installed", program)
		}
	}

	c := netnstest.Start(t, netnstest.Options{})
	require.NoError(t, c.Pods[1].Serve(servicemodel.TCP, 8080))
	ns, endpoint := c.Node.NS, c.Pods[1].IPv4
	kubeProxy := &instance{name: "kube-proxy", number: 5,
		mute: []string{"iptables-nft", "-t", "nat", "-F", "KUBE-POSTROUTING"}}
	l := append(instances(t, ns), kubeProxy)
	apply := func(i *instance) {
		if i == kubeProxy {
			rules := strings.NewReplacer("CLUSTERIP", i.address(false).String(), "EXTERNAL",
				i.address(true).String(), "ENDPOINT", endpoint.String()).Replace(kubeProxys)
			nstest.Exec(t, ns, rules, "iptables-nft-restore", "--noflush")
			return
		}

		_, err := dataplane.New(i.backend, nil).Apply(t.Context(), i.state(endpoint))
		require.NoError(t, err, i.name)
	}

	for _, n := range []int{0, 4, 1, 3, 2} {
		apply(l[n])
	}
	requireFates(t, c, l)
	for _, i := range l {
		nstest.Exec(t, ns, "", i.mute...)
		i.muted = true
		requireFates(t, c, l)
		i.muted = false
		apply(i)
		requireFates(t, c, l)
	}

	for n, i := range l[:4] {
		ok(i.backend.Cleanup(t.Context()))(t)
		require.NoError(t, i.backend.Close())
		requireFates(t, c, l[n+1:])
	}
}

// instances opens four instances: two with the default mark, and two with separate marks.
func instances(t *testing.T, ns *netnstest.NS) []*instance {
	t.Helper()
	flush := func(table string) []string {
		return []string{"nft", "flush", "chain", "ip", table, "nat-postrouting"}
	}
	l := []*instance{
		{name: "the default mark", number: 1, mute: flush("one")},
		{name: "the default mark as well", number: 2, mute: flush("two")},
		{name: "a mark of its own", number: 3, mark: 1 << 10, all: true, mute: flush("three")},
		{name: "iptables", number: 4, mark: 1 << 11,
			mute: []string{"iptables-nft", "-t", "nat", "-F", "KFOUR-POSTROUTING"}},
	}
	for n, cfg := range []*nftables.Config{{NetNS: ns.NetNS(), Table: "one"},
		{NetNS: ns.NetNS(), Table: "two"}, {NetNS: ns.NetNS(), Table: "three"}} {
		l[n].backend = ok(nftables.New(cfg))(t)
	}

	l[3].backend = ok(iptables.New(&iptables.Config{NetNS: ns.NetNS(), Prefix: "KFOUR"}))(t)
	return l
}

// requireFates calls requireFate for each instance.
func requireFates(t *testing.T, c *netnstest.Cluster, l []*instance) {
	t.Helper()
	for _, i := range l {
		i.requireFate(t, c)
	}
}

// requireFate requires that a pod and a client outside reach the service of an instance, and are
// masqueraded according to its settings.
func (i *instance) requireFate(t *testing.T, c *netnstest.Cluster) {
	t.Helper()
	for _, from := range []struct {
		host       *netnstest.Host
		external   bool
		masquerade bool
	}{
		{c.Pods[0], false, i.all}, {c.Pods[0], true, true}, {c.Outside[0], true, true},
	} {
		p := netnstest.Probe{From: from.host, Proto: servicemodel.TCP,
			To: netip.AddrPortFrom(i.address(from.external), 80)}
		o := p.Send(t.Context())
		require.Equal(t, netnstest.Answered, o.Kind, "%s: %s: %s", i.name, p, o)
		require.Equal(t, from.masquerade && !i.muted, o.Source.Addr() != from.host.IPv4,
			"%s: %s: %s", i.name, p, o)
	}
}
