package main

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/servicemodel"
)

// serviceOf returns a service for pods with a label, from port 80 to their port 8080.
func serviceOf(name, app string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{Selector: map[string]string{"app": app},
			Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080)}}}}
}

// proxyArgs returns the arguments of the program on a node.
func (p *controlPlane) proxyArgs(node, mode string) []string {
	return []string{"--kubeconfig=" + p.kubeconfig(proxyToken), "--hostname-override=" + node,
		"--proxy-mode=" + mode, "--conntrack-max-per-core=0", "--detect-local-mode=NodeCIDR"}
}

// twoNodes starts a cluster whose pods serve, with the program on both nodes.
func twoNodes(t *testing.T, p *controlPlane, mode string) (*netnstest.Cluster, *process) {
	t.Helper()
	c := node(t)
	for _, remote := range c.RemotePods {
		require.NoError(t, remote.Serve(servicemodel.TCP, 8080))
	}
	p.reach(c.Node.NS)
	p.reach(c.OtherNode.NS)
	spawn(t, c.OtherNode.NS, asProgram+"=1", self, p.proxyArgs("node2", mode)...)
	return c, spawn(t, c.Node.NS, asProgram+"=1", self, p.proxyArgs("node1", mode)...)
}

func TestServicesOfAnAPIServerBecomeConnections(t *testing.T) {
	t.Parallel()
	p := startControlPlane(t)
	c, first := twoNodes(t, p, "nftables")
	app := map[string]string{"app": "web"}
	p.addPod("here", "node1", c.Pods[0], app)
	p.addPod("there", "node2", c.RemotePods[0], app)
	local := serviceOf("local", "web")
	local.Spec.InternalTrafficPolicy = ptr(corev1.ServiceInternalTrafficPolicyLocal)
	here := p.addService(local)
	answers(t, c.Pods[1], here, "answered pod1")
	answers(t, c.OtherNode, here, "answered remote1") // the other node's view
	web := p.addService(serviceOf("web", "web"))
	answers(t, c.Pods[1], web, "answered remote1")
	answers(t, c.Pods[1], web, "answered pod1")

	p.onlyItsPermissions()
	p.nodeIsFollowed(c)

	// The API server ends. Services stay, also for a program that starts meanwhile.
	conns := ok(netnstest.OpenConns(t.Context(), c.Pods[1], netip.MustParseAddrPort(here), 20))(t)
	defer conns.Close()
	p.killAPIServer()
	answers(t, c.Pods[1], here, "answered pod1")
	first.stop()
	second := spawn(t, c.Node.NS, asProgram+"=1", self, p.proxyArgs("node1", "nftables")...)
	require.Contains(t, get(t, c.Node.NS, "127.0.0.1:10249/healthz"), "200 OK")
	answers(t, c.Pods[1], here, "answered pod1")
	// The API server comes back, and has forgotten the versions from which watches would continue.
	p.startAPIServer()
	p.waitReady()
	p.addPod("new", "node1", c.Pods[2], map[string]string{"app": "new"})
	answers(t, c.Pods[1], p.addService(serviceOf("new", "new")), "answered pod3")
	p.removePod("here")
	answers(t, c.Pods[1], web, "answered remote1")
	answers(t, c.OtherNode, here, "answered remote1")
	require.Zero(t, conns.Ping(10*time.Second).Lost())
	second.stop()
}

// onlyItsPermissions requires the events that only the programs make. It also requires that their
// token gives no permission that they do not need.
func (p *controlPlane) onlyItsPermissions() {
	p.t.Helper()
	ctx := p.t.Context()
	require.Eventually(p.t, func() bool {
		l, err := p.client.EventsV1().Events("").List(ctx, metav1.ListOptions{})
		names := map[string]bool{}
		for _, e := range l.Items {
			if e.ReportingController == reporter && e.Reason == "Starting" {
				names[e.Regarding.Name] = true
			}
		}
		return err == nil && names["node1"] && names["node2"]
	}, patience, 50*time.Millisecond, "events of both nodes")
	proxy := p.clientOf(proxyToken)
	_, err := proxy.CoreV1().Secrets("").List(ctx, metav1.ListOptions{})
	require.True(p.t, apierrors.IsForbidden(err), "%v", err)
	_, err = proxy.CoreV1().Nodes().Get(ctx, "node1", metav1.GetOptions{})
	require.True(p.t, apierrors.IsForbidden(err), "%v", err)
}

// nodeIsFollowed changes a Node object, and requires that load balancers learn of it.
func (p *controlPlane) nodeIsFollowed(c *netnstest.Cluster) {
	p.t.Helper()
	eligible := func(want string) {
		p.t.Helper()
		require.Eventually(p.t, func() bool {
			return strings.HasPrefix(get(p.t, c.Node.NS, "127.0.0.1:10256/healthz"), want)
		}, patience, 20*time.Millisecond, want)
	}
	taint := func(taints ...corev1.Taint) {
		require.Eventually(p.t, func() bool {
			n := ok(p.client.CoreV1().Nodes().Get(p.t.Context(), "node1", metav1.GetOptions{}))(p.t)
			n.Spec.Taints = taints
			_, err := p.client.CoreV1().Nodes().Update(p.t.Context(), n, metav1.UpdateOptions{})
			return err == nil
		}, patience, 20*time.Millisecond)
	}
	eligible("200")
	taint(corev1.Taint{Key: "ToBeDeletedByClusterAutoscaler", Effect: "NoSchedule"})
	eligible("503")
	taint()
	eligible("200")
}
