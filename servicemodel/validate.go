package servicemodel

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// Validate checks the whole state. It joins all problems in one error, each a *[FieldError], or
// returns nil. Services that claim the same address and port are no problem here; see
// [Table.Conflicts].
//
// Some inputs are normalised and not refused: the host bits of ranges are ignored, and if endpoints
// have the same address and port, one of them is used. IPv4-mapped IPv6 addresses are refused: they
// never occur on the wire, so they are probably a mistake.
func (s State) Validate() error { return validate(s, s.editsSince(State{}), true) }

// validate checks the edits and, if asked to, the node.
func validate(s State, edits []edit, node bool) error {
	var p problems
	if node {
		p.checkNode(s.viewpoint())
	}
	for i := range edits {
		e := &edits[i]
		if e.redefined && e.service != nil {
			p.checkService(e.service)
		}
		if len(e.endpoints) == 0 {
			continue
		}
		p.service, p.object = e.name, func() string { return "endpoints " + e.name.String() }
		if e.service == nil {
			p.checkName(e.name)
		}
		p.checkEndpoints(e.endpoints, true)
	}
	return errors.Join(p.found...)
}

// problems collects the problems of one object after the other.
type problems struct {
	service Name          // the service being checked; zero for the node
	object  func() string // the name of the object being checked
	found   []error
}

func (p *problems) add(field string, value any, reason string) {
	text := ""
	if value != nil {
		text = fmt.Sprint(value)
	}
	p.found = append(p.found, &FieldError{
		Service: p.service, Object: p.object(), Field: field, Value: text, Reason: reason,
	})
}

// path returns the path of a field in an element of a list. A negative index means an object
// outside a list.
func path(list string, i int, field string) string {
	if i < 0 {
		return field
	}
	s := fmt.Sprintf("%s[%d]", list, i)
	if field != "" {
		s += "." + field
	}
	return s
}

// maxName is the length of the longest name, a DNS subdomain (RFC 1123).
const maxName = 253

// checkText checks a name. Names become comments in the kernel, next to "/" and ":", and within
// quotes.
func (p *problems) checkText(field, text string, required bool) {
	if text == "" && required {
		p.add(field, nil, "required")
	}
	if reason := textProblem(text); reason != "" {
		p.add(field, quote(text), reason)
	}
}

func textProblem(s string) string {
	if len(s) > maxName {
		return fmt.Sprintf("longer than %d bytes", maxName)
	}
	for i := range len(s) {
		if c := s[i]; c <= ' ' || c > '~' || c == '/' || c == ':' || c == '"' {
			return `only printable ASCII without spaces, "/", ":" and quotes is allowed`
		}
	}
	return ""
}

func (p *problems) checkName(n Name) {
	for _, part := range [...]struct {
		field, text string
	}{{"name.namespace", n.Namespace}, {"name.name", n.Name}} {
		p.checkText(part.field, part.text, true)
	}
}

func quote(s string) string { return fmt.Sprintf("%q", s) }

// addrKind says which special addresses a field allows.
type addrKind int

const (
	anyUnicast addrKind = iota // also link-local ones
	routable                   // no link-local ones
	ofHost                     // also link-local ones, and IPv4 loopback
)

// checkAddr checks the address in a field of an element of a list.
func (p *problems) checkAddr(list string, i int, field string, a netip.Addr, kind addrKind) {
	reason := ""
	switch {
	case !a.IsValid():
		p.add(path(list, i, field), nil, "required")
	case a.Zone() != "":
		reason = "must not have a zone"
	case a.Is4In6():
		reason = "is an IPv4-mapped IPv6 address; give the IPv4 address"
	case a.IsUnspecified():
		reason = "must not be the unspecified address"
	case kind == ofHost && a.IsLoopback() && a.Is4():
	case kind == ofHost && a.IsLoopback():
		reason = "must not be ::1: the kernel cannot route from there to endpoints"
	case a.IsLoopback():
		reason = "must not be a loopback address"
	case a.IsMulticast():
		reason = "must not be a multicast address"
	case a == broadcast:
		reason = "must not be the broadcast address"
	case kind == routable && a.IsLinkLocalUnicast():
		reason = "must not be a link-local address"
	}
	if reason != "" {
		p.add(path(list, i, field), a, reason)
	}
}

