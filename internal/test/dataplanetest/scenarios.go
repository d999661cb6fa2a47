package dataplanetest

import (
	_ "embed" // scenarios
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/servicemodel"
)

//go:embed scenarios.txt
var scenarioText string

// options are functions that change something, by their names in scenarios.txt. A name may have an
// argument after "=".
type options[T any] map[string]func(x *T, arg string)

// set sets options.
func (o options[T]) set(x *T, words []string) {
	for _, w := range words {
		name, arg, _ := strings.Cut(w, "=")
		if o[name] == nil {
			panic("scenarios.txt: no option " + w)
		}
		o[name](x, arg)
	}
}

var nodeOptions = options[servicemodel.Node]{
	"podCIDRs": func(n *servicemodel.Node, _ string) { *n = podCIDRs(*n) },
	"serviceCIDRs": func(n *servicemodel.Node, _ string) {
		n.ServiceCIDRs = prefixes(netnstest.Net.ServiceCIDRv4, netnstest.Net.ServiceCIDRv6)
	},
	"nodePorts": func(n *servicemodel.Node, cidrs string) {
		n.NodePortAddresses.CIDRs = prefixes(strings.Split(cidrs, ",")...)
	},
	"primaryOnly":   func(n *servicemodel.Node, _ string) { n.NodePortAddresses.Primary = true },
	"firstAddress":  func(n *servicemodel.Node, _ string) { n.Addresses = n.Addresses[:1] },
	"otherMark":     func(n *servicemodel.Node, _ string) { n.MasqueradeMark = 1 << 31 },
	"masqueradeAll": func(n *servicemodel.Node, _ string) { n.MasqueradeAll = true },
	"neighbours":    func(n *servicemodel.Node, _ string) { n.MasqueradeNeighbours = true },
	"localhost":     func(n *servicemodel.Node, _ string) { n.LocalhostNodePorts = true },
	"answers":       func(n *servicemodel.Node, by string) { n.NoEndpoints, n.Forbidden = by, by },
	"family": func(n *servicemodel.Node, name string) {
		n.OnlyFamily = servicemodel.IPv4
		if name == "ipv6" {
			n.OnlyFamily = servicemodel.IPv6
		}
	},
}

var serviceOptions = options[servicemodel.Service]{
	"externalLocal": func(s *servicemodel.Service, _ string) { externalLocal(s) },
	"internalLocal": func(s *servicemodel.Service, _ string) { internalLocal(s) },
	"externalCluster": func(s *servicemodel.Service, _ string) {
		s.ExternalTrafficPolicy = servicemodel.PolicyCluster
	},
	// Services with another name have the first or the second cluster IPs only.
	"first":       func(s *servicemodel.Service, name string) { named(name, clusterIP)(s) },
	"second":      func(s *servicemodel.Service, name string) { named(name, clusterIP2)(s) },
	"clusterIPv4": func(s *servicemodel.Service, _ string) { s.ClusterIPs = s.ClusterIPs[:1] },
	"firstPort":   func(s *servicemodel.Service, _ string) { s.Ports = s.Ports[:1] },
	"twoPorts": func(s *servicemodel.Service, _ string) {
		s.Ports = []servicemodel.ServicePort{
			{Name: "http", Protocol: servicemodel.TCP, Port: 80},
			{Name: "https", Protocol: servicemodel.TCP, Port: 443},
		}
	},
	"nodePort": func(s *servicemodel.Service, port string) { atNodePort(number(port))(s) },
	// The node's own addresses. The ports become the node ports of the other service.
	"atNodePorts": func(s *servicemodel.Service, _ string) {
		s.ExternalIPs = nodeIP[:]
		for i := range s.Ports {
			s.Ports[i].Port = nodePort
		}
	},
	"atSecondAddress": func(s *servicemodel.Service, _ string) {
		named("web", clusterIP)(s)
		s.ClusterIPs, s.HostIPs = nil, nodeIP2[:]
	},
	"atLoopback": func(s *servicemodel.Service, _ string) {
		s.HostIPs = []netip.Addr{netip.MustParseAddr("127.0.0.2")}
	},
	"externalIPs":     func(s *servicemodel.Service, _ string) { s.ExternalIPs = externalIP[:] },
	"claimsClusterIP": func(s *servicemodel.Service, _ string) { s.ExternalIPs = clusterIP[:] },
	"proxied": func(s *servicemodel.Service, _ string) {
		for i := range s.LoadBalancerIPs {
			s.LoadBalancerIPs[i].Proxy = true
		}
	},
	"ranges": func(s *servicemodel.Service, l string) { sourceRanges(strings.Split(l, ",")...)(s) },
	"masquerade": func(s *servicemodel.Service, policy string) {
		s.Masquerade = servicemodel.MasqueradeAt(map[string]servicemodel.MasqueradePolicy{
			"always": servicemodel.MasqueradeAlways, "never": servicemodel.MasqueradeNever,
			"not-pods": servicemodel.MasqueradeNotPods, "host": servicemodel.MasqueradeHost,
		}[policy])
	},
}

