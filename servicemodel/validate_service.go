package servicemodel

import (
	"fmt"
	"slices"
	"time"
)

// checkService checks a service.
func (p *problems) checkService(s *Service) {
	p.service, p.object = s.Name, func() string { return "service " + s.Name.String() }
	p.checkName(s.Name)
	p.checkPorts(s)
	p.checkClusterIPs(s)
	for i, a := range s.ExternalIPs {
		p.checkAddr("externalIPs", i, "", a, routable)
	}
	for i, a := range s.HostIPs {
		p.checkAddr("hostIPs", i, "", a, ofHost)
	}
	for i, lb := range s.LoadBalancerIPs {
		p.checkAddr("loadBalancerIPs", i, "addr", lb.Addr, anyUnicast)
		if lb.Mode > LoadBalancerProxy {
			p.add(path("loadBalancerIPs", i, "mode"), uint8(lb.Mode),
				"unknown load balancer IP mode")
		}
	}
	p.checkRanges("loadBalancerSourceRanges", s.LoadBalancerSourceRanges)
	p.checkAffinity(s.SessionAffinity)
	if s.InternalTrafficPolicy > PolicyLocal {
		p.add("internalTrafficPolicy", uint8(s.InternalTrafficPolicy), "unknown traffic policy")
	}
	if s.ExternalTrafficPolicy > PolicyLocal {
		p.add("externalTrafficPolicy", uint8(s.ExternalTrafficPolicy), "unknown traffic policy")
	}
	p.checkMasquerade(&s.Masquerade)
	if !s.Scheduler.known() {
		p.add("scheduler", quote(string(s.Scheduler)), "unknown scheduler")
	}
	if s.Forwarding > ForwardTunnel {
		p.add("forwarding", uint8(s.Forwarding), "unknown forwarding method")
	}
	if e := s.Connections.problem(); e != nil {
		p.add("connections."+e.Field, e.Value, e.Reason)
	}
}

func (p *problems) checkMasquerade(m *Masquerade) {
	for _, f := range [...]struct {
		field  string
		policy MasqueradePolicy
	}{
		{"clusterIPs", m.ClusterIPs}, {"loadBalancerIPs", m.LoadBalancerIPs},
		{"externalIPs", m.ExternalIPs}, {"hostIPs", m.HostIPs}, {"nodePorts", m.NodePorts},
	} {
		if f.policy > MasqueradeNever {
			p.add("masquerade."+f.field, uint8(f.policy), "unknown masquerade policy")
		}
	}
}

func (p *problems) checkPorts(s *Service) {
	for i := range s.Ports {
		port := &s.Ports[i]
		if port.Name == "" && len(s.Ports) > 1 {
			p.add(path("ports", i, "name"), nil, "required if there is more than one port")
		} else if reason := checkText(port.Name); reason != "" {
			p.add(path("ports", i, "name"), quote(port.Name), reason)
		}
		if !port.Protocol.Valid() {
			p.add(path("ports", i, "protocol"), uint8(port.Protocol), "must be TCP, UDP or SCTP")
		}
		if port.Port == 0 {
			p.add(path("ports", i, "port"), 0, "must not be zero")
		}
		if s.ExternalTrafficPolicy == PolicyLocal && port.Protocol == TCP && port.NodePort != 0 &&
			port.NodePort == s.HealthCheckNodePort {
			p.add("healthCheckNodePort", s.HealthCheckNodePort,
				fmt.Sprintf("is also the node port of ports[%d]", i))
		}
	}
	type number struct {
		protocol Protocol
		port     uint16
	}
	for i, first := range repeats(len(s.Ports), func(i int) (string, bool) {
		return s.Ports[i].Name, s.Ports[i].Name != ""
	}) {
		p.add(path("ports", i, "name"), quote(s.Ports[i].Name),
			fmt.Sprintf("is also the name of ports[%d]", first))
	}
	for i, first := range repeats(len(s.Ports), func(i int) (number, bool) {
		return number{s.Ports[i].Protocol, s.Ports[i].Port}, s.Ports[i].Port != 0
	}) {
		p.add(path("ports", i, "port"), s.Ports[i].Port,
			fmt.Sprintf("is also the port of ports[%d], with the same protocol", first))
	}
	for i, first := range repeats(len(s.Ports), func(i int) (number, bool) {
		return number{s.Ports[i].Protocol, s.Ports[i].NodePort}, s.Ports[i].NodePort != 0
	}) {
		reason := fmt.Sprintf("is also the node port of ports[%d], with the same protocol", first)
		p.add(path("ports", i, "nodePort"), s.Ports[i].NodePort, reason)
	}
}

