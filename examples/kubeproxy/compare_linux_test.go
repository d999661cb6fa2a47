package main

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/kernlb/kernlb/dataplane/hooks"
	"github.com/kernlb/kernlb/dataplane/kubeproxy"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/test/nstest"
)

// recordedService is a service of the recorded rules of kube-proxy.
func recordedService(name, clusterIP string, nodePort int32, endpoints ...string) (*corev1.Service,
	*discoveryv1.EndpointSlice) {
	meta := metav1.ObjectMeta{Namespace: "ns" + name, Name: "svc" + name,
		Labels: map[string]string{discoveryv1.LabelServiceName: "svc" + name}}
	s := &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{Type: "ClusterIP",
		ClusterIP: clusterIP, ClusterIPs: []string{clusterIP},
		IPFamilies: []corev1.IPFamily{"IPv4"},
		Ports: []corev1.ServicePort{{Name: "p80", Protocol: "TCP", Port: 80,
			NodePort: nodePort}}}}
	if nodePort > 0 {
		s.Spec.Type = "NodePort"
	}
	port, portName, tcp := int32(80), "p80", corev1.ProtocolTCP
	l := &discoveryv1.EndpointSlice{ObjectMeta: meta, AddressType: "IPv4",
		Ports: []discoveryv1.EndpointPort{{Name: &portName, Port: &port, Protocol: &tcp}}}
	for _, e := range endpoints {
		l.Endpoints = append(l.Endpoints, discoveryv1.Endpoint{Addresses: []string{e}})
	}
	return s, l
}

// clientWith returns a client of an API server in memory with a Node and services.
func clientWith(t *testing.T, node *corev1.Node) kubernetes.Interface {
	t.Helper()
	client := fake.NewClientset(node)
	for _, o := range []struct {
		name, clusterIP string
		nodePort        int32
		endpoints       []string
	}{
		{"1", "172.30.0.41", 0, []string{"10.180.0.1"}},
		{"3", "172.30.0.43", 3003, []string{"10.180.0.3"}},
		{"4", "172.30.0.44", 0, []string{"10.180.0.4", "10.180.0.6"}},
		{"6", "172.30.0.46", 0, nil},
		{"7", "172.30.0.47", 0, nil},
	} {
		s, l := recordedService(o.name, o.clusterIP, o.nodePort, o.endpoints...)
		ok(client.CoreV1().Services(s.Namespace).Create(t.Context(), s,
			metav1.CreateOptions{}))(t)
		ok(client.DiscoveryV1().EndpointSlices(s.Namespace).Create(t.Context(), l,
			metav1.CreateOptions{}))(t)
	}

	return client
}

func TestCompareNamesEachDifference(t *testing.T) {
	t.Parallel()
	c := netnstest.Start(t, netnstest.Options{})
	o := ok(parseOptions([]string{"compare", "--proxy-mode=nftables", "--hostname-override=node1",
		"--detect-local-mode=NodeCIDR"}))(t)
	require.True(t, o.compare)
	client := clientWith(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1",
		Annotations: map[string]string{kubeadmMark: "unix:///run/containerd/containerd.sock"}},
		Spec: corev1.NodeSpec{PodCIDRs: []string{netnstest.Net.NodeCIDRv4}},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: netnstest.Net.NodeIPv4}}}})
	compare := func() (out string, err error) {
		var b strings.Builder
		require.NoError(t, c.Node.NS.Do(func() error {
			ctx, stop := context.WithTimeout(t.Context(), patience)
			defer stop()
			err = o.settings.compare(ctx, client, slog.New(slog.DiscardHandler), &b)
			return nil
		}))

		return b.String(), err
	}

	_, err := compare()
	require.ErrorContains(t, err, "kube-proxy has no services in this kernel")

	leftover(t, c.Node.NS, "iptables-1.30.rules", "iptables-nft-restore", "--noflush")
	nstest.Run(t, c.Node.NS, "iptables-nft -P FORWARD DROP")
	nstest.Exec(t, c.Node.NS, "", "ip", "link", "add", "kube-ipvs0", "type", "bridge")
	nstest.Exec(t, c.Node.NS, "", "ip", "address", "add", "172.30.0.41/32", "dev", "kube-ipvs0")
	before := ruleset(t, c.Node.NS)
	out, err := compare()
	require.ErrorIs(t, err, errDiffers)
	require.Equal(t, before, ruleset(t, c.Node.NS), "it writes nothing")
	for _, want := range []string{
		"same +172.30.0.41:80/tcp +ns1/svc1:p80 +10.180.0.1:80",
		`same +\*4:3003/tcp +ns3/svc3:p80 +10.180.0.3:80`,
		"same +172.30.0.46:80/tcp +ns6/svc6:p80 +no endpoints",
		"different +172.30.0.44:80/tcp +ns4/svc4:p80 +kube-proxy: 10.180.0.4:80 10.180.0.5:80; " +
			"this program: 10.180.0.4:80 10.180.0.6:80",
		"only kube-proxy +172.30.0.42:80/tcp +ns2/svc2:p80 +10.180.0.2:80",
		"only this program +172.30.0.47:80/tcp +ns7/svc7:p80 +no endpoints",
		"13 addresses and ports of kube-proxy, 6 of this program: 10 differ",
		"note: node ports stop answering at 127.0.0.1",
		"note: kubeadm made this node", "note: chain ip filter FORWARD drops forwarded packets",
	} {
		require.Regexp(t, want, out)
	}

	require.NotRegexp(t, "node ports stop.* 172.30.0.41", out, "the mode ipvs has none there")
}

