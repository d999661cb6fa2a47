package main

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/servicemodel"
)

// loadBalancerIPs are addresses of a load balancer for a service.
var loadBalancerIPs = []string{"203.0.113.5", "2001:db8:113::5"}

// bothFamilies are arguments for node ports at some addresses of each family, and metrics at all
// addresses. healthz is at 0.0.0.0, which also means both families.
var bothFamilies = []string{"--metrics-bind-address=::",
	"--nodeport-addresses=192.0.2.0/24,2001:db8:2::/64"}

// addDualStack creates a service of both families, with node ports, addresses of a load balancer
// and policy Local. It returns the service as the API server made it.
func (p *controlPlane) addDualStack(name, app string) *corev1.Service {
	p.t.Helper()
	s := serviceOf(name, app)
	s.Spec.Type = corev1.ServiceTypeLoadBalancer
	s.Spec.IPFamilyPolicy = ptr(corev1.IPFamilyPolicyRequireDualStack)
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
	app := map[string]string{"app": "web"}
	p.addPod("here", "node1", nodes["nftables"].Pods[0], app) // both have the same addresses
	p.addPod("there", "node2", nodes["nftables"].RemotePods[0], app)
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

// hereIsNoEndpoint requires that the only endpoint is on the other node.
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
		now.Spec.IPFamilyPolicy = ptr(corev1.IPFamilyPolicySingleStack)
		now.Spec.IPFamilies = now.Spec.IPFamilies[:1]
		now.Spec.ClusterIPs = now.Spec.ClusterIPs[:1]
		_, err := p.client.CoreV1().Services("default").Update(p.t.Context(), now,
			metav1.UpdateOptions{})
		return err == nil
	}, patience, 20*time.Millisecond, fmt.Sprintf("%s in one family", s.Name))
}