func (p *problems) checkClusterIPs(s *Service) {
	for i, a := range s.ClusterIPs {
		p.checkAddr("clusterIPs", i, "", a, anyUnicast)
	}
	for i, first := range repeats(len(s.ClusterIPs), func(i int) (Family, bool) {
		return FamilyOf(s.ClusterIPs[i]), s.ClusterIPs[i].IsValid()
	}) {
		p.add(path("clusterIPs", i, ""), s.ClusterIPs[i],
			fmt.Sprintf("is of the same family as clusterIPs[%d]; at most one is allowed", first))
	}
}

func (p *problems) checkAffinity(a SessionAffinity) {
	switch d := a.Timeout; {
	case !a.ClientIP || d == 0:
	case d < time.Second || d > MaxAffinityTimeout:
		p.add("sessionAffinity.timeout", d, fmt.Sprintf("must be between 1s and %v",
			MaxAffinityTimeout))
	case d%time.Second != 0:
		p.add("sessionAffinity.timeout", d, "must be whole seconds")
	}
}

// known reports whether s is one of the schedulers that have a name here.
func (s Scheduler) known() bool {
	name, port, fallback := s.Split()
	if port || fallback {
		return slices.Contains(hashing, name)
	}
	return s == SchedulerDefault || s == Random || slices.Contains(schedulers, s) ||
		slices.Contains(hashing, s)
}

// checkEndpoints checks a service's endpoints, and the name if nobody else does.
func (p *problems) checkEndpoints(name Name, eps []Endpoint, checkName bool) {
	p.service, p.object = name, func() string { return "endpoints " + name.String() }
	if checkName && len(eps) > 0 {
		p.checkName(name)
	}
	var checked []EndpointPort
	for i := range eps {
		e := &eps[i]
		p.checkAddr("endpoints", i, "addr", e.Addr, routable)
		if len(e.Ports) == 0 || len(e.Ports) == len(checked) && &e.Ports[0] == &checked[0] {
			continue // endpoints that share their ports share their problems
		}
		checked = e.Ports
		p.checkEndpointPorts(i, e.Ports)
	}
}

// checkEndpointPorts checks the ports of endpoint e.
func (p *problems) checkEndpointPorts(e int, ports []EndpointPort) {
	field := func(i int, name string) string { return path(path("endpoints", e, "ports"), i, name) }
	for i := range ports {
		port := &ports[i]
		if reason := checkText(port.Name); reason != "" {
			p.add(field(i, "name"), quote(port.Name), reason)
		}
		if !port.Protocol.Valid() {
			p.add(field(i, "protocol"), uint8(port.Protocol), "must be TCP, UDP or SCTP")
		}
		if port.Port == 0 {
			p.add(field(i, "port"), 0, "must not be zero")
		}
	}
	type identity struct {
		name     string
		protocol Protocol
	}
	for i, first := range repeats(len(ports), func(i int) (identity, bool) {
		return identity{ports[i].Name, ports[i].Protocol}, true
	}) {
		p.add(field(i, "name"), quote(ports[i].Name),
			fmt.Sprintf("is also the name of ports[%d], with the same protocol", first))
	}
}
