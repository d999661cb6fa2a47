package servicemodel

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// Validate checks the service alone, as [State.Validate] does.
func (s *Service) Validate() error {
	var p problems
	p.checkService(s)
	return errors.Join(p.found...)
}

// Validate checks the endpoint alone, as [State.Validate] does. Its fields are named "addr",
// "ports[0].port" and so on. The errors name no service.
func (e *Endpoint) Validate() error {
	p := problems{object: func() string { return "endpoint " + e.Addr.String() }}
	p.checkEndpoints([]Endpoint{*e}, false)
	return errors.Join(p.found...)
}

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
	}
	p.checkRanges("loadBalancerSourceRanges", s.LoadBalancerSourceRanges)
	p.checkAffinity(s.SessionAffinity)
	checkWord(p, "internalTrafficPolicy", s.InternalTrafficPolicy, PolicyLocal)
	checkWord(p, "externalTrafficPolicy", s.ExternalTrafficPolicy, PolicyLocal)
	checkWord(p, "prefer", s.Prefer, preferNode, preferZone)
	if s.Prefer != "" && !s.Scheduler.weighs() {
		p.add("prefer", quote(s.Prefer), notWeighed(s.Scheduler))
	}
	p.checkSlowStart(s)
	p.checkMasquerade(&s.Masquerade)
	if !s.Scheduler.known() {
		p.add("scheduler", quote(string(s.Scheduler)), "unknown scheduler")
	}
	checkWord(p, "forwarding", s.Forwarding, ForwardDirect, ForwardTunnel)
	if e := s.Connections.problem(); e != nil {
		p.add("connections."+e.Field, e.Value, e.Reason)
	}
}

// notWeighed is the reason why a field cannot be combined with a scheduler.
func notWeighed(s Scheduler) string {
	return fmt.Sprintf("works by weights, and the scheduler %s does not follow weights", s)
}

// checkWord checks a field whose value must be empty, which means its default, or one of the words.
func checkWord[T ~string](p *problems, field string, value T, words ...T) {
	if value != "" && !slices.Contains(words, value) {
		last := len(words) - 1
		all := string(words[last])
		if last > 0 {
			all = list(words[:last], ", ") + " or " + all
		}
		p.add(field, quote(string(value)), "must be "+all+", or empty for the default")
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
		checkWord(p, "masquerade."+f.field, f.policy, masqueradePolicies...)
	}
}

func (p *problems) checkPorts(s *Service) {
	for i := range s.Ports {
		port := &s.Ports[i]
		if port.Name == "" && len(s.Ports) > 1 {
			p.add(path("ports", i, "name"), nil, "required if there is more than one port")
		} else if reason := textProblem(port.Name); reason != "" {
			p.add(path("ports", i, "name"), quote(port.Name), reason)
		} else if n := len(PortName{Name: s.Name, Port: port.Name}.String()); n > maxPortName {
			p.add(path("ports", i, "name"), quote(port.Name), fmt.Sprintf("with the service's "+
				"namespace and name it has %d bytes, and may have %d", n, maxPortName))
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
	for i, first := range repeats(len(s.Ports), func(i int) (string, bool) {
		return s.Ports[i].Name, s.Ports[i].Name != ""
	}) {
		p.add(path("ports", i, "name"), quote(s.Ports[i].Name),
			fmt.Sprintf("is also the name of ports[%d]", first))
	}
	for _, number := range [...]struct {
		field, name string
		of          func(*ServicePort) uint16
	}{
		{"port", "port", func(p *ServicePort) uint16 { return p.Port }},
		{"nodePort", "node port", func(p *ServicePort) uint16 { return p.NodePort }},
	} {
		for i, first := range repeats(len(s.Ports), func(i int) (EndpointPort, bool) {
			n := number.of(&s.Ports[i])
			return EndpointPort{Protocol: s.Ports[i].Protocol, Port: n}, n != 0
		}) {
			p.add(path("ports", i, number.field), number.of(&s.Ports[i]), fmt.Sprintf(
				"is also the %s of ports[%d], with the same protocol", number.name, first))
		}
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
	if !a.ClientIP {
		return
	}
	for _, f := range [...]struct {
		field      string
		bits, most uint8
	}{{"bits4", a.Bits4, 32}, {"bits6", a.Bits6, 128}} {
		if f.bits > f.most {
			p.add("sessionAffinity."+f.field, f.bits, fmt.Sprintf("must be between 1 and %d, or 0 "+
				"for the whole address", f.most))
		}
	}
	switch d := a.Timeout; {
	case d == 0:
	case d < time.Second || d > maxAffinityTimeout:
		p.add("sessionAffinity.timeout", d, fmt.Sprintf("must be between 1s and %v",
			maxAffinityTimeout))
	case d%time.Second != 0:
		p.add("sessionAffinity.timeout", d, "must be whole seconds")
	}
}

func (p *problems) checkSlowStart(s *Service) {
	switch d := s.SlowStart; {
	case d == 0:
	case d < slowStartMin || d > slowStartMax:
		p.add("slowStart", d, fmt.Sprintf("must be between %v and %v", slowStartMin, slowStartMax))
	case d%time.Second != 0:
		p.add("slowStart", d, "must be whole seconds")
	case !s.Scheduler.weighs():
		p.add("slowStart", d, notWeighed(s.Scheduler))
	}
}

// known reports whether s is a scheduler of this package.
func (s Scheduler) known() bool {
	name, port, fallback := s.Split()
	if port || fallback {
		return slices.Contains(hashing, name)
	}
	return s == SchedulerDefault || s == Random || slices.Contains(schedulers, s) ||
		slices.Contains(hashing, s)
}

// checkEndpoints checks endpoints, in a list or one alone.
func (p *problems) checkEndpoints(eps []Endpoint, listed bool) {
	var checked []EndpointPort
	for i := range eps {
		ports := eps[i].Ports
		at := i
		if !listed {
			at = -1
		}
		p.checkAddr("endpoints", at, "addr", eps[i].Addr, routable)
		if len(ports) == 0 || len(ports) == len(checked) && &ports[0] == &checked[0] {
			continue // endpoints that share their ports share their problems
		}
		checked = ports
		field := func(j int, name string) string {
			return path("endpoints", at, path("ports", j, name))
		}
		for j, port := range ports {
			if reason := textProblem(port.Name); reason != "" {
				p.add(field(j, "name"), quote(port.Name), reason)
			}
			if !port.Protocol.Valid() {
				p.add(field(j, "protocol"), uint8(port.Protocol), "must be TCP, UDP or SCTP")
			}
			if port.Port == 0 {
				p.add(field(j, "port"), 0, "must not be zero")
			}
		}
		for j, first := range repeats(len(ports), func(j int) (EndpointPort, bool) {
			return EndpointPort{Name: ports[j].Name, Protocol: ports[j].Protocol}, true
		}) {
			p.add(field(j, "name"), quote(ports[j].Name),
				fmt.Sprintf("is also the name of ports[%d], with the same protocol", first))
		}
	}
}
