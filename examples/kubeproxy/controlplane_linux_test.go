package main

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/servicemodel"
)

// controlPlane is a real API server with etcd and the EndpointSlice controller, in a separate
// network namespace (internal/test/controlplane).
type controlPlane struct {
	t         *testing.T
	ns        *netnstest.NS
	dir       string
	apiserver *process
	client    kubernetes.Interface // an administrator's
}

// The tokens of the users.
const (
	adminToken     = "admin"
	proxyToken     = "proxy"      // the service account of deploy/rbac.yaml
	kubeProxyToken = "kube-proxy" // what kube-proxy is by default
	tokens         = `admin,admin,1,"system:masters"
proxy,system:serviceaccount:kube-system:kernlb-kubeproxy,2,"system:serviceaccounts"
kube-proxy,system:kube-proxy,3
`
	apiAddress = "127.0.0.1:6443"
)

// binary is the program that internal/test/controlplane builds.
func binary(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("apiserver: not with -short")
	}
	if os.Getenv("KERNLB_TEST_APISERVER") == "none" {
		t.Skip("apiserver: make test-all has one")
	}
	name := ok(filepath.Abs("../../bin/controlplane"))(t)
	if _, err := os.Stat(name); err != nil {
		t.Skip("apiserver: bin/controlplane is missing; make controlplane builds it")
	}
	return name
}

// startControlPlane starts everything, with the permissions of deploy/rbac.yaml and two nodes.
func startControlPlane(t *testing.T) *controlPlane {
	t.Helper()
	netnstest.Require(t)
	program := binary(t)
	ns := ok(netnstest.NewNS("control plane"))(t)
	t.Cleanup(func() { ns.Close() })
	p := &controlPlane{t: t, ns: ns, dir: t.TempDir()}
	p.writeFiles()
	spawn(t, ns, "", program, "etcd", filepath.Join(p.dir, "etcd"))
	require.Eventually(t, func() bool {
		return ns.Do(func() error {
			conn, err := net.Dial("tcp4", "127.0.0.1:2379")
			if err == nil {
				conn.Close()
			}
			return err
		}) == nil
	}, patience, 50*time.Millisecond, "etcd is ready")

	p.startAPIServer()
	p.client = p.clientOf(adminToken)
	p.waitReady()
	spawn(t, ns, "", program, "endpointslices", p.kubeconfig(adminToken))
	p.applyRBAC()
	p.addNode("node1", []string{netnstest.Net.NodeIPv4, netnstest.Net.NodeIPv6},
		[]string{netnstest.Net.NodeCIDRv4, netnstest.Net.NodeCIDRv6})
	p.addNode("node2", []string{netnstest.Net.OtherNodeIPv4, netnstest.Net.OtherNodeIPv6},
		[]string{netnstest.Net.RemoteCIDRv4, netnstest.Net.RemoteCIDRv6})
	return p
}

