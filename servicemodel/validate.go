package servicemodel

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/kernlb/kernlb/servicemodel/internal/pmap"
)

// Validate checks the whole state. It joins all problems in one error, each a *[FieldError], or
// returns nil. Services that claim the same address and port are not a problem; see
// [Table.Conflicts].
//
// Some inputs are normalised and not refused: the host bits of ranges are ignored, and if several
// endpoints have the same address and port, one of them is used. IPv4-mapped IPv6 addresses are
// refused: they never occur on the wire, so they are probably a mistake.
func (s State) Validate() error {
	_, err := s.editsSince(State{}, true)
	return err
}

// edit is a name with different entries in two states.
type edit = pmap.Change[Name, entry]

// editsSince returns the differences from old to s, in the order of names. It skips shared
// contents. If old is empty, everything differs and the result has no edits. The error joins the
// problems of the differences and, on request, of the node.
func (s State) editsSince(old State, node bool) (edits []edit, err error) {
	var p problems
	if node {
		p.checkNode(s.viewpoint())
	}
	for c := range pmap.Diff(old.entries, s.entries, entry.equal) {
		if old.entries.Len() > 0 {
			edits = append(edits, c)
		}
		was, is := c.Old, c.New
		if is.service != nil && is.service != was.service {
			p.checkService(is.service)
		}
		if len(is.endpoints) == 0 {
			continue
		}
		p.kind = "endpoints"
		if is.service == nil {
			name := c.Key
			p.service = &name
			p.checkName(name)
		} else {
			p.service = &is.service.Name
		}

		// Endpoints that share their fields share their problems. The older state has no problems.
		var checked *Endpoint
		if len(was.endpoints) > 0 {
			checked = was.endpoints[0].Endpoint
		}
		p.each("endpoints", len(is.endpoints), func(i int) {
			e := &is.endpoints[i]
			p.checkAddr("addr", e.Addr, routable)
			p.checkRest(e.Endpoint, checked)
			checked = e.Endpoint
		})
		p.checkTargets(is)
	}

	return edits, errors.Join(p.found...)
}

// problems collects the problems of one object after the other.
type problems struct {
	service *Name   // the service being checked; nil for the node
	kind    string  // what is checked, such as "service"; followed by the name of the service
	found   []error // each a *FieldError
}

func (p *problems) add(field string, value any, reason string) {
	e := FieldError{Object: p.kind, Field: field, Reason: reason}
	if p.service != nil {
		e.Service, e.Object = *p.service, p.kind+" "+p.service.String()
	}
	if value != nil {
		e.Value = fmt.Sprint(value)
	}
	p.found = append(p.found, &e)
}

// each checks all elements of a list. The fields of their problems get the list and the index.
func (p *problems) each(list string, length int, check func(i int)) {
	for i := range length {
		before := len(p.found)
		check(i)
		for _, e := range p.found[before:] {
			field := &e.(*FieldError).Field
			*field = strings.TrimSuffix(fmt.Sprintf("%s[%d].%s", list, i, *field), ".")
		}
	}
}

// maxName is the length of the longest name, a DNS subdomain (RFC 1123).
const maxName = 253

// checkText checks a name. Names become comments in the kernel, next to "/" and ":", and within
// quotes.
func (p *problems) checkText(field, text string, required bool) {
	if text == "" && required {
		p.add(field, nil, "required")
	}
	if len(text) > maxName {
		p.add(field, quote(text), fmt.Sprintf("longer than %d bytes", maxName))
		return
	}

	for i := range len(text) {
		if c := text[i]; c <= ' ' || c > '~' || c == '/' || c == ':' || c == '"' {
			p.add(field, quote(text),
				`only printable ASCII without spaces, "/", ":" and quotes is allowed`)
			return
		}
	}
}

func (p *problems) checkName(n Name) {
	p.checkText("name.namespace", n.Namespace, true)
	p.checkText("name.name", n.Name, true)
}

func quote(s string) string { return fmt.Sprintf("%q", s) }

// addrKind says which special addresses a field allows.
type addrKind int

