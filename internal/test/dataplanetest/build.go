package dataplanetest

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/kernlb/kernlb/dataplane/dataplanetest/scenario"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/servicemodel"
)

// Addresses that scenarios use, by family: first IPv4, then IPv6.
var (
	clusterIP  = pair("10.96.0.10", "fd00:10:96::10")
	clusterIP2 = pair("10.96.0.20", "fd00:10:96::20")
	unusedIP   = pair("10.96.0.99", "fd00:10:96::99")
	lbIP       = pair("203.0.113.10", "2001:db8:113::10")
	externalIP = pair("203.0.113.20", "2001:db8:113::20")
	nodeIP     = pair(netnstest.Net.NodeIPv4, netnstest.Net.NodeIPv6)
	nodeIP2    = pair(netnstest.Net.NodeSecondaryIPv4, netnstest.Net.NodeSecondaryIPv6)
)

const (
	servicePort uint16 = 80
	nodePort    uint16 = 30080
)

func pair(v4, v6 string) [2]netip.Addr {
	return [2]netip.Addr{netip.MustParseAddr(v4), netip.MustParseAddr(v6)}
}

var (
	protocols = []servicemodel.Protocol{servicemodel.TCP, servicemodel.UDP, servicemodel.SCTP}
	families  = []int{0, 1}
)

// thisNode is the node's view from which scenarios start: all options have their defaults.
func thisNode() servicemodel.Node {
	return servicemodel.Node{Name: "this", Zone: "zone-a", Addresses: []netip.Addr{nodeIP[0],
		nodeIP[1]}}
}

// podCIDRs returns a node that recognizes the pods of the cluster by their addresses.
func podCIDRs(n servicemodel.Node) servicemodel.Node {
	n.LocalPods.CIDRs = prefixes(netnstest.Net.ClusterCIDRv4, netnstest.Net.ClusterCIDRv6)
	return n
}

