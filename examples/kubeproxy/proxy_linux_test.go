package main

import (
	"errors"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/tools/events"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/test/nstest"
	"github.com/kernlb/kernlb/internal/test/promised"
	"github.com/kernlb/kernlb/servicemodel"
)

// get repeats a request until there is an answer.
func get(t *testing.T, ns *netnstest.NS, what string) (answer string) {
	t.Helper()
	require.Eventually(t, func() bool {
		var err error
		answer, err = nstest.Get(ns, what)
		return err == nil
	}, patience, 20*time.Millisecond, what)

	return answer
}

// node starts a cluster whose pods serve.
func node(t *testing.T) *netnstest.Cluster {
	t.Helper()
	c := netnstest.Start(t, netnstest.Options{})
	for _, p := range c.Pods {
		require.NoError(t, p.Serve(servicemodel.TCP, 8080))
	}
	return c
}

// leftover restores a kube-proxy's objects in a namespace.
func leftover(t *testing.T, ns *netnstest.NS, file string, command ...string) {
	t.Helper()
	text := ok(os.Open("../../dataplane/kubeproxy/testdata/" + file))(t)
	defer text.Close()
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdin = text
	require.NoError(t, ns.Do(func() error {
		out, err := cmd.CombinedOutput()
		t.Logf("%s", out)
		return err
	}))
}

func TestServicesBecomeConnectionsInEachMode(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ mode, ours, theirs string }{
		{"iptables", "KERNLB-SVC-", "KUBE-SERVICES"},
		{"nftables", "table ip kernlb", "KUBE-SERVICES"},
	} {
		t.Run(tt.mode, func(t *testing.T) {
			t.Parallel()
			c := node(t)
			leftover(t, c.Node.NS, "iptables-1.30.rules", "iptables-nft-restore", "--noflush")
			require.Contains(t, ruleset(t, c.Node.NS), tt.theirs)
			args := []string{"--proxy-mode=" + tt.mode, "--hostname-override=node1",
				"--detect-local-mode=NodeCIDR", "--conntrack-max-per-core=0", "--profiling",
				"--nodeport-addresses=primary"}

			// Only the privileges of the DaemonSet.
			p := spawn(t, c.Node.NS, asProgram+"=memory", "setpriv", append([]string{
				"--bounding-set=-all,+net_admin,+sys_resource", executable(t)}, args...)...)
			broken := service()
			broken.Name, broken.Spec.Ports[0].Port = "broken", 0
			restricted := service() // at load balancer IPs, of which it has none
			restricted.Spec.LoadBalancerSourceRanges = []string{"10.0.0.0/8"}
			require.NoError(t, p.in.Encode(objects{Services: []*corev1.Service{restricted, broken},
				Slices: []*discoveryv1.EndpointSlice{slice(c.Pods[0])}}))
			answers(t, c.Pods[1], "10.96.0.10:80", "answered pod1")
			p.says(`"state warning" service="default/web" field="loadBalancerSourceRanges"`, 1)
			answers(t, c.Outside[0], netnstest.Net.NodeIPv4+":30080", "answered pod1")
			require.Contains(t, get(t, c.Node.NS, netnstest.Net.NodeIPv4+":32000/"), "200 OK")
			health := get(t, c.Node.NS, "127.0.0.1:10256/healthz")
			require.Contains(t, health, `"nodeEligible":true`)
			require.Contains(t, health, `"problems":["Service default/broken: spec.ports[0].port`)
			require.Contains(t, get(t, c.Node.NS, "127.0.0.1:10249/metrics"),
				"kernlb_input_problems 1")
			require.Equal(t, "200 OK "+tt.mode, get(t, c.Node.NS, "127.0.0.1:10249/proxyMode"))
			require.Equal(t, "200 OK ok", get(t, c.Node.NS, "127.0.0.1:10249/healthz"))
			require.Regexp(t, `kubeproxy_sync_proxy_rules_duration_seconds_count.* [1-9]`,
				get(t, c.Node.NS, "127.0.0.1:10249/metrics"))
			require.Contains(t, get(t, c.Node.NS, "127.0.0.1:10256/livez"), "200 OK")
			promised.Check(t, "../..", "kubeproxy", get(t, c.Node.NS, "127.0.0.1:10249/metrics"))
			require.Contains(t, get(t, c.Node.NS, "127.0.0.1:10249/configz"),
				`"mode":"`+tt.mode+`"`)
			require.Contains(t, get(t, c.Node.NS, "127.0.0.1:10249/debug/pprof/heap"), "200 OK")
			require.Eventually(t, func() bool {
				return !strings.Contains(ruleset(t, c.Node.NS), tt.theirs)
			}, patience, 50*time.Millisecond, "it takes over from kube-proxy")
			require.Contains(t, ruleset(t, c.Node.NS), tt.ours)
			require.EventuallyWithT(t, func(a *assert.CollectT) { // it is no kube-proxy itself
				health, err := nstest.Get(c.Node.NS, "127.0.0.1:10256/healthz")
				assert.NoError(a, err)
				assert.Contains(a, health, `"findings":[]`)
			}, patience, 200*time.Millisecond)

			p.stop()
			answers(t, c.Pods[1], "10.96.0.10:80", "answered pod1")
			cleanup := spawn(t, c.Node.NS, asProgram+"=1", self, "--cleanup")
			require.NoError(t, cleanup.cmd.Wait())
			require.NotContains(t, strings.ToLower(ruleset(t, c.Node.NS)), "kernlb")
		})
	}
}