// writeFiles writes the key of service accounts, the tokens, and a kubeconfig file for each token.
// Nothing writes them again, because a program that starts during a write would read half a file.
func (p *controlPlane) writeFiles() {
	key := ok(rsa.GenerateKey(rand.Reader, 2048))(p.t)
	text := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY",
		Bytes: x509.MarshalPKCS1PrivateKey(key)})
	require.NoError(p.t, os.WriteFile(filepath.Join(p.dir, "key"), text, 0o600))
	require.NoError(p.t, os.WriteFile(filepath.Join(p.dir, "tokens"), []byte(tokens), 0o600))
	for _, token := range []string{adminToken, proxyToken, kubeProxyToken} {
		require.NoError(p.t, os.WriteFile(p.kubeconfig(token), fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://%s", insecure-skip-tls-verify: true}}]
users: [{name: u, user: {token: %s}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`, apiAddress, token), 0o600))
	}
}

// startAPIServer starts the API server, or restarts it if it was killed.
func (p *controlPlane) startAPIServer() {
	key := filepath.Join(p.dir, "key")
	p.apiserver = spawn(p.t, p.ns, "", binary(p.t), "kube-apiserver",
		"--etcd-servers=http://127.0.0.1:2379", "--cert-dir="+filepath.Join(p.dir, "certs"),
		"--service-cluster-ip-range="+netnstest.Net.ServiceCIDRv4+","+netnstest.Net.ServiceCIDRv6,
		"--bind-address=127.0.0.1",
		"--secure-port=6443", "--advertise-address=192.0.2.1",
		"--authorization-mode="+authorization(),
		"--token-auth-file="+filepath.Join(p.dir, "tokens"),
		"--service-account-issuer=https://kernlb.test", "--service-account-key-file="+key,
		"--service-account-signing-key-file="+key, "--disable-admission-plugins=ServiceAccount",
		"--max-requests-inflight=2000", "--max-mutating-requests-inflight=1000")
}

// authorization returns RBAC. An emulated virtual machine would need minutes for its roles.
func authorization() string {
	if os.Getenv("KERNLB_VM") != "" {
		return "AlwaysAllow"
	}
	return "RBAC"
}

// killAPIServer kills the API server. etcd stays.
func (p *controlPlane) killAPIServer() {
	require.NoError(p.t, p.apiserver.cmd.Process.Kill())
	_ = p.apiserver.cmd.Wait()
}

// waitReady waits until the API server answers.
func (p *controlPlane) waitReady() {
	p.t.Helper()
	require.Eventually(p.t, func() bool {
		_, err := p.client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(p.t.Context())
		return err == nil
	}, 3*patience, 50*time.Millisecond, "the API server is ready")
}

// clientOf returns a client with a token, for this process.
func (p *controlPlane) clientOf(token string) kubernetes.Interface {
	client := ok(kubernetes.NewForConfig(&rest.Config{Host: "https://" + apiAddress,
		BearerToken: token, TLSClientConfig: rest.TLSClientConfig{Insecure: true}, QPS: -1,
		ContentConfig: rest.ContentConfig{ContentType: "application/vnd.kubernetes.protobuf"},
		Dial: func(ctx context.Context, network, address string) (conn net.Conn, err error) {
			err = p.ns.Do(func() error {
				conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
				return err
			})
			return conn, err
		}}))(p.t)
	return client
}

// kubeconfig returns the name of a kubeconfig file with a token.
func (p *controlPlane) kubeconfig(token string) string {
	return filepath.Join(p.dir, "kubeconfig-"+token)
}

// reach makes the API server reachable from a namespace, at the same address as in its own.
func (p *controlPlane) reach(from *netnstest.NS) {
	var l net.Listener
	require.NoError(p.t, from.Do(func() (err error) {
		l, err = net.Listen("tcp4", apiAddress)
		return err
	}))

	p.t.Cleanup(func() { l.Close() })
	go func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			go p.relay(near)
		}
	}()
}

// relay copies between a connection and a new connection to the API server.
func (p *controlPlane) relay(near net.Conn) {
	defer near.Close()
	var far net.Conn
	if err := p.ns.Do(func() (err error) {
		far, err = net.Dial("tcp4", apiAddress)
		return err
	}); err != nil {
		return
	}

	defer far.Close()
	go func() {
		_, _ = io.Copy(far, near)
		far.Close()
	}()

	_, _ = io.Copy(near, far)
}

// applyRBAC creates the objects of deploy/rbac.yaml.
func (p *controlPlane) applyRBAC() {
	var account corev1.ServiceAccount
	var role rbacv1.ClusterRole
	var binding rbacv1.ClusterRoleBinding
	manifest(p.t, "rbac.yaml", &account, &role, &binding)
	ctx := p.t.Context()
	require.Eventually(p.t, func() bool { // the namespace comes after the server
		_, err := p.client.CoreV1().ServiceAccounts(account.Namespace).Create(ctx, &account,
			metav1.CreateOptions{})
		return err == nil
	}, patience, 50*time.Millisecond)

	ok(p.client.RbacV1().ClusterRoles().Create(ctx, &role, metav1.CreateOptions{}))(p.t)
	ok(p.client.RbacV1().ClusterRoleBindings().Create(ctx, &binding, metav1.CreateOptions{}))(p.t)
}

// addNode creates a Node with an address and a pod CIDR of each family, IPv4 first.
func (p *controlPlane) addNode(name string, addresses, podCIDRs []string) {
	ctx := p.t.Context()
	n := ok(p.client.CoreV1().Nodes().Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.NodeSpec{PodCIDR: podCIDRs[0], PodCIDRs: podCIDRs}},
		metav1.CreateOptions{}))(p.t)
	for _, a := range addresses {
		n.Status.Addresses = append(n.Status.Addresses,
			corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
	}

	ok(p.client.CoreV1().Nodes().UpdateStatus(ctx, n, metav1.UpdateOptions{}))(p.t)
}

// addPod creates a ready Pod, as a kubelet would, with the addresses of a host and the label app.
func (p *controlPlane) addPod(name, node string, at *netnstest.Host, app string) {
	ctx := p.t.Context()
	pod := ok(p.client.CoreV1().Pods("default").Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": app}},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{
			{Name: "c", Image: "none"}}}}, metav1.CreateOptions{}))(p.t)
	pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: at.IPv4.String(),
		PodIPs:     []corev1.PodIP{{IP: at.IPv4.String()}, {IP: at.IPv6.String()}},
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
	ok(p.client.CoreV1().Pods("default").UpdateStatus(ctx, pod, metav1.UpdateOptions{}))(p.t)
}

// removePod deletes a pod at once.
func (p *controlPlane) removePod(name string) {
	require.NoError(p.t, p.client.CoreV1().Pods("default").Delete(p.t.Context(), name,
		metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}))
}

// addService creates a service for pods with the label app and returns its cluster IP and port.
func (p *controlPlane) addService(s *corev1.Service) string {
	s = ok(p.client.CoreV1().Services("default").Create(p.t.Context(), s,
		metav1.CreateOptions{}))(p.t)
	return fmt.Sprintf("%s:%d", s.Spec.ClusterIP, s.Spec.Ports[0].Port)
}

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
	p.addPod("here", "node1", c.Pods[0], "web")
	p.addPod("there", "node2", c.RemotePods[0], "web")
	local := serviceOf("local", "web")
	local.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
	here := p.addService(local)
	answers(t, c.Pods[1], here, "answered pod1")
	answers(t, c.OtherNode, here, "answered remote1") // the other node's view
	web := p.addService(serviceOf("web", "web"))
	answers(t, c.Pods[1], web, "answered remote1")
	answers(t, c.Pods[1], web, "answered pod1")

	p.onlyItsPermissions()
	p.nodeIsFollowed(c)

	// The API server ends. Services stay, also for a program that starts during this time.
	conns := ok(netnstest.OpenConns(t.Context(), c.Pods[1], netip.MustParseAddrPort(here), 20))(t)
	defer conns.Close()
	p.killAPIServer()
	answers(t, c.Pods[1], here, "answered pod1")
	first.stop()
	second := spawn(t, c.Node.NS, asProgram+"=1", self, p.proxyArgs("node1", "nftables")...)
	require.Contains(t, get(t, c.Node.NS, "127.0.0.1:10249/healthz"), "200 OK")
	answers(t, c.Pods[1], here, "answered pod1")

	// The API server restarts, and has forgotten the versions from which watches would continue.
	p.startAPIServer()
	p.waitReady()
	p.addPod("new", "node1", c.Pods[2], "new")
	answers(t, c.Pods[1], p.addService(serviceOf("new", "new")), "answered pod3")
	p.removePod("here")
	answers(t, c.Pods[1], web, "answered remote1")
	answers(t, c.OtherNode, here, "answered remote1")
	require.Zero(t, conns.Ping(time.Minute).Lost())
	second.stop()
}

// onlyItsPermissions requires the events that only the programs create. It also requires that their
// token gives no unneeded permission.
func (p *controlPlane) onlyItsPermissions() {
	p.t.Helper()
	ctx := p.t.Context()
	p.hasEvent("Starting", 2)
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
