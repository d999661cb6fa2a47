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
	// nodeSelf is the least that a program gives, and nodeOwn a full description by the program.
	nodeSelf = servicemodel.Node{Name: "node-a"}
	nodeOwn  = servicemodel.Node{Name: "node-a", Zone: "mine", Addresses: addrs("10.9.9.9"),
		MasqueradeAll: true}
)

// nodeCases are changes to ourNode in YAML, and the node in the resulting state.
var nodeCases = []struct {
	name     string
	config   kube.Config
	given    string
	want     *servicemodel.Node
	problems []string
}{
	{"zone and addresses, internal ones first", kube.Config{Node: nodeSelf}, "", known(""), nil},
	{"another node", kube.Config{Node: nodeSelf}, "metadata: {name: node-b}", &nodeSelf, nil},
	{"a program that does not name its node", kube.Config{}, "", &servicemodel.Node{}, nil},
	{"only the zone label counts", kube.Config{Node: nodeSelf}, "metadata: {labels: " +
		"{topology.kubernetes.io/zone: '', failure-domain.beta.kubernetes.io/zone: old, " +
		"topology.kubernetes.io/region: region}}", known("zone: ''"), nil},
	{"what the program says wins", kube.Config{Node: nodeOwn}, "", &nodeOwn, nil},
	{"pod CIDRs tell local pods where asked for", kube.Config{Node: nodeSelf, NodeCIDRs: true}, "",
		known("localPods: {cidrs: [10.1.0.0/24, 'fd00:1::/64']}"), nil},
	{"a single pod CIDR", kube.Config{Node: nodeSelf, NodeCIDRs: true}, "spec: {podCIDRs: null}",
		known("localPods: {cidrs: [10.1.0.0/24]}"), nil},
	{"leading zeros", kube.Config{Node: nodeSelf},
		"status: {addresses: [{}, {}, {address: 172.016.000.001}, {}, {}]}", known(""), nil},
	{"addresses that are none, or of no use, are skipped",
		kube.Config{Node: nodeSelf, NodeCIDRs: true}, "{spec: {podCIDRs: [x]}, status: " +
			"{addresses: [{}, {}, {}, {}, {}, {type: InternalIP, address: 'y'}, " +
			"{type: InternalIP, address: 127.0.0.1}]}}", known(""), []string{
			"warning: Node node-a: status.addresses[5].address: y: not an IP address",
			"warning: Node node-a: status.addresses[6].address: 127.0.0.1: may not be a " +
				"loopback address",
			"warning: Node node-a: spec.podCIDRs[0]: x: not an IP range such as 10.0.0.0/8",
		}},
	{"strictly, what is none is an error", kube.Config{Node: nodeSelf, Strict: true},
		"status: {addresses: [{}, {}, {address: x}]}", &nodeSelf,
		[]string{"error: Node node-a: status.addresses[2].address: x: not an IP address"}},
}

// known is the node that ourNode describes, changed.
func known(change string) *servicemodel.Node {
	return patched(&servicemodel.Node{Name: "node-a", Zone: "zone-1",
		Addresses: addrs("172.16.0.1", "fd00:16::1", "192.0.2.1", "2001:db8::1")}, change)
}

func TestNode(t *testing.T) {
	t.Parallel()
	for _, tt := range nodeCases {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tracker := kube.NewTracker(tt.config)
			require.Equal(t, tt.problems,
				texts(tracker.SetNode(patched(ourNode(), tt.given))))
			require.Equal(t, *tt.want, tracker.State().Node())
			require.NoError(t, tracker.State().Validate())

			tracker.DeleteNode("node-a")
			require.Equal(t, *tt.want, tracker.State().Node(), "the deletion of a node is ignored")
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