func prefixes(l ...string) (out []netip.Prefix) {
	for _, s := range l {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

// web is a service with a port of each protocol, a cluster IP, a load-balancer IP, an external IP
// and a node port, in both families.
func web(edit ...func(*servicemodel.Service)) *servicemodel.Service {
	s := &servicemodel.Service{Name: servicemodel.Name{Namespace: "default", Name: "web"},
		ClusterIPs: clusterIP[:], ExternalIPs: externalIP[:]}
	for _, a := range lbIP {
		s.LoadBalancerIPs = append(s.LoadBalancerIPs, servicemodel.LoadBalancerIP{Addr: a})
	}
	for _, p := range protocols {
		s.Ports = append(s.Ports, servicemodel.ServicePort{Name: p.String(), Protocol: p,
			Port: servicePort, NodePort: nodePort})
	}

	for _, f := range edit {
		f(s)
	}
	return s
}

// named changes the name and the cluster IPs of a service, and removes its other addresses.
func named(name string, ips [2]netip.Addr) func(*servicemodel.Service) {
	return func(s *servicemodel.Service) {
		s.Name.Name = name
		s.ClusterIPs, s.ExternalIPs, s.LoadBalancerIPs = ips[:], nil, nil
		atNodePort(0)(s)
	}
}

// atNodePort changes the node port of all ports.
func atNodePort(port uint16) func(*servicemodel.Service) {
	return func(s *servicemodel.Service) {
		for i := range s.Ports {
			s.Ports[i].NodePort = port
		}
	}
}

func externalLocal(s *servicemodel.Service) { s.ExternalTrafficPolicy = servicemodel.PolicyLocal }
func internalLocal(s *servicemodel.Service) { s.InternalTrafficPolicy = servicemodel.PolicyLocal }

// eps are endpoints of both families on hosts of the fixture: "pod1" to "pod3" on this node,
// "remote1" and "remote2" on the other, "node" itself.
func eps(hosts ...string) []servicemodel.Endpoint {
	var l []servicemodel.Endpoint
	for _, h := range hosts {
		for _, a := range hostAddrs(h) {
			e := servicemodel.Endpoint{Addr: a, Node: nodeOf(h)}
			for _, p := range protocols {
				e.Ports = append(e.Ports, servicemodel.EndpointPort{Name: p.String(), Protocol: p,
					Port: scenario.PortA})
			}

			l = append(l, e)
		}
	}

	return l
}

// each edits every endpoint of a list.
func each(l []servicemodel.Endpoint, edit func(*servicemodel.Endpoint)) []servicemodel.Endpoint {
	for i := range l {
		edit(&l[i])
	}
	return l
}

// listening has endpoints listen on a port.
func listening(port uint16) func(*servicemodel.Endpoint) {
	return func(e *servicemodel.Endpoint) {
		for i := range e.Ports {
			e.Ports[i].Port = port
		}
	}
}

func terminating(e *servicemodel.Endpoint) { e.Condition = servicemodel.Serving }
func notReady(e *servicemodel.Endpoint)    { e.Condition = servicemodel.NotReady }

func hostAddrs(h string) [2]netip.Addr {
	switch h {
	case "pod1", "pod2", "pod3":
		n := h[3:]
		return pair("10.244.1."+n, "fd00:10:244:1::"+n)
	case "remote1", "remote2":
		n := h[6:]
		return pair("10.244.2."+n, "fd00:10:244:2::"+n)
	case "node":
		return nodeIP
	}

	panic("no endpoint on host " + h)
}

func nodeOf(h string) string {
	if h[0] == 'r' {
		return "other"
	}
	return "this"
}

// state is a state of one service, or of several, each followed by its endpoints.
func state(n servicemodel.Node, svc *servicemodel.Service,
	endpoints []servicemodel.Endpoint) servicemodel.State {
	return and(servicemodel.State{}.WithNode(n), svc, endpoints)
}

func and(s servicemodel.State, svc *servicemodel.Service,
	endpoints []servicemodel.Endpoint) servicemodel.State {
	return s.WithService(svc).WithEndpoints(svc.Name, endpoints)
}

// to returns a Want: these hosts may answer, on PortA, or these servers.
func to(m scenario.Masquerade, hosts ...string) scenario.Want {
	w := scenario.Want{Outcome: servicemodel.Balanced, Masquerade: m}
	for _, h := range hosts {
		if !strings.Contains(h, "/") {
			h = serverName(h, scenario.PortA)
		}
		w.Servers = append(w.Servers, h)
	}

	return w
}

// reaches wants an answer of these hosts, which see the client's own address.
func reaches(hosts ...string) scenario.Want { return to(scenario.OwnSource, hosts...) }

// masqueraded wants an answer of these hosts, which see the node's address.
func masqueraded(hosts ...string) scenario.Want { return to(scenario.NodeSource, hosts...) }

var (
	rejected  = scenario.Want{Outcome: servicemodel.Rejected}
	dropped   = scenario.Want{Outcome: servicemodel.Dropped}
	untouched = scenario.Want{Outcome: servicemodel.Untouched}
)

// target is an address of each family, and a port.
type target struct {
	addrs [2]netip.Addr
	port  uint16
}

func at(v4, v6 string, port uint16) target { return target{pair(v4, v6), port} }

// on is another port of the same addresses.
func (t target) on(port uint16) target { return target{t.addrs, port} }

// The addresses of the service, and of a second service.
var (
	cluster      = target{clusterIP, servicePort}
	cluster2     = target{clusterIP2, servicePort}
	unused       = target{unusedIP, servicePort}
	loadBalancer = target{lbIP, servicePort}
	external     = target{externalIP, servicePort}
	nodePorts    = target{nodeIP, nodePort}
)

// everywhere has all addresses of the service.
var everywhere = []target{cluster, loadBalancer, external, nodePorts}

// way is a way to a service: connections from a host to an address.
type way struct {
	from  string
	proto servicemodel.Protocol
	to    netip.AddrPort
}

func (y way) String() string { return fmt.Sprintf("%s from %s to %s", y.proto, y.from, y.to) }

// ways returns all ways from hosts to targets, over all tested protocols of the backend.
func (w *world) ways(from []string, targets ...target) (l []way) {
	for _, host := range from {
		for _, t := range targets {
			for _, addr := range t.addrs {
				for _, p := range w.under.protocols() {
					l = append(l, way{host, p, netip.AddrPortFrom(addr, t.port)})
				}
			}
		}
	}

	return l
}

// overTCP is the way over TCP from pod1 to a target, in a family.
func overTCP(t target, family int) way {
	return way{"pod1", servicemodel.TCP, netip.AddrPortFrom(t.addrs[family], t.port)}
}

// probe is a packet on this way. An emulated machine may need longer for the answer than a probe
// waits, and SCTP repeats nothing.
func (w *world) probe(y way) netnstest.Probe {
	p := netnstest.Probe{From: w.hosts[y.from], Proto: y.proto, To: y.to}
	if y.proto == servicemodel.SCTP && os.Getenv("KERNLB_VM") != "" {
		p.Timeout = time.Second
	}
	return p
}

// ask returns the same check for all protocols and families.
func ask(from string, t target, want scenario.Want) []scenario.Check {
	var l []scenario.Check
	for _, addr := range t.addrs {
		for _, p := range protocols {
			l = append(l, scenario.Check{From: from, Proto: p, To: netip.AddrPortFrom(addr, t.port),
				Want: want})
		}
	}

	return l
}

// weighted gives weights to the endpoints of hosts, in the order of the hosts.
func weighted(l []servicemodel.Endpoint, weights ...uint16) []servicemodel.Endpoint {
	for i := range l {
		l[i].Weight = weights[i/len(families)]
	}
	return l
}

// sourceRanges restricts a service.
func sourceRanges(ranges ...string) func(*servicemodel.Service) {
	return func(s *servicemodel.Service) { s.LoadBalancerSourceRanges = prefixes(ranges...) }
}