// If a service has the annotation, endpoints that do not answer are ejected until they answer.
func TestSilentEndpointsAreTakenOut(t *testing.T) {
	t.Parallel()
	c := netnstest.Start(t, netnstest.Options{})
	serve := func(i int) *netnstest.Server {
		return ok(c.Pods[i].NS.Serve(c.Pods[i].Name, servicemodel.TCP,
			netip.AddrPortFrom(c.Pods[i].IPv4, 8080)))(t)
	}

	first := serve(0)
	serve(1)
	p := spawn(t, c.Node.NS, asProgram+"=memory", self, "--proxy-mode=nftables",
		"--hostname-override=node1", "--conntrack-max-per-core=0", "--annotations=kernlb.io")
	svc := service()
	svc.Annotations = map[string]string{"kernlb.io/silent-endpoints": "eject"}
	require.NoError(t, p.in.Encode(objects{Services: []*corev1.Service{svc},
		Slices: []*discoveryv1.EndpointSlice{slice(c.Pods[0], c.Pods[1])}}))
	soon := func(want string) {
		t.Helper()
		require.Eventually(t, func() bool {
			var probes []netnstest.Probe
			for i := range 16 {
				probes = append(probes, netnstest.Probe{From: c.Outside[i%2],
					Proto: servicemodel.TCP,
					To:    netip.MustParseAddrPort(netnstest.Net.NodeIPv4 + ":30080")})
			}

			var got []string
			for _, o := range netnstest.SendAll(t.Context(), probes) {
				got = append(got, o.Server)
			}
			slices.Sort(got)
			return strings.Join(slices.Compact(got), " ") == want
		}, patience, 50*time.Millisecond, want)
	}

	soon("pod1 pod2")
	require.NoError(t, first.Close())
	soon("pod2")
	p.says("10.244.1.1:8080 of default/web ejected", 1)
	serve(0)
	soon("pod1 pod2")
	p.stop()
}

func TestAnotherModeTakesOver(t *testing.T) {
	t.Parallel()
	c := node(t)
	first := objects{Services: []*corev1.Service{service()},
		Slices: []*discoveryv1.EndpointSlice{slice(c.Pods[0])}}
	begin := func(mode string) *process {
		p := spawn(t, c.Node.NS, asProgram+"=memory", self, "--proxy-mode="+mode,
			"--hostname-override=node1", "--conntrack-max-per-core=0", "--healthz-port=0")
		require.NoError(t, p.in.Encode(first))
		return p
	}

	p := begin("iptables")
	answers(t, c.Pods[1], "10.96.0.10:80", "answered pod1")
	conns := ok(netnstest.OpenConns(t.Context(), c.Pods[1],
		netip.MustParseAddrPort("10.96.0.10:80"), 20))(t)
	defer conns.Close()
	p.stop()
	for _, step := range []struct{ mode, ours, gone string }{
		{"nftables", "table ip kernlb", "KERNLB-SERVICES"},
		{"iptables", "KERNLB-SERVICES", "table ip kernlb"},
	} {
		p := begin(step.mode)
		require.Eventually(t, func() bool {
			text := ruleset(t, c.Node.NS)
			return strings.Contains(text, step.ours) && !strings.Contains(text, step.gone)
		}, patience, 50*time.Millisecond, step.mode)

		answers(t, c.Pods[1], "10.96.0.10:80", "answered pod1")
		p.stop()
	}

	require.Zero(t, conns.Ping(time.Minute).Lost())
}