func TestNotesSayWhatChangesOnThisNode(t *testing.T) {
	t.Parallel()
	node := func(cidr ...string) *corev1.Node {
		return &corev1.Node{Spec: corev1.NodeSpec{PodCIDRs: cidr},
			Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Address: "192.0.2.1"}}}}
	}

	mine := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.77"),
		netip.MustParseAddr("10.1.1.1")}
	iptables := &kubeproxy.Plan{}
	require.NoError(t, json.Unmarshal([]byte(
		`{"chains": [{"family": "ip", "table": "nat", "chain": "KUBE-NODEPORTS"}]}`), iptables))
	portmap := &kubeproxy.Plan{Left: []kubeproxy.Left{{Object: "chain ip nat KUBE-MARK-MASQ",
		Reason: "a rule of chain CNI-DN-1 leads to it"}}}
	forwarding := &kubeproxy.Plan{}
	require.NoError(t, json.Unmarshal([]byte(
		`{"chains": [{"family": "ip6", "table": "filter", "chain": "KUBE-FORWARD"}]}`), forwarding))
	forward := func(family string, byPolicy bool, drops ...hooks.Rule) nodeFacts {
		return nodeFacts{node("10.1.1.0/24"), forwarding, mine[:1], []hooks.Chain{{Family: family,
			Table: "filter", Name: "FORWARD", Hook: hooks.Forward, DropsByDefault: byPolicy,
			Drops: drops}}}
	}

	byKubeadm := node("10.1.1.0/24")
	byKubeadm.Annotations = map[string]string{kubeadmMark: "unix:///x"}
	for _, tt := range []struct {
		name  string
		args  []string
		facts nodeFacts
		want  []string
	}{
		{"nothing changes", nil, nodeFacts{node("10.1.1.0/24"), &kubeproxy.Plan{}, mine, nil}, nil},
		{"the same mode", []string{"--proxy-mode=iptables"},
			nodeFacts{node("10.1.1.0/24"), iptables, mine, nil}, nil},
		{"node ports", nil, nodeFacts{node("10.1.1.0/24"), iptables, mine, nil},
			[]string{"at 127.0.0.1, 192.0.2.77:"}},
		{"node ports everywhere", []string{"--nodeport-addresses=0.0.0.0/0"},
			nodeFacts{node("10.1.1.0/24"), iptables, mine, nil}, []string{"at 127.0.0.1:"}},
		{"marks", nil, nodeFacts{node("10.1.1.0/24"), portmap, mine, nil},
			[]string{"a rule of chain CNI-DN-1 leads to it. Nothing masquerades"}},
		{"no pod CIDRs", nil, nodeFacts{node(), &kubeproxy.Plan{}, mine, nil},
			[]string{"no spec.podCIDRs"}},
		{"no pod CIDRs, not used", []string{"--detect-local-mode=ClusterCIDR",
			"--cluster-cidr=10.0.0.0/8"}, nodeFacts{node(), &kubeproxy.Plan{}, mine, nil}, nil},
		{"no Node", nil, nodeFacts{nil, &kubeproxy.Plan{}, mine, nil}, []string{`no Node "node1"`}},
		{"kubeadm", nil, nodeFacts{byKubeadm, &kubeproxy.Plan{}, mine, nil},
			[]string{"--skip-phases=addon/kube-proxy"}},
		{"forwarding", nil, forward("ip6", true),
			[]string{"chain ip6 filter FORWARD drops forwarded packets"}},
		{"forwarding, the mode ipvs", []string{"--proxy-mode=ipvs"}, forward("ip6", true),
			[]string{"chain ip6 filter FORWARD drops forwarded packets"}},
		{"forwarding, a rule for all packets", nil, forward("ip6", false,
			hooks.Rule{Chain: "FORWARD", Text: "counter -j REJECT"}),
			[]string{"chain ip6 filter FORWARD drops forwarded packets"}},
		{"forwarding, a rule for some packets", nil, forward("ip6", false,
			hooks.Rule{Chain: "FORWARD", Text: "tcp dport 80 counter -j REJECT"},
			hooks.Rule{Chain: "KUBE-FORWARD", Text: "counter drop"}), nil},
		{"forwarding, the other family", nil, forward("ip", true), nil},
		{"forwarding, the same mode", []string{"--proxy-mode=iptables"}, forward("ip6", true), nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			o := ok(parseOptions(append([]string{"--hostname-override=node1",
				"--proxy-mode=nftables", "--detect-local-mode=NodeCIDR"}, tt.args...)))(t)
			got := tt.facts.notes(o.settings)
			require.Len(t, got, len(tt.want), got)
			for i, w := range tt.want {
				require.Contains(t, got[i].text, w)
			}
		})
	}
}
