package kube_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kernlb/kernlb/servicemodel"
	"github.com/kernlb/kernlb/servicemodel/kube"
)

func ourNode() *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node-a", Labels: map[string]string{
			"topology.kubernetes.io/zone": "zone-1"}},
		Spec: corev1.NodeSpec{PodCIDR: "10.1.0.0/24", PodCIDRs: []string{"10.1.0.0/24",
			"fd00:1::/64"}},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeHostName, Address: "node-a"},
			{Type: corev1.NodeExternalIP, Address: "192.0.2.1"},
			{Type: corev1.NodeInternalIP, Address: "172.16.0.1"},
			{Type: corev1.NodeInternalIP, Address: "fd00:16::1"},
			{Type: corev1.NodeExternalIP, Address: "2001:db8::1"},
		}},
	}
}

var (
	// knownNode is the node that ourNode describes. nodeSelf is the least that a program gives, and
	// nodeOwn a full description by the program.
	knownNode = servicemodel.Node{Name: "node-a", Zone: "zone-1",
		Addresses: addrs("172.16.0.1", "fd00:16::1", "192.0.2.1", "2001:db8::1")}
	nodeSelf = servicemodel.Node{Name: "node-a"}
	nodeOwn  = servicemodel.Node{Name: "node-a", Zone: "mine", Addresses: addrs("10.9.9.9"),
		MasqueradeAll: true}
)

// nodeWith is knownNode, changed.
func nodeWith(change func(*servicemodel.Node)) servicemodel.Node {
	n := knownNode
	change(&n)
	return n
}

func nodeAsItIs(*corev1.Node) {}

// nodeCases are Nodes, and the node in the resulting state.
var nodeCases = []struct {
	name     string
	config   kube.Config
	given    func(*corev1.Node)
	want     servicemodel.Node
	problems []string
}{
	{"zone and addresses, internal ones first", kube.Config{Node: nodeSelf}, nodeAsItIs,
		knownNode, nil},
	{"another node", kube.Config{Node: nodeSelf}, func(n *corev1.Node) {
		n.Name = "node-b"
	}, nodeSelf, nil},
	{"a program that does not name its node", kube.Config{}, nodeAsItIs,
		servicemodel.Node{}, nil},
	{"only the zone label counts", kube.Config{Node: nodeSelf}, func(n *corev1.Node) {
		n.Labels = map[string]string{"failure-domain.beta.kubernetes.io/zone": "old",
			"topology.kubernetes.io/region": "region"}
	}, nodeWith(func(n *servicemodel.Node) { n.Zone = "" }), nil},
	{"what the program says wins", kube.Config{Node: nodeOwn}, nodeAsItIs, nodeOwn, nil},
	{"pod CIDRs tell local pods where asked for", kube.Config{Node: nodeSelf, NodeCIDRs: true},
		nodeAsItIs,
		nodeWith(func(n *servicemodel.Node) {
			n.LocalPods.CIDRs = prefixes("10.1.0.0/24", "fd00:1::/64")
		}), nil},
	{"a single pod CIDR", kube.Config{Node: nodeSelf, NodeCIDRs: true}, func(n *corev1.Node) {
		n.Spec.PodCIDRs = nil
	},
		nodeWith(func(n *servicemodel.Node) { n.LocalPods.CIDRs = prefixes("10.1.0.0/24") }), nil},
	{"leading zeros", kube.Config{Node: nodeSelf}, func(n *corev1.Node) {
		n.Status.Addresses[2].Address = "172.016.000.001"
	}, knownNode, nil},
	{"addresses that are none, or of no use, are skipped",
		kube.Config{Node: nodeSelf, NodeCIDRs: true}, func(n *corev1.Node) {
			n.Spec.PodCIDRs = []string{"x"}
			n.Status.Addresses = append(n.Status.Addresses,
				corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "y"},
				corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "127.0.0.1"})
		}, knownNode, []string{
			"warning: Node node-a: status.addresses[5].address: y: not an IP address",
			"warning: Node node-a: status.addresses[6].address: 127.0.0.1: may not be a " +
				"loopback address",
			"warning: Node node-a: spec.podCIDRs[0]: x: not an IP range such as 10.0.0.0/8",
		}},
	{"strictly, what is none is an error", kube.Config{Node: nodeSelf, Strict: true},
		func(n *corev1.Node) {
			n.Status.Addresses[2].Address = "x"
		}, nodeSelf,
		[]string{"error: Node node-a: status.addresses[2].address: x: not an IP address"}},
}

func TestNode(t *testing.T) {
	t.Parallel()
	for _, tt := range nodeCases {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tracker := kube.NewTracker(tt.config)
			node := ourNode()
			tt.given(node)
			require.Equal(t, tt.problems, texts(tracker.SetNode(node)))
			require.Equal(t, tt.want, tracker.State().Node())
			require.NoError(t, tracker.State().Validate())

			tracker.DeleteNode("node-a")
			require.Equal(t, tt.want, tracker.State().Node(), "the deletion of a node is ignored")
		})
	}
}

func serviceCIDR(name string, cidrs ...string) *networkingv1.ServiceCIDR {
	return &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: networkingv1.ServiceCIDRSpec{CIDRs: cidrs}}
}

func TestServiceCIDR(t *testing.T) {
	t.Parallel()
	tracker := kube.NewTracker(
		kube.Config{Node: servicemodel.Node{ServiceCIDRs: prefixes("10.98.0.0/16")}})
	require.Equal(t, prefixes("10.98.0.0/16"), tracker.State().Node().ServiceCIDRs,
		"those the program names")

	requireNoProblems(t, tracker.SetServiceCIDR(serviceCIDR("kubernetes", "10.96.0.0/16",
		"fd00:96::/112")))
	requireNoProblems(t,
		tracker.SetServiceCIDR(serviceCIDR("more", "010.096.0.1/16", "10.97.0.0/16")))
	require.Equal(t, prefixes("10.96.0.0/16", "10.97.0.0/16", "10.98.0.0/16", "fd00:96::/112"),
		tracker.State().Node().ServiceCIDRs)

	tracker.DeleteServiceCIDR("kubernetes")
	require.Equal(t, prefixes("10.96.0.0/16", "10.97.0.0/16", "10.98.0.0/16"),
		tracker.State().Node().ServiceCIDRs,
		"another object names it too")

	require.Equal(t, []string{
		"error: ServiceCIDR more: spec.cidrs[1]: 10.97.0.0: not an IP range such as 10.0.0.0/8",
	}, texts(tracker.SetServiceCIDR(serviceCIDR("more", "10.96.0.0/16", "10.97.0.0"))))
	require.Equal(t, prefixes("10.98.0.0/16"), tracker.State().Node().ServiceCIDRs)

	tracker.DeleteServiceCIDR("more")
	require.Empty(t, tracker.Problems())
}