// A kube-proxy that comes back cannot listen where the program listens. The program leaves the
// address to it, asks it, and leaves its rules alone until it ends. Rules for which no kube-proxy
// answers are deleted at once.
func TestAKubeProxyThatComesBackIsLeftAlone(t *testing.T) {
	t.Parallel()
	c := node(t)
	leftover(t, c.Node.NS, "iptables-1.30.rules", "iptables-nft-restore", "--noflush")
	p := spawn(t, c.Node.NS, asProgram+"=memory", self, "--proxy-mode=nftables",
		"--hostname-override=node1", "--detect-local-mode=NodeCIDR", "--conntrack-max-per-core=0",
		"--bind-address-hard-fail") // an address that it left counts no more
	require.NoError(t, p.in.Encode(objects{Services: []*corev1.Service{service()},
		Slices: []*discoveryv1.EndpointSlice{slice(c.Pods[0])}}))
	p.says("took over from kube-proxy", 1)

	leftover(t, c.Node.NS, "iptables-1.30.rules", "iptables-nft-restore", "--noflush")
	var listener net.Listener
	require.Eventually(t, func() bool { // like kube-proxy
		return c.Node.NS.Do(func() (err error) {
			listener, err = net.Listen("tcp4", "127.0.0.1:10249")
			return err
		}) == nil
	}, patience, 20*time.Millisecond)

	kubeProxy := &http.Server{Handler: text("iptables")}
	t.Cleanup(func() { kubeProxy.Close() })
	go func() { _ = kubeProxy.Serve(listener) }()
	p.says("kube-proxy runs on this node again", 1)
	p.says("cannot listen", 1) // after giveWay
	time.Sleep(askAgain)
	require.Contains(t, ruleset(t, c.Node.NS), "KUBE-SERVICES")
	require.NoError(t, kubeProxy.Close())
	p.says("took over from kube-proxy", 2)
	require.NotContains(t, ruleset(t, c.Node.NS), "KUBE-SERVICES")
	eventually(t, c.Node.NS, "127.0.0.1:10249/proxyMode", "200 OK nftables", "")

	leftover(t, c.Node.NS, "iptables-1.30.rules", "iptables-nft-restore", "--noflush")
	p.says("took over from kube-proxy", 3)
	p.says("no kube-proxy answers at port 10249", 1)
	require.NotContains(t, ruleset(t, c.Node.NS), "KUBE-SERVICES")
	answers(t, c.Pods[1], "10.96.0.10:80", "answered pod1")
	p.stop()
}

// If the kernel lacks a family, the event is about the Node, and not about a Service without a
// name.
func TestAFamilyThatIsLeftOutIsAnEventOfTheNode(t *testing.T) {
	t.Parallel()
	said := events.NewFakeRecorder(2)
	p := &proxy{events: &recorder{EventRecorder: said, nodeName: "node1"}}
	p.observe(t.Context(), dataplane.Refused{Refusal: dataplane.Refusal{
		Family: servicemodel.IPv6, Err: errors.New("no module")}})
	require.Equal(t, "Warning NotProxied IPv6: no module", <-said.Events)
}

// If /proc/sys is read-only, as in the container of the DaemonSet, conntrack's settings cannot be
// written. That does not delay the services. Only --init-only fails.
func TestReadOnlySettingsAreNoReasonToEnd(t *testing.T) {
	t.Parallel()
	c := node(t)
	args := []string{"-m", "sh", "-c", "mount --bind /proc/sys /proc/sys && " +
		"mount -o remount,ro,bind /proc/sys && exec \"$@\"", "sh", executable(t),
		"--conntrack-max-per-core=0", "--proxy-mode=nftables", "--hostname-override=node1",
		"--detect-local-mode=NodeCIDR"}
	p := spawn(t, c.Node.NS, asProgram+"=memory", "unshare", args...)
	require.NoError(t, p.in.Encode(objects{Services: []*corev1.Service{service()},
		Slices: []*discoveryv1.EndpointSlice{slice(c.Pods[0])}}))
	answers(t, c.Pods[1], "10.96.0.10:80", "answered pod1")
	p.stop()
	spawn(t, c.Node.NS, asProgram+"=1", "unshare", append(args, "--init-only")...).
		fails("nf_conntrack_tcp_timeout_established to 86400")
}

func TestWhatEndsTheProgram(t *testing.T) {
	t.Parallel()
	c := node(t)
	init := spawn(t, c.Node.NS, asProgram+"=1", self, "--init-only", "--proxy-mode=nftables",
		"--conntrack-max-per-core=0")
	require.NoError(t, init.cmd.Wait())
	require.Empty(t, ruleset(t, c.Node.NS), "nothing is written before the first state")

	require.NoError(t, c.Node.NS.Do(func() error {
		l, err := net.Listen("tcp4", "0.0.0.0:10256")
		t.Cleanup(func() { l.Close() })
		return err
	}))

	spawn(t, c.Node.NS, asProgram+"=memory", self, "--bind-address-hard-fail",
		"--conntrack-max-per-core=0").fails("healthzBindAddress: listen tcp 0.0.0.0:10256: bind")

	name := file(t, header+"conntrack: {maxPerCore: 0}\n")
	p := spawn(t, c.Node.NS, asProgram+"=memory", self, "--config="+name)
	require.Contains(t, get(t, c.Node.NS, "127.0.0.1:10249/healthz"), "200 OK")
	require.NoError(t, os.WriteFile(name, []byte(header), 0o644))
	p.fails(name + ": the configuration file changed")
}
