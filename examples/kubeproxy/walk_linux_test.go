package main

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kernlb/kernlb/dataplane/kubeproxy"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/servicemodel"
)

// walk is the procedure "One node first" of README.md. Both nodes begin with kube-proxy in the mode
// of most clusters, and connections are open on both. A process represents a pod: the test starts
// and ends the process where the administrator labels the node.
type walk struct {
	*handover
	watched []*watched
	written map[string]string // outputs for README.md
}

// portmap is the rule of a plugin that uses kube-proxy's chain.
const portmap = "-t nat -N CNI-DN-web -- -t nat -A CNI-DN-web -s 10.244.1.0/24 -j KUBE-MARK-MASQ"

// begin starts the cluster, both kube-proxies, and the connections.
func begin(t *testing.T) (*walk, *process) {
	t.Helper()
	w := &walk{handover: &handover{controlPlane: startControlPlane(t), c: node(t),
		from: iptablesRules, to: nftablesRules}, written: map[string]string{}}
	ok(w.client.CoreV1().Nodes().Patch(t.Context(), "node1", types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"`+kubeadmMark+`":"unix:///run/x"}}}`),
		metav1.PatchOptions{}))(t)
	w.reach(w.c.Node.NS)
	w.reach(w.c.OtherNode.NS)
	require.NoError(t, w.c.RemotePods[0].Serve(servicemodel.TCP, 8080))
	w.addPod("here", "node1", w.c.Pods[0], "web")
	w.addPod("there", "node2", w.c.RemotePods[0], "web")
	s := serviceOf("web", "web")
	s.Spec.Type, s.Spec.Ports[0].NodePort = corev1.ServiceTypeNodePort, 30080
	s.Spec.IPFamilyPolicy = new(corev1.IPFamilyPolicyRequireDualStack)
	s.Spec.ClusterIPs = []string{"10.96.0.80", "fd00:10:96::80"}
	s.Spec.ClusterIP = s.Spec.ClusterIPs[0]
	w.addService(s)

	kubeProxy := w.start("kube-proxy", w.c, w.from.mode)
	spawn(t, w.c.OtherNode.NS, "PATH="+nftIPTables(t), binary(t),
		w.kubeProxyArgs("node2", w.from.mode)...)
	w.serve(w.c.Node.NS, s)
	w.serve(w.c.OtherNode.NS, s)
	w.watched = []*watched{watch(t, w.c, s, w.c.Pods[1], w.c.Pods[2]),
		watch(t, w.c, s, w.c.OtherNode, w.c.OtherNode)}
	for args := range strings.SplitSeq(portmap, " -- ") {
		w.run(w.c.Node.NS, "iptables-nft", strings.Fields(args)...)
	}
	return w, kubeProxy
}

// serve waits until kube-proxy has programmed a whole service in a namespace. Until then the first
// node serves clients of the second node. Their connections break when the second node begins to
// serve them.
func (w *walk) serve(ns *netnstest.NS, s *corev1.Service) {
	w.t.Helper()
	require.Eventually(w.t, func() bool {
		found := 0
		err := ns.Do(func() error {
			all, err := kubeproxy.Frontends(w.t.Context(), nil)
			for _, f := range all {
				if slices.Contains(s.Spec.ClusterIPs, f.Key.Addr.String()) {
					found += len(f.Endpoints)
				}
			}

			return err
		})
		return err == nil && found == 2*len(s.Spec.ClusterIPs)
	}, patience, 50*time.Millisecond, "kube-proxy has the service")
}

// run runs a command in a namespace.
func (w *walk) run(ns *netnstest.NS, name string, args ...string) {
	w.t.Helper()
	require.NoError(w.t, ns.Do(func() error {
		out, err := exec.Command(name, args...).CombinedOutput()
		w.t.Logf("%s", out)
		return err
	}))
}

// lives requires that the open connections of both nodes are alive, and logs the times of new
// connections.
func (w *walk) lives(step string) {
	w.t.Helper()
	for i, on := range w.watched {
		on.lives()
		w.t.Logf("%s, node %d: %s", step, i+1, on.lap(w.t))
	}
}

// nodePorts requires the outcome at addresses at which only kube-proxy's iptables mode answers.
func (w *walk) nodePorts(want string) {
	w.t.Helper()
	answers(w.t, w.c.Outside[0], netnstest.Net.NodeSecondaryIPv4+":30080", want)
	answers(w.t, w.c.Node, "127.0.0.1:30080", want)
}

// move starts this program while kube-proxy runs, compares, and ends kube-proxy.
func (w *walk) move(kubeProxy *process) (ours *process) {
	w.t.Helper()
	ours = w.start("kernlb", w.c, w.to.mode)
	ours.says("all services are in the kernel", 1)
	w.has(w.from.service, "")
	w.lives("both run")
	w.written["compare"] = w.compares()
	kubeProxy.end()
	ours.says("took over from kube-proxy", 1)
	w.has(w.to.ours, "KUBE-SERVICES")
	spawn(w.t, w.c.Node.NS, asProgram+"=1", self, append([]string{"compare"},
		w.proxyArgs("node1", w.to.mode)...)...).fails("kube-proxy has no services in this kernel")
	w.lives("node 1 moved")
	return ours
}

// comesBack starts a kube-proxy while this program runs, and ends this program when both hold the
// same services.
func (w *walk) comesBack(ours *process) (kubeProxy *process) {
	w.t.Helper()
	kubeProxy = w.start("kube-proxy", w.c, w.from.mode)
	ours.says("kube-proxy runs on this node again", 1)
	w.compares()
	w.lives("both run again")
	ours.stop()
	text := ok(os.ReadFile(ours.out))(w.t)
	w.written["log"] = ""
	for _, line := range logLine.FindAllStringSubmatch(string(text), -1) {
		w.written["log"] += line[1] + line[2] + "\n"
	}
	cleanup := spawn(w.t, w.c.Node.NS, asProgram+"=1", self, "--cleanup")
	require.NoError(w.t, cleanup.cmd.Wait())
	w.has(w.from.service, w.to.ours)
	w.lives("node 1 moved back")
	return kubeProxy
}

// logLine is a line of the log for README.md: its level and texts without time, place and counts.
// It is a line about kube-proxy, or the last line. Other lines depend on the machine, or have no
// fixed order.
var logLine = regexp.MustCompile(`(?m)^([IW])\d{4} [^]]+\](.*\b(?:kube-proxy|stopped)\b.*")`)

// notes returns the actions of the warnings about a node.
func (w *walk) notes(node string) []string {
	w.t.Helper()
	return w.actions("NotAsKubeProxy")[node]
}

func TestTheProcedureOfTheReadme(t *testing.T) {
	t.Parallel()
	w, kubeProxy := begin(t)
	outside := startTraffic(t, w.c.Outside[0], at(netnstest.Net.NodeIPv4, 30080))
	w.nodePorts("answered pod1")
	ours := w.move(kubeProxy)
	w.nodePorts("refused ")
	require.Contains(t, ruleset(t, w.c.Node.NS), "KUBE-MARK-MASQ", "a rule of others leads to it")
	require.Eventually(t, func() bool { return len(w.notes("node1")) == 3 }, patience,
		50*time.Millisecond)
	require.ElementsMatch(t, []string{"NodePorts", "Masquerade", "Upgrade"}, w.notes("node1"))
	kubeProxy = w.comesBack(ours)
	w.nodePorts("answered pod1")
	w.move(kubeProxy)
	total := 0
	for _, tr := range []*traffic{w.watched[0].traffic, w.watched[1].traffic, outside} {
		tr.all(t)
		total += tr.made
	}

	t.Logf("100 connections open all the time, %d made meanwhile: none lost, none failed", total)
	w.podCIDRs()
	w.documented()
}

// podCIDRs starts this program on a node without pod CIDRs.
func (w *walk) podCIDRs() {
	w.t.Helper()
	ok(w.client.CoreV1().Nodes().Create(w.t.Context(),
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node3"}}, metav1.CreateOptions{}))(w.t)
	w.reach(w.c.Outside[0].NS)
	spawn(w.t, w.c.Outside[0].NS, asProgram+"=1", self, w.proxyArgs("node3", "nftables")...).
		says("the Node has no spec.podCIDRs", 1)
	require.Eventually(w.t, func() bool { return len(w.notes("node3")) == 1 }, patience,
		50*time.Millisecond)
	require.Equal(w.t, []string{"DetectLocal"}, w.notes("node3"))
}

// widest is the maximum length of a line in README.md.
const widest = 140

// documented requires that README.md has the outputs. It may leave out lines of the log, because a
// slow machine logs more lines.
func (w *walk) documented() {
	w.t.Helper()
	readme := ok(os.ReadFile("README.md"))(w.t)
	text := string(readme)
	for name, output := range w.written {
		begin := "```text " + name + "\n"
		before, rest, found := strings.Cut(text, begin)
		require.True(w.t, found, name)
		indent := before[strings.LastIndex(before, "\n")+1:]
		has, after, _ := strings.Cut(rest, indent+"```\n")
		want := ""
		for line := range strings.Lines(output) {
			line = strings.TrimRight(indent+line, " \n")
			if len(line) > widest {
				line = strings.TrimRight(line[:widest], " ") + " …"
			}
			want += line + "\n"
		}

		switch {
		case *update:
			text = before + begin + want + indent + "```\n" + after
		case name == "log":
			left := want
			for line := range strings.Lines(has) {
				_, left, found = strings.Cut(left, line)
				require.True(w.t, found, "%q is not in order in\n%s", line, want)
			}
		default:
			require.Equal(w.t, want, has, "go test . -run Readme -update writes the outputs")
		}
	}

	if *update {
		require.NoError(w.t, os.WriteFile("README.md", []byte(text), 0o644))
	}
}

// loadBalancerIPs are addresses of a load balancer for a service.
var loadBalancerIPs = []string{"203.0.113.5", "2001:db8:113::5"}

// bothFamilies are arguments for node ports at some addresses of each family, and metrics at all
// addresses. healthz is at 0.0.0.0, which also means both families.
var bothFamilies = []string{"--metrics-bind-address=::",
	"--nodeport-addresses=192.0.2.0/24,2001:db8:2::/64"}

// addDualStack creates a service of both families, with node ports, addresses of a load balancer
// and policy Local. It returns the service from the API server.
func (p *controlPlane) addDualStack(name, app string) *corev1.Service {
	p.t.Helper()
	s := serviceOf(name, app)
	s.Spec.Type = corev1.ServiceTypeLoadBalancer
	s.Spec.IPFamilyPolicy = new(corev1.IPFamilyPolicyRequireDualStack)
	s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	services := p.client.CoreV1().Services("default")
	s = ok(services.Create(p.t.Context(), s, metav1.CreateOptions{}))(p.t)
	for _, ip := range loadBalancerIPs {
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress,
			corev1.LoadBalancerIngress{IP: ip})
	}

	s = ok(services.UpdateStatus(p.t.Context(), s, metav1.UpdateOptions{}))(p.t)
	require.Len(p.t, s.Spec.ClusterIPs, 2)
	return s
}

// at joins an address and a port.
func at(address string, port int32) string {
	return net.JoinHostPort(address, strconv.Itoa(int(port)))
}

// eventually waits until a node's HTTP answer begins with one text and contains another.
func eventually(t *testing.T, ns *netnstest.NS, what, begins, contains string) {
	t.Helper()
	var got string
	require.Eventually(t, func() bool {
		got = get(t, ns, what)
		return strings.HasPrefix(got, begins) && strings.Contains(got, contains)
	}, patience, 20*time.Millisecond, "%s: want %s %s", what, begins, contains)
}

func TestDualStackServicesOverBothFamilies(t *testing.T) {
	t.Parallel()
	p := startControlPlane(t)
	nodes := map[string]*netnstest.Cluster{"nftables": node(t), "iptables": node(t)}
	p.addPod("here", "node1", nodes["nftables"].Pods[0], "web") // both have the same addresses
	p.addPod("there", "node2", nodes["nftables"].RemotePods[0], "web")
	s := p.addDualStack("web", "web")
	for mode, c := range nodes {
		require.NoError(t, c.RemotePods[0].Serve(servicemodel.TCP, 8080))
		p.reach(c.Node.NS)
		p.start("kernlb", c, mode, bothFamilies...)
		servesBothFamilies(t, c, s)
		answersHTTPOverBothFamilies(t, c, s, mode)
	}

	p.removePod("here")
	for _, c := range nodes {
		hereIsNoEndpoint(t, c, s)
	}
	p.makeSingleStack(s)
	for _, c := range nodes {
		pod := c.Pods[1]
		require.Eventually(t, func() bool {
			o := netnstest.Probe{From: pod, Proto: servicemodel.TCP,
				To: netip.MustParseAddrPort(at(s.Spec.ClusterIPs[1], 80))}.Send(t.Context())
			return o.Kind != netnstest.Answered || o.Server == netnstest.Net.Internet
		}, patience, 20*time.Millisecond, "the IPv6 address is gone")

		answers(t, pod, at(s.Spec.ClusterIPs[0], 80), "answered remote1")
	}
}

// servesBothFamilies sends packets to all addresses of a service with one endpoint on each node.
func servesBothFamilies(t *testing.T, c *netnstest.Cluster, s *corev1.Service) {
	t.Helper()
	client, port := c.Outside[0], s.Spec.Ports[0].NodePort
	for i, family := range []struct{ node, elsewhere, client string }{
		{netnstest.Net.NodeIPv4, netnstest.Net.NodeOutsideIPv4, client.IPv4.String()},
		{netnstest.Net.NodeIPv6, netnstest.Net.NodeOutsideIPv6, client.IPv6.String()},
	} {
		for _, from := range []*netnstest.Host{c.Pods[1], c.Node} {
			answers(t, from, at(s.Spec.ClusterIPs[i], 80), "answered pod1")
			answers(t, from, at(s.Spec.ClusterIPs[i], 80), "answered remote1")
		}

		for _, to := range []string{at(family.node, port), at(loadBalancerIPs[i], 80)} {
			for range 8 { // always the endpoint on this node, and the client's own address
				o := answers(t, client, to, "answered pod1")
				require.Equal(t, family.client, o.Source.Addr().String())
			}
		}

		answers(t, client, at(family.elsewhere, port), "refused ")
	}
}

// answersHTTPOverBothFamilies sends the requests of load balancers and monitoring.
func answersHTTPOverBothFamilies(
	t *testing.T, c *netnstest.Cluster, s *corev1.Service, mode string,
) {
	t.Helper()
	client := c.Outside[0].NS
	for _, address := range []string{netnstest.Net.NodeIPv4, netnstest.Net.NodeIPv6} {
		eventually(t, client, at(address, s.Spec.HealthCheckNodePort)+"/", "200",
			`"localEndpoints": 1`)
		eventually(t, client, at(address, 10256)+"/healthz", "200", `"nodeEligible":true`)
		eventually(t, client, at(address, 10249)+"/proxyMode", "200", mode)
		eventually(t, client, at(address, 10249)+"/metrics", "200",
			"kubeproxy_sync_proxy_rules_duration_seconds_count")
	}
}

// hereIsNoEndpoint requires the behaviour of a node if the only endpoint is on the other node.
func hereIsNoEndpoint(t *testing.T, c *netnstest.Cluster, s *corev1.Service) {
	t.Helper()
	client := c.Outside[0]
	for i, address := range []string{netnstest.Net.NodeIPv4, netnstest.Net.NodeIPv6} {
		eventually(t, client.NS, at(address, s.Spec.HealthCheckNodePort)+"/", "503",
			`"localEndpoints": 0`)
		for range 4 {
			answers(t, c.Pods[1], at(s.Spec.ClusterIPs[i], 80), "answered remote1")
		}
		answers(t, client, at(loadBalancerIPs[i], 80), "dropped ")
	}
}

// makeSingleStack removes the second family from a service.
func (p *controlPlane) makeSingleStack(s *corev1.Service) {
	p.t.Helper()
	require.Eventually(p.t, func() bool { // controllers also write to it
		now := ok(p.client.CoreV1().Services("default").Get(p.t.Context(), s.Name,
			metav1.GetOptions{}))(p.t)
		now.Spec.IPFamilyPolicy = new(corev1.IPFamilyPolicySingleStack)
		now.Spec.IPFamilies = now.Spec.IPFamilies[:1]
		now.Spec.ClusterIPs = now.Spec.ClusterIPs[:1]
		_, err := p.client.CoreV1().Services("default").Update(p.t.Context(), now,
			metav1.UpdateOptions{})
		return err == nil
	}, patience, 20*time.Millisecond, fmt.Sprintf("%s in one family", s.Name))
}