const (
	anyUnicast addrKind = iota // including link-local addresses
	routable                   // no link-local addresses
	ofHost                     // including link-local addresses and IPv4 loopback
)

func (p *problems) checkAddrs(list string, addrs []netip.Addr, kind addrKind) {
	p.each(list, len(addrs), func(i int) { p.checkAddr("", addrs[i], kind) })
}

func (p *problems) checkAddr(field string, a netip.Addr, kind addrKind) {
	reason := ""
	switch {
	case !a.IsValid():
		p.add(field, nil, "required")
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
		p.add(field, a, reason)
	}
}

var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

func (p *problems) checkRanges(list string, ranges []netip.Prefix) {
	p.each(list, len(ranges), func(i int) {
		if r := ranges[i]; !r.IsValid() {
			p.add("", nil, "not a valid range")
		} else if r.Addr().Is4In6() {
			p.add("", r, "is a range of IPv4-mapped IPv6 addresses; give the IPv4 range")
		}
	})
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
	p := problems{kind: "endpoint " + e.Addr.String()}
	p.checkAddr("addr", e.Addr, routable)
	p.checkRest(e, nil)
	return errors.Join(p.found...)
}

func (p *problems) checkService(s *Service) {
	p.service, p.kind = &s.Name, "service"
	p.checkName(s.Name)
	p.checkPorts(s)
	p.checkAddrs("clusterIPs", s.ClusterIPs, anyUnicast)
	p.checkPerFamily("clusterIPs", s.ClusterIPs)
	p.each("masqueradeIPs", len(s.MasqueradeIPs), func(i int) {
		if a := s.MasqueradeIPs[i]; !a.IsUnspecified() {
			p.checkAddr("", a, anyUnicast)
		}
	})

	p.checkPerFamily("masqueradeIPs", s.MasqueradeIPs)
	p.checkAddrs("externalIPs", s.ExternalIPs, routable)
	p.checkAddrs("hostIPs", s.HostIPs, ofHost)
	p.each("loadBalancerIPs", len(s.LoadBalancerIPs), func(i int) {
		p.checkAddr("addr", s.LoadBalancerIPs[i].Addr, anyUnicast)
	})
	p.checkRanges("loadBalancerSourceRanges", s.LoadBalancerSourceRanges)
	p.checkClients(s.Clients)
	p.checkAffinity(s.SessionAffinity)
	checkWord(p, "internalTrafficPolicy", s.InternalTrafficPolicy, PolicyLocal)
	checkWord(p, "externalTrafficPolicy", s.ExternalTrafficPolicy, PolicyLocal)
	checkWord(p, "prefer", s.Prefer, preferNode, preferZone)
	if s.Prefer != "" && !s.Scheduler.weighs() {
		p.add("prefer", quote(s.Prefer), notWeighed(s.Scheduler))
	}
	if d := s.SlowStart; p.checkSeconds("slowStart", d, slowStartMin, slowStartMax) && d != 0 &&
		!s.Scheduler.weighs() {
		p.add("slowStart", d, notWeighed(s.Scheduler))
	}

	for kind, policy := range s.Masquerade.policies() {
		checkWord(p, masqueradeFields[kind], policy, masqueradePolicies...)
	}
	if !s.Scheduler.known() {
		p.add("scheduler", quote(string(s.Scheduler)), "unknown scheduler")
	}
	checkWord(p, "forwarding", s.Forwarding, forwardings...)
	if e := s.Connections.problem(); e != nil {
		p.add("connections."+e.Field, e.Value, e.Reason)
	}
	if s.SilentEndpoints > SilentStay {
		p.add("silentEndpoints", s.SilentEndpoints, "must be "+oneOf(silentPolicies))
	}
	if s.SilentEndpoints == SilentEject && s.Forwarding != ForwardNAT {
		p.add("silentEndpoints", s.SilentEndpoints, fmt.Sprintf("works only with "+
			"forwarding nat, not %s: other answers do not pass this node", s.Forwarding))
	}
}

