package main

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/servicemodel"
)

// long skips tests that "make apiserver" runs.
func long(t *testing.T) {
	t.Helper()
	if os.Getenv("KERNLB_TEST_APISERVER") != "long" {
		t.Skip("long: make apiserver runs it")
	}
}

const many = 5000

// addMany creates services with one endpoint each, several at a time.
func (p *controlPlane) addMany(n int) {
	p.t.Helper()
	var g errgroup.Group
	g.SetLimit(16)
	for i := range n {
		g.Go(func() error {
			s := serviceOf(fmt.Sprintf("many-%d", i), "")
			s.Spec.Selector = nil
			_, err := p.client.CoreV1().Services("default").Create(p.t.Context(), s,
				metav1.CreateOptions{})
			if err != nil {
				return err
			}
			return p.setSlice(s.Name, fmt.Sprintf("10.250.%d.%d", i/250, 1+i%250))
		})
	}

	require.NoError(p.t, g.Wait())
}

// setSlice creates an EndpointSlice for a service without a selector.
func (p *controlPlane) setSlice(service, address string) error {
	protocol := corev1.ProtocolTCP
	_, err := p.client.DiscoveryV1().EndpointSlices("default").Create(p.t.Context(),
		&discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Name: service,
				Labels: map[string]string{discoveryv1.LabelServiceName: service}},
			AddressType: discoveryv1.AddressTypeIPv4,
			Ports: []discoveryv1.EndpointPort{{Name: new(""), Port: new(int32(8080)),
				Protocol: &protocol}},
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{address}}},
		}, metav1.CreateOptions{})
	return err
}

func TestLongManyServicesAndARolloutUnderTraffic(t *testing.T) {
	long(t)
	p := startControlPlane(t)
	c, _ := twoNodes(t, p, "nftables")
	p.addPod("a-0", "node1", c.Pods[0], "web")
	to := p.addService(serviceOf("web", "web"))
	answers(t, c.Pods[1], to, "answered pod1")
	conns := ok(netnstest.OpenConns(t.Context(), c.Pods[1], netip.MustParseAddrPort(to), 100))(t)
	defer conns.Close()
	tr := startTraffic(t, c.Pods[1], to)

	begin := time.Now()
	p.addMany(many)
	created := time.Since(begin)
	require.Eventually(t, func() bool {
		return strings.Count(ruleset(t, c.Node.NS), "default/many-") >= many
	}, 5*time.Minute, 200*time.Millisecond, "all services are in the kernel")
	t.Logf("%d services created in %s, in the kernel after %s", many, created, time.Since(begin))

	// A rollout: another pod of the same application replaces each pod, new before old.
	for i := range 30 {
		pod := c.Pods[(i+1)%2*2] // pod3, pod1, pod3, …
		p.addPod(fmt.Sprintf("a-%d", i+1), "node1", pod, "web")
		answers(t, c.Pods[1], to, "answered "+pod.Name)
		p.removePod(fmt.Sprintf("a-%d", i))
		answers(t, c.Pods[1], to, "answered "+pod.Name)
	}

	require.Zero(t, conns.Ping(time.Minute).Lost())
	tr.all(t)
	t.Logf("%d connections made meanwhile, none failed", tr.made)
}

// latencies measures the times from the API server's answer to a write of an EndpointSlice until
// the first connection through it. The services refused before.
func (p *controlPlane) latencies(c *netnstest.Cluster, round string) []time.Duration {
	p.t.Helper()
	var out []time.Duration
	for i := range 30 {
		name := fmt.Sprintf("%s-%d", round, i)
		s := serviceOf(name, "")
		s.Spec.Selector = nil
		to := p.addService(s)
		answers(p.t, c.Pods[1], to, "refused ")
		time.Sleep(1100 * time.Millisecond) // longer than minSyncPeriod
		require.NoError(p.t, p.setSlice(name, c.Pods[0].IPv4.String()))
		begin := time.Now()
		for (netnstest.Probe{From: c.Pods[1], Proto: servicemodel.TCP,
			To: netip.MustParseAddrPort(to)}).Send(p.t.Context()).Kind != netnstest.Answered {
			require.Less(p.t, time.Since(begin), 2*time.Minute)
		}

		out = append(out, time.Since(begin))
	}

	slices.Sort(out)
	return out
}

func TestLongLatencyBesideKubeProxy(t *testing.T) { besideKubeProxy(t, (*controlPlane).latencies) }