var endpointOptions = options[servicemodel.Endpoint]{
	"terminating":         func(e *servicemodel.Endpoint, _ string) { terminating(e) },
	"notReady":            func(e *servicemodel.Endpoint, _ string) { notReady(e) },
	"terminatingButReady": func(e *servicemodel.Endpoint, _ string) { e.Terminating = true },
	"quiesced":            func(e *servicemodel.Endpoint, _ string) { e.Quiesced = true },
	"forNode":             func(e *servicemodel.Endpoint, n string) { e.ForNodes = []string{n} },
	"forZone":             func(e *servicemodel.Endpoint, z string) { e.ForZones = []string{z} },
	"port":                func(e *servicemodel.Endpoint, p string) { listening(number(p))(e) },
	"firstPort":           func(e *servicemodel.Endpoint, _ string) { e.Ports = e.Ports[:1] },
	"twoPorts": func(e *servicemodel.Endpoint, _ string) {
		e.Ports = []servicemodel.EndpointPort{
			{Name: "http", Protocol: servicemodel.TCP, Port: PortA},
			{Name: "https", Protocol: servicemodel.TCP, Port: PortB},
		}
	},
	"ipv4": func(e *servicemodel.Endpoint, _ string) {
		if e.Addr.Is6() {
			e.Addr = netip.Addr{} // the endpoint is left out
		}
	},
}

// targets are the targets of scenarios.txt. Hosts are targets, too, at PortA.
var targets = map[string][]target{
	"cluster": {cluster}, "cluster2": {cluster2}, "unused": {unused}, "external": {external},
	"loadBalancer": {loadBalancer}, "nodePorts": {nodePorts}, "everywhere": everywhere,
	"nodePorts2": {{nodeIP2, nodePort}},
	"nodePortsOutside": {at(netnstest.Net.NodeOutsideIPv4, netnstest.Net.NodeOutsideIPv6,
		nodePort)},
	"nodePortsUnderlay": {at(netnstest.Net.NodeUnderlayIPv4, netnstest.Net.NodeUnderlayIPv6,
		nodePort)},
	"nodePortsLoopback": {at("127.0.0.1", "::1", nodePort)},
	"loopback":          {at("127.0.0.2", "::1", servicePort)},
	"firstAddress":      {{nodeIP, servicePort}},
	"secondAddress":     {{nodeIP2, servicePort}},
	"nowhere":           {at("203.0.113.99", "2001:db8:113::99", servicePort)},
}

// outcomes are the outcomes of scenarios.txt, before the hosts that may answer.
var outcomes = map[string]func(hosts ...string) Want{
	"reaches": reaches, "masqueraded": masqueraded,
	"reaches-or-masqueraded": func(hosts ...string) Want { return to(AnySource, hosts...) },
	"rejected":               func(...string) Want { return rejected },
	"reset": func(...string) Want {
		return Want{Outcome: servicemodel.Rejected, Reset: true}
	},
	"dropped":   func(...string) Want { return dropped },
	"untouched": func(...string) Want { return untouched },
}

// written returns the scenarios of scenarios.txt.
func written() (l []Scenario) {
	for line := range strings.Lines(scenarioText) {
		words, after := cutWords(line)
		if len(words) == 0 || line[0] == '#' {
			continue
		}
		if line[0] == '[' {
			row, name, _ := strings.Cut(strings.TrimSpace(line[1:]), "] ")
			l = append(l, Scenario{Name: name, Line: row})
			continue
		}
		s := &l[len(l)-1]
		step := len(s.Steps) - 1
		switch isCheck := strings.HasPrefix(line, "    "); {
		case isCheck:
			want := outcomes[after[0]](after[1:]...)
			for from := range strings.SplitSeq(words[0], ",") {
				for _, t := range words[1:] {
					s.Steps[step].Checks = append(s.Steps[step].Checks,
						writtenChecks(from, t, want)...)
				}
			}
		case words[0] == "bridge":
			s.Options.Bridge = words[1]
		case words[0] == "node":
			n := thisNode()
			nodeOptions.set(&n, words[1:])
			s.Steps = append(s.Steps, Step{State: servicemodel.State{}.WithNode(n)})
		case words[0] == "service":
			svc := web()
			serviceOptions.set(svc, words[1:])
			s.Steps[step].State = and(s.Steps[step].State, svc, writtenEndpoints(after))
		default:
			panic("scenarios.txt: " + line)
		}
	}
	return l
}

// cutWords returns the words of a line before ": ", or a colon at its end, and those after it.
func cutWords(line string) (before, after []string) {
	a, b, _ := strings.Cut(strings.TrimSpace(line)+" ", ": ")
	return strings.Fields(a), strings.Fields(b)
}

// writtenEndpoints are endpoints such as "pod2+terminating".
func writtenEndpoints(words []string) (l []servicemodel.Endpoint) {
	for _, w := range words {
		part := strings.Split(w, "+")
		l = append(l, each(eps(part[0]), func(e *servicemodel.Endpoint) {
			endpointOptions.set(e, part[1:])
		})...)
	}
	return slices.DeleteFunc(l, func(e servicemodel.Endpoint) bool { return !e.Addr.IsValid() })
}

// writtenChecks are the checks from a host to a target such as "cluster:81/ipv4/tcp".
func writtenChecks(from, to string, want Want) (checks []Check) {
	part := strings.Split(to, "/")
	name, port, _ := strings.Cut(part[0], ":")
	l := targets[name]
	if l == nil {
		l = []target{{hostAddrs(name), PortA}}
	}
	for _, t := range l {
		if port != "" {
			t = t.on(number(port))
		}
		checks = append(checks, ask(from, t, want)...)
	}
	return slices.DeleteFunc(checks, func(c Check) bool {
		is := []string{c.Proto.String(), servicemodel.FamilyOf(c.To.Addr()).String()}
		return slices.ContainsFunc(part[1:], func(p string) bool {
			return !slices.ContainsFunc(is, func(s string) bool { return strings.EqualFold(s, p) })
		})
	})
}

func number(s string) uint16 {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil {
		panic(fmt.Sprintf("scenarios.txt: %v", err))
	}
	return uint16(n)
}