// notWeighed is the reason why a field cannot be combined with a scheduler.
func notWeighed(s Scheduler) string {
	return fmt.Sprintf("works by weights, and the scheduler %s does not follow weights", s)
}

// checkWord checks a field whose value must be empty, which means its default, or one of the words.
func checkWord[T ~string](p *problems, field string, value T, words ...T) {
	if value != "" && !slices.Contains(words, value) {
		p.add(field, quote(string(value)), "must be "+oneOf(words)+", or empty for the default")
	}
}

func (p *problems) checkPorts(s *Service) {
	names, ports, nodePorts := firsts[string]{}, firsts[numberKey]{}, firsts[numberKey]{}
	p.each("ports", len(s.Ports), func(i int) {
		port := s.Ports[i]
		n := len(PortName{Name: s.Name, Port: port.Name}.String())
		switch {
		case port.Name == "" && len(s.Ports) > 1:
			p.add("name", nil, "required if there is more than one port")
		case n > maxPortName && len(port.Name) <= maxName:
			p.add("name", quote(port.Name), fmt.Sprintf("with the service's namespace and name "+
				"it has %d bytes, and may have %d", n, maxPortName))
		}

		p.checkPort(port.Name, port.Protocol)
		p.checkNumbers(port)
		if j, again := names.add(port.Name, i); again && port.Name != "" {
			p.add("name", quote(port.Name), fmt.Sprintf("is also the name of ports[%d]", j))
		}
		const repeats = "is also the %s of ports[%d], with the same protocol"
		j, again := ports.add(numberKey{port.Protocol, port.Port, port.EndPort}, i)
		if again && port.Port != 0 {
			p.add("port", port.Port, fmt.Sprintf(repeats, "port", j))
		}
		j, again = nodePorts.add(numberKey{port.Protocol, port.NodePort, port.endNodePort()}, i)
		if again && port.NodePort != 0 {
			p.add("nodePort", port.NodePort, fmt.Sprintf(repeats, "node port", j))
		}
	})

	for i, port := range s.Ports {
		nodePorts := FrontendKey{Port: port.NodePort, EndPort: port.endNodePort()}
		if s.ExternalTrafficPolicy == PolicyLocal && port.Protocol == TCP && port.NodePort != 0 &&
			nodePorts.Contains(s.HealthCheckNodePort) {
			p.add("healthCheckNodePort", s.HealthCheckNodePort,
				fmt.Sprintf("is also the node port of ports[%d]", i))
		}
	}
}

// numberKey is a port number of a protocol, or a range that ends with a different number.
type numberKey struct {
	protocol    Protocol
	number, end uint16
}

// firsts has the first index of each key of a list.
type firsts[K comparable] map[K]int

// add adds the key of element i. If an earlier element has the key, it returns that element.
func (f firsts[K]) add(key K, i int) (first int, again bool) {
	if first, again = f[key]; !again {
		f[key] = i
	}
	return first, again
}

// checkPort makes the checks that are the same for ports of services and of endpoints.
func (p *problems) checkPort(name string, protocol Protocol) {
	p.checkText("name", name, false)
	if !protocol.Valid() {
		p.add("protocol", uint8(protocol), "must be TCP, UDP or SCTP")
	}
}

// checkNumbers checks the numbers of a service port.
func (p *problems) checkNumbers(port ServicePort) {
	if port.Port == 0 {
		p.add("port", 0, "must not be zero")
	}
	switch {
	case port.EndPort == 0 && port.TargetPort != 0:
		p.add("targetPort", port.TargetPort, "needs endPort: only a range is mapped to a range")
	case port.EndPort == 0:
	case port.EndPort <= port.Port:
		p.add("endPort", port.EndPort, "must be greater than port")
	default:
		last := 65535 - (port.EndPort - port.Port)
		if port.NodePort > last {
			p.add("nodePort", port.NodePort, "the node ports of the range end beyond 65535")
		}
		if port.TargetPort > last {
			p.add("targetPort", port.TargetPort, "the endpoints' ports end beyond 65535")
		}
	}
}