var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

func (p *problems) checkRanges(field string, ranges []netip.Prefix) {
	for i, r := range ranges {
		switch {
		case !r.IsValid():
			p.add(path(field, i, ""), nil, "not a valid range")
		case r.Addr().Is4In6():
			p.add(path(field, i, ""), r,
				"is a range of IPv4-mapped IPv6 addresses; give the IPv4 range")
		}
	}
}

// repeats yields the index of each element whose key occurs earlier, and the index of the first
// element with that key.
func repeats[K comparable](n int, key func(int) (k K, counts bool)) func(yield func(i,
	first int) bool) {
	return func(yield func(i, first int) bool) {
		if n < 2 {
			return
		}
		seen := make(map[K]int, n)
		for i := range n {
			k, counts := key(i)
			if !counts {
				continue
			}
			if first, again := seen[k]; again {
				if !yield(i, first) {
					return
				}
				continue
			}
			seen[k] = i
		}
	}
}

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

func (p *problems) checkNode(n *Node) {
	p.service, p.object = Name{}, func() string { return "node" }
	if f := n.OnlyFamily; f != 0 && f != IPv4 && f != IPv6 {
		p.add("onlyFamily", uint8(f), "must be IPv4 or IPv6")
	}
	for i, a := range n.Addresses {
		p.checkAddr("addresses", i, "", a, anyUnicast)
	}
	p.checkRanges("nodePortAddresses.cidrs", n.NodePortAddresses.CIDRs)
	if n.NodePortAddresses.Primary && len(n.NodePortAddresses.CIDRs) > 0 {
		p.add("nodePortAddresses.primary", true, "excludes CIDRs; give one or the other")
	}
	p.checkPodDetector(n.LocalPods)
	p.checkRanges("serviceCIDRs", n.ServiceCIDRs)
	checkWord(p, "noEndpoints", n.NoEndpoints, answerReject, answerReset, answerDrop)
	checkWord(p, "forbidden", n.Forbidden, answerReject, answerReset, answerDrop)
	if m := n.MasqueradeMark; m&(m-1) != 0 {
		p.add("masqueradeMark", fmt.Sprintf("%#x", m), "must be exactly one bit")
	}
}

// maxInterface is the maximum length of an interface name (IFNAMSIZ in include/uapi/linux/if.h,
// less the final zero).
const maxInterface = 15

func (p *problems) checkPodDetector(d PodDetector) {
	p.checkRanges("localPods.cidrs", d.CIDRs)
	for _, name := range [...]struct {
		field, text string
	}{{"localPods.bridge", d.Bridge}, {"localPods.interfacePrefix", d.InterfacePrefix}} {
		if len(name.text) > maxInterface {
			p.add(name.field, quote(name.text), fmt.Sprintf("longer than %d bytes", maxInterface))
		} else {
			p.checkText(name.field, name.text, false)
		}
	}
	given := []bool{len(d.CIDRs) > 0, d.Bridge != "", d.InterfacePrefix != ""}
	if n := len(slices.DeleteFunc(given, func(b bool) bool { return !b })); n > 1 {
		p.add("localPods", nil, "give at most one of cidrs, bridge and interfacePrefix")
	}
}

// FieldError is a problem with one field of one object. [State.Validate] joins them with
// errors.Join; find them with errors.As.
type FieldError struct {
	// Service is the service in whose definition or endpoints State.Validate found the problem. It
	// is zero for problems of the node, and in errors from elsewhere.
	Service Name
	Object  string // what it is about, such as "service default/web" or "node"
	Field   string // the path of the field, such as "ports[1].nodePort"
	Value   string // the offending value as text; empty if it is the absence that offends
	Reason  string // what is wrong
}

// Error returns "service default/web: ports[1].nodePort: 0x: reason".
func (e *FieldError) Error() string {
	s := e.Object + ": " + e.Field + ": "
	if e.Value != "" {
		s += e.Value + ": "
	}
	return s + e.Reason
}