// rollingUpdate replaces the endpoints of 100 services, 50 a second for 20 seconds. It measures the
// times from the API server's answer to a write until a new connection reaches the new endpoint.
func (p *controlPlane) rollingUpdate(c *netnstest.Cluster, round string) []time.Duration {
	p.t.Helper()
	const services, changes, interval = 100, 1000, 20 * time.Millisecond
	var names, addrs []string
	for i := range services {
		name := fmt.Sprintf("%s-%d", round, i)
		s := serviceOf(name, "")
		s.Spec.Selector = nil
		names, addrs = append(names, name), append(addrs, p.addService(s))
		require.NoError(p.t, p.setSlice(name, c.Pods[0].IPv4.String()))
	}

	for _, to := range addrs {
		answers(p.t, c.Pods[1], to, "answered "+c.Pods[0].Name)
	}

	out := make([]time.Duration, changes)
	var g errgroup.Group
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for i := range changes {
		<-tick.C
		g.Go(func() error {
			to := c.Pods[(i/services+1)%2*2]
			patch := fmt.Sprintf(`{"endpoints":[{"addresses":["%s"]}]}`, to.IPv4)
			_, err := p.client.DiscoveryV1().EndpointSlices("default").Patch(p.t.Context(),
				names[i%services], types.MergePatchType, []byte(patch), metav1.PatchOptions{})
			begin := time.Now()
			probe := netnstest.Probe{From: c.Pods[1], Proto: servicemodel.TCP,
				To: netip.MustParseAddrPort(addrs[i%services])}
			for err == nil && probe.Send(p.t.Context()).Server != to.Name {
				// The same service changes again two seconds later.
				if out[i] = time.Since(begin); out[i] > services*interval {
					return nil
				}
				time.Sleep(max(time.Millisecond, time.Since(begin)/20))
			}

			out[i] = time.Since(begin)
			return err
		})
	}

	require.NoError(p.t, g.Wait())
	slices.Sort(out)
	return out
}

func TestLongRollingUpdateBesideKubeProxy(t *testing.T) {
	besideKubeProxy(t, (*controlPlane).rollingUpdate)
}

// besideKubeProxy measures sorted times with the program and with kube-proxy, without other
// services and with many other services.
func besideKubeProxy(
	t *testing.T, measure func(*controlPlane, *netnstest.Cluster, string) []time.Duration,
) {
	long(t)
	for _, services := range []int{0, many} {
		t.Run(fmt.Sprintf("%d services", services), func(t *testing.T) {
			p := startControlPlane(t)
			p.addMany(services)
			for _, mode := range []string{"nftables", "iptables"} {
				for _, who := range []string{"kernlb", "kube-proxy"} {
					c := node(t)
					p.reach(c.Node.NS)
					proxy := p.start(who, c, mode)
					l := measure(p, c, who+"-"+mode)
					t.Logf("%-10s %s: p50 %5.1f ms, p99 %5.1f ms", who, mode, ms(l[len(l)/2]),
						ms(l[len(l)*99/100]))
					require.NoError(t, proxy.cmd.Process.Kill())
				}
			}
		})
	}
}

// start starts the program, or kube-proxy, on the first node.
func (p *controlPlane) start(
	who string, c *netnstest.Cluster, mode string, more ...string,
) *process {
	if who == "kernlb" {
		return spawn(p.t, c.Node.NS, asProgram+"=1", self,
			append(p.proxyArgs("node1", mode), more...)...)
	}

	return spawn(p.t, c.Node.NS, "PATH="+nftIPTables(p.t), binary(p.t),
		append(p.kubeProxyArgs("node1", mode), more...)...)
}

// Mode ipvs from beginning to end with a real API server. The program takes over a kube-proxy's
// virtual servers and connections, is killed, continues, and cleans up.
func TestTheModeIPVSOnAnAPIServer(t *testing.T) {
	if os.Getenv("KERNLB_VM") == "" {
		t.Skip("long: make apiserver-vm runs it in a virtual machine, which has IPVS")
	}
	patience = 3 * time.Minute // the machine is emulated
	p, c := startControlPlane(t), node(t)
	p.reach(c.Node.NS)
	require.NoError(t, c.RemotePods[0].Serve(servicemodel.TCP, 8080))
	p.addPod("here", "node1", c.Pods[0], "web")
	s := p.addDualStack("web", "web")
	kubeProxy := p.start("kube-proxy", c, "ipvs", bothFamilies...)
	w := watch(t, c, s, c.Pods[1], c.Pods[2])
	t.Logf("kube-proxy alone: %s", w.lap(t))

	ours := p.start("kernlb", c, "ipvs", bothFamilies...)
	p.hasEvent("KubeProxyRuns", 1)
	kubeProxy.end()
	p.hasEvent("TookOver", 1)
	w.lives()
	t.Logf("handed over: %s", w.lap(t))
	p.addPod("there", "node2", c.RemotePods[0], "web")
	servesBothFamilies(t, c, s)
	answersHTTPOverBothFamilies(t, c, s, "ipvs")

	for range 3 {
		require.NoError(t, ours.cmd.Process.Kill())
		_ = ours.cmd.Wait()
		ours = p.start("kernlb", c, "ipvs", bothFamilies...)
	}

	answers(t, c.Pods[1], p.addService(serviceOf("last", "web")), "answered pod1")
	w.lives()
	t.Logf("killed three times: %s", w.lap(t))
	w.all(t)
	p.removePod("here")
	hereIsNoEndpoint(t, c, s)
	ours.stop()
	cleanup := spawn(t, c.Node.NS, asProgram+"=1", self, "--cleanup")
	require.NoError(t, cleanup.cmd.Wait())
	require.NotContains(t, ruleset(t, c.Node.NS), "kernlb")
}