// checkTargets checks the ports of endpoints that serve ranges with a [ServicePort.TargetPort].
func (p *problems) checkTargets(e entry) {
	if e.service == nil {
		return
	}
	for _, port := range e.service.Ports {
		if port.TargetPort == 0 {
			continue
		}
		p.each("endpoints", len(e.endpoints), func(i int) {
			p.each("ports", len(e.endpoints[i].Ports), func(j int) {
				own := e.endpoints[i].Ports[j]
				if own.Name == port.Name && own.Protocol == port.Protocol && own.Port != 0 &&
					own.Port != port.TargetPort {
					p.add("port", own.Port, fmt.Sprintf("must be the targetPort %d of the "+
						"service's range, or 0", port.TargetPort))
				}
			})
		})
	}
}

// checkPerFamily allows at most one address of each family.
func (p *problems) checkPerFamily(list string, addrs []netip.Addr) {
	for i, a := range addrs {
		first := slices.IndexFunc(addrs[:i], func(o netip.Addr) bool {
			return o.IsValid() && FamilyOf(o) == FamilyOf(a)
		})
		if a.IsValid() && first >= 0 {
			p.add(fmt.Sprintf("%s[%d]", list, i), a, fmt.Sprintf(
				"is of the same family as %s[%d]; at most one is allowed", list, first))
		}
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

	p.checkSeconds("sessionAffinity.timeout", a.Timeout, time.Second, maxAffinityTimeout)
}

// checkSeconds checks a time in whole seconds. Zero is always valid.
func (p *problems) checkSeconds(field string, d, least, most time.Duration) (valid bool) {
	switch {
	case d == 0:
	case d < least || d > most:
		p.add(field, d, fmt.Sprintf("must be between %v and %v", least, most))
		return false
	case d%time.Second != 0:
		p.add(field, d, "must be whole seconds")
		return false
	}

	return true
}

// known reports whether s is a scheduler of this package.
func (s Scheduler) known() bool {
	name, _, _ := s.Split()
	return s == SchedulerDefault || s == Random || slices.Contains(schedulers, s) ||
		slices.Contains(hashing, name)
}

// checkRest checks the fields of an endpoint that can be invalid, except the address. It skips
// them if e is checked, an endpoint that was checked before; checked may be nil.
func (p *problems) checkRest(e, checked *Endpoint) {
	if e == checked {
		return
	}
	checkWord(p, "condition", e.Condition, conditions...)
	ports := e.Ports
	if checked != nil && len(ports) > 0 && len(ports) == len(checked.Ports) &&
		&ports[0] == &checked.Ports[0] {
		return
	}
	keys := firsts[portKey]{}
	p.each("ports", len(ports), func(i int) {
		port := ports[i]
		p.checkPort(port.Name, port.Protocol)
		if j, again := keys.add(portKey{port.Name, port.Protocol}, i); again {
			p.add("name", quote(port.Name), fmt.Sprintf(
				"is also the name of ports[%d], with the same protocol", j))
		}
	})
}

// FieldError is a problem with one field of one object. [State.Validate] joins them with
// errors.Join, and so does the UnmarshalJSON of each type of this package. Find them with
// errors.As, or list them with dataplane.Problems.
type FieldError struct {
	// Service is the service in whose definition or endpoints State.Validate found the problem. It
	// is zero for problems of the node, and in errors from elsewhere.
	Service Name
	Object  string // the object with the problem, such as "service default/web" or "node"
	// Field is the path of the field, such as "ports[1].nodePort". In errors of UnmarshalJSON, the
	// path starts at the value that was read, such as "services[0].ports[1].nodePort" in a state.
	// It is empty if the whole value is wrong.
	Field  string
	Value  string // the offending value as text; empty if the problem is a missing value
	Reason string // what is wrong
}

// Error returns "service default/web: ports[1].nodePort: 0x: reason", without the parts that are
// empty.
func (e *FieldError) Error() string {
	s := e.Object + ": "
	for _, part := range []string{e.Field, e.Value} {
		if part != "" {
			s += part + ": "
		}
	}
	return s + e.Reason
}
