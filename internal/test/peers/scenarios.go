package main

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/test/peers/serve"
	"github.com/kernlb/kernlb/servicemodel"
)

// scenario is a service whose packets are compared.
type scenario struct {
	name string
	// told says that pods are told by the cluster's CIDRs.
	told bool
	// sticky says that a client stays with an endpoint that was chosen by chance. Any endpoint is
	// right.
	sticky bool
	change *serve.Change
	checks []check
}

// check is a packet from a host to an address of the service, or near one.
type check struct {
	from  string
	proto servicemodel.Protocol
	to    netip.AddrPort
	what  string // the kind of destination
}

// Addresses of the service, by family.
var (
	clusterIPs  = addrs("10.96.0.10", "fd00:10:96::10")
	unusedIPs   = addrs("10.96.0.99", "fd00:10:96::99")
	lbIPs       = addrs("203.0.113.10", "2001:db8:113::10")
	externalIPs = addrs("203.0.113.20", "2001:db8:113::20")
	nodeIPList  = addrs(netnstest.Net.NodeIPv4, netnstest.Net.NodeIPv6)
	secondIPs   = addrs(netnstest.Net.NodeSecondaryIPv4, netnstest.Net.NodeSecondaryIPv6)
)

// The node ports of TCP and UDP.
const (
	nodePortTCP = 30080
	nodePortUDP = 30081
)

func addrs(l ...string) (out []netip.Addr) {
	for _, s := range l {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

func prefixes(l ...string) (out []netip.Prefix) {
	for _, s := range l {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

// layout says where the service has endpoints.
type layout struct {
	name  string
	hosts []string
	edit  func(*endpoint)
}

var layouts = []layout{
	{"endpoints here and elsewhere", []string{"pod2", "pod3", "remote1"}, nil},
	{"endpoints elsewhere only", []string{"remote1", "remote2"}, nil},
	{"no endpoints", nil, nil},
	{"endpoints not ready", []string{"pod2", "remote1"}, func(e *endpoint) {
		e.ready, e.serving = false, false
	}},
	{"endpoints terminating but serving", []string{"pod2", "remote1"}, func(e *endpoint) {
		e.ready, e.terminating = false, true
	}},
	{"terminating here, ready elsewhere", []string{"pod2", "remote1"}, func(e *endpoint) {
		if e.node == serve.NodeName {
			e.ready, e.terminating = false, true
		}
	}},
}

// policy has the traffic policies and other options of the service.
type policy struct {
	name string
	edit func(*corev1.ServiceSpec)
}

var policies = []policy{
	{"policies Cluster", func(*corev1.ServiceSpec) {}},
	{"external policy Local", func(s *corev1.ServiceSpec) {
		s.ExternalTrafficPolicy, s.HealthCheckNodePort = corev1.ServiceExternalTrafficPolicyLocal,
			32000
	}},
	{"internal policy Local", func(s *corev1.ServiceSpec) {
		local := corev1.ServiceInternalTrafficPolicyLocal
		s.InternalTrafficPolicy = &local
	}},
	{"source ranges", func(s *corev1.ServiceSpec) {
		s.LoadBalancerSourceRanges = []string{"198.51.100.11/32", "2001:db8:51::b/128"}
	}},
	{"ClientIP affinity", func(s *corev1.ServiceSpec) {
		s.SessionAffinity, s.SessionAffinityConfig = corev1.ServiceAffinityClientIP,
			&corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{}}
		seconds := int32(10800)
		s.SessionAffinityConfig.ClientIP.TimeoutSeconds = &seconds
	}},
}

// scenarios returns all combinations of policies and layouts, with and without ranges of pods.
func scenarios(c *netnstest.Cluster) []scenario {
	var l []scenario
	for _, told := range []bool{false, true} {
		for _, p := range policies {
			for _, where := range layouts {
				l = append(l, newScenario(c, told, p, where))
			}
		}
	}

	return l
}

func newScenario(c *netnstest.Cluster, told bool, p policy, where layout) scenario {
	pods := "pods not told"
	if told {
		pods = "pods by CIDR"
	}
	const name = "web"
	both := ports(corev1.ProtocolTCP, corev1.ProtocolUDP)
	both[0].NodePort, both[1].NodePort = nodePortTCP, nodePortUDP
	s := newService(name, clusterIPs, both)
	s.Spec.Type = corev1.ServiceTypeLoadBalancer
	s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
	for i := range lbIPs {
		s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, externalIPs[i].String())
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress,
			corev1.LoadBalancerIngress{IP: lbIPs[i].String()})
	}

	p.edit(&s.Spec)
	var eps []endpoint
	for _, h := range c.Hosts() {
		if !slices.Contains(where.hosts, h.Name) {
			continue
		}
		for _, a := range []netip.Addr{h.IPv4, h.IPv6} {
			e := endpoint{addr: a, node: "other", ready: true, serving: true}
			if strings.HasPrefix(h.Name, "pod") {
				e.node = serve.NodeName
			}
			if where.edit != nil {
				where.edit(&e)
			}
			eps = append(eps, e)
		}
	}

	sc := scenario{name: fmt.Sprintf("%s, %s, %s", p.name, where.name, pods), told: told,
		sticky: s.Spec.SessionAffinity != corev1.ServiceAffinityNone,
		change: &serve.Change{Services: []*corev1.Service{s}}}
	for _, is4 := range []bool{true, false} {
		sc.change.Slices = append(sc.change.Slices, newSlice(name, is4, both, eps))
	}
	sc.checks = checks()
	if sc.sticky { // a pod may get itself as its endpoint, by chance
		sc.checks = slices.DeleteFunc(sc.checks, func(c check) bool { return c.from == "pod2" })
	}
	return sc
}

// checks returns all ways to the service: pod2 is itself an endpoint in some layouts.
func checks() []check {
	var l []check
	for f := range clusterIPs {
		for _, proto := range []servicemodel.Protocol{servicemodel.TCP, servicemodel.UDP} {
			nodePort := uint16(nodePortTCP)
			if proto == servicemodel.UDP {
				nodePort = nodePortUDP
			}
			for _, d := range []struct {
				what string
				to   netip.AddrPort
			}{
				{"cluster IP", netip.AddrPortFrom(clusterIPs[f], servicePort)},
				{"another port of the cluster IP", netip.AddrPortFrom(clusterIPs[f],
					servicePort+1)},
				{"an unused address of the service range", netip.AddrPortFrom(unusedIPs[f],
					servicePort)},
				{"load-balancer IP", netip.AddrPortFrom(lbIPs[f], servicePort)},
				{"another port of the load-balancer IP",
					netip.AddrPortFrom(lbIPs[f], servicePort+1)},
				{"external IP", netip.AddrPortFrom(externalIPs[f], servicePort)},
				{"node port", netip.AddrPortFrom(nodeIPList[f], nodePort)},
				{"node port at the node's other address", netip.AddrPortFrom(secondIPs[f],
					nodePort)},
			} {
				for _, from := range []string{"pod1", "pod2", "node", "outside1", "outside2"} {
					l = append(l, check{from: from, proto: proto, to: d.to, what: d.what})
				}
			}
		}
	}

	return l
}
