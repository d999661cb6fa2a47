package servicemodel

import (
	"encoding/json"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strings"

	"github.com/kernlb/kernlb/servicemodel/internal/pmap"
)

// Warning says that a part of a valid state has no effect on its node, or that a service rejects
// all packets because none of its endpoints is ready. The state is applied nevertheless. A service
// without endpoints, or without endpoints of one family, causes no warning: its frontends have a
// [Cause].
type Warning struct {
	Kind WarningKind `json:"kind"`
	// Service is the name of the service or of its endpoints. It is zero for the node.
	Service Name `json:"service,omitzero"`
	// Field is the path of the field, such as "endpoints[1].ports". If several elements of a list
	// have the same problem, it names the first.
	Field  string `json:"field"`
	Reason string `json:"reason"`
}

// WarningKind is the kind of a [Warning], for programs to compare with.
type WarningKind string

// The kinds of warnings.
const (
	WarnNoService   WarningKind = "no-service"   // endpoints of a service that does not exist
	WarnNoAddress   WarningKind = "no-address"   // a service without a port or address
	WarnOtherFamily WarningKind = "other-family" // no address, or no endpoint, in one family
	WarnNoPort      WarningKind = "no-port"      // service ports and endpoints' ports do not match
	WarnNotReady    WarningKind = "not-ready"    // a service has endpoints, and none is ready
	WarnNoEffect    WarningKind = "no-effect"    // any other field without effect
)

// String returns "service default/web: prefer: the node has no zone", or "node: …".
func (w Warning) String() string {
	if w.Service == (Name{}) {
		return "node: " + w.Field + ": " + w.Reason
	}
	return "service " + w.Service.String() + ": " + w.Field + ": " + w.Reason
}

// Warnings is an immutable list of warnings, in the order of their services. Warnings about the
// node come first. Its JSON is an array.
type Warnings struct {
	of pmap.Map[Name, []Warning, nameHash]
	n  int
}

// Warnings returns the warnings about the state from which t was resolved. Only tables from
// [Resolve] have warnings.
func (t *Table) Warnings() Warnings {
	if !t.remembers() {
		return Warnings{}
	}
	return t.memory.warnings
}

// Len returns the number of warnings.
func (w Warnings) Len() int { return w.n }

// String returns the warnings, one in each line.
func (w Warnings) String() string {
	var b strings.Builder
	for warning := range w.All() {
		b.WriteString(warning.String() + "\n")
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// IsZero reports whether there are no warnings.
func (w Warnings) IsZero() bool { return w.n == 0 }

// All returns all warnings.
func (w Warnings) All() iter.Seq[Warning] { return w.Since(Warnings{}) }

// Of returns the warnings about one service, or about the node for the zero Name.
func (w Warnings) Of(n Name) []Warning { return slices.Clone(w.of.At(n)) }

// Since returns the warnings that old does not have. If old belongs to an earlier table of the same
// program, the cost depends on the difference.
func (w Warnings) Since(old Warnings) iter.Seq[Warning] {
	return func(yield func(Warning) bool) {
		for c := range pmap.Diff(old.of, w.of, slices.Equal[[]Warning]) {
			for _, x := range c.New {
				if !slices.Contains(c.Old, x) && !yield(x) {
					return
				}
			}
		}
	}
}

// With returns w, with the warnings in others in place of w's own warnings about the same services.
func (w Warnings) With(others Warnings) Warnings {
	for name, l := range others.of.All() {
		w = w.with(name, l)
	}
	return w
}

// MarshalJSON returns an array of the warnings.
func (w Warnings) MarshalJSON() ([]byte, error) {
	return json.Marshal(slices.AppendSeq([]Warning{}, w.All()))
}

// with returns w with the warnings of one service replaced.
func (w Warnings) with(n Name, l []Warning) Warnings {
	old := w.of.At(n)
	if slices.Equal(old, l) {
		return w
	}
	w.n += len(l) - len(old)
	if len(l) == 0 {
		w.of = w.of.Delete(n)
	} else {
		w.of = w.of.Set(n, l)
	}

	return w
}

// warnings returns the warnings about the node alone.
func (n *Node) warnings() []Warning {
	w := warner{}
	p := n.primary()
	if n.NodePortAddresses.Primary && !p.v4.IsValid() && !p.v6.IsValid() {
		w.add(WarnNoEffect, "nodePortAddresses.primary", "the node has no address, so no node "+
			"port answers")
	}

	if n.LocalhostNodePorts && !n.view().localhost {
		w.add(WarnNoEffect, "localhostNodePorts", "nodePortAddresses selects no address of "+
			loopback4.String())
	}

	return w.found
}

// warner collects the warnings about one service.
type warner struct {
	*resolver
	name   Name
	svc    *Service
	eps    []endpoint
	claims []*Frontend
	kinds  [HostIP + 1]perFamily[bool] // of the claims
	in     perFamily[bool]             // the families of the claims
	answer perFamily[int]              // the number of ports with claims of a family
	found  []Warning
}

func (w *warner) add(k WarningKind, field, reason string) {
	w.found = append(w.found, Warning{Kind: k, Service: w.name, Field: field, Reason: reason})
}

// addIf adds a warning about a field without effect.
func (w *warner) addIf(bad bool, field, reason string) {
	if bad {
		w.add(WarnNoEffect, field, reason)
	}
}

// has reports whether the service claims an address of a kind.
func (w *warner) has(k Kind) bool { return w.kinds[k].v4 || w.kinds[k].v6 }

// warnings returns the warnings about a service. claims are its claims.
func (r *resolver) warnings(n Name, e entry, claims []*Frontend) []Warning {
	w := warner{resolver: r, name: n, svc: e.service, eps: e.endpoints,
		claims: claims}
	switch {
	case w.svc == nil && len(w.eps) > 0:
		w.add(WarnNoService, "endpoints", "there is no service of this name")
	case w.svc == nil:
	case len(w.svc.Ports) == 0:
		w.add(WarnNoAddress, "ports", "there are none, so the service answers nowhere")
	case len(claims) == 0:
		w.add(WarnNoAddress, "clusterIPs", "the service has no address and no node port that "+
			"this node serves")
	default:
		for _, f := range claims {
			*w.kinds[f.Kind].of(f.Key.Family()), *w.in.of(f.Key.Family()) = true, true
		}
		for _, own := range byPort(claims) {
			for _, f := range families {
				if slices.ContainsFunc(own, func(c *Frontend) bool { return c.Key.Family() == f }) {
					*w.answer.of(f)++
				}
			}
		}

		w.addresses()
		w.sourceRanges()
		w.clientRules()
		w.policies()
		w.masquerade()
		if len(w.eps) > 0 {
			w.ports()
			w.endpoints()
			w.hints()
		}
	}

	return w.found
}

// addresses warns about addresses that the service does not claim.
func (w *warner) addresses() {
	address := func(list string, i int, a netip.Addr) {
		switch f := FamilyOf(a); {
		case !f.servedBy(w.view.only): // as the node wants it
		case !w.svc.exists(f, w.view.only):
			w.add(WarnOtherFamily, fmt.Sprintf("%s[%d]", list, i), "no cluster IP is "+f.String()+
				", so the service does not exist in this family")
		case a.IsLoopback() && !w.view.localhost:
			w.add(WarnNoEffect, fmt.Sprintf("%s[%d]", list, i),
				"the node does not answer at loopback addresses (localhostNodePorts)")
		}
	}

	for i, lb := range w.svc.LoadBalancerIPs {
		if !lb.Proxy {
			address("loadBalancerIPs", i, lb.Addr)
		}
	}

	for i, a := range w.svc.ExternalIPs {
		address("externalIPs", i, a)
	}
	for i, a := range w.svc.HostIPs {
		address("hostIPs", i, a)
	}
	for i := range w.svc.Ports {
		p := &w.svc.Ports[i]
		name := PortName{Name: w.name, Port: p.Name, Protocol: p.Protocol}
		_, claims := slices.BinarySearchFunc(w.claims, name, func(f *Frontend, n PortName) int {
			return f.Service.Compare(n)
		})
		if !claims {
			w.add(WarnNoAddress, fmt.Sprintf("ports[%d]", i), "the service has no address, and "+
				"this port no node port")
			return
		}
	}
}

// sourceRanges warns about source ranges of a family without a load balancer IP. It does not warn
// if the service has no address of that family and the ranges of the other family have an effect.
func (w *warner) sourceRanges() {
	if len(w.svc.LoadBalancerSourceRanges) == 0 {
		return
	}
	lb := &w.kinds[LoadBalancer]
	var ranges perFamily[bool]
	for _, p := range w.svc.LoadBalancerSourceRanges {
		*ranges.of(FamilyOf(p.Addr())) = true
	}
	for _, f := range families {
		other := IPv4 + IPv6 - f
		w.addIf(*ranges.of(f) && f.servedBy(w.view.only) && !*lb.of(f) &&
			(*w.in.of(f) || !*ranges.of(other) || !*lb.of(other)), "loadBalancerSourceRanges",
			"only load balancer IPs are restricted, and the node answers at none of "+f.String())
	}
}

// policies warns about policies without effect, because the service has nothing to which they
// apply.
func (w *warner) policies() {
	s, v := w.svc, w.view
	external := w.has(LoadBalancer) || w.has(ExternalIP) || w.has(NodePort) || w.has(HostIP)
	internalLocal := s.InternalTrafficPolicy == PolicyLocal
	w.addIf(internalLocal && !w.has(ClusterIP), "internalTrafficPolicy", "there is no cluster IP")
	w.addIf(s.ExternalTrafficPolicy == PolicyLocal && !external, "externalTrafficPolicy",
		"there is nothing but cluster IPs")
	w.addIf(s.ExternalTrafficPolicy != PolicyLocal && s.HealthCheckNodePort != 0,
		"healthCheckNodePort", "externalTrafficPolicy is not Local")
	w.addIf(s.Connections.Mode != DrainConnections && s.Connections.Drain != 0,
		"connections.drain", "the mode is not to drain")

	a := s.SessionAffinity
	w.addIf(!a.ClientIP && a != (SessionAffinity{}), "sessionAffinity", "clientIP is not set")
	w.addIf(a.ClientIP && a.Bits4+a.Bits6 > 0 && !(a.Bits4 > 0 && w.in.v4) &&
		!(a.Bits6 > 0 && w.in.v6), "sessionAffinity", "the bits are of the other family")

	w.addIf(s.Prefer == preferZone && v.zone == "", "prefer", "the node has no zone")
	w.addIf(s.Prefer == preferNode && v.name == "", "prefer", "the node has no name")
	w.addIf(s.Prefer != "" && internalLocal && !external, "prefer",
		"internalTrafficPolicy is Local")
}

// masquerade warns about policies for kinds of addresses that the service does not have. The same
// policy for all kinds causes no warning.
func (w *warner) masquerade() {
	for i, a := range w.svc.MasqueradeIPs {
		f := FamilyOf(a)
		used := slices.ContainsFunc(w.claims, func(c *Frontend) bool {
			return c.Key.Family() == f && c.MasqueradeIP.IsValid() &&
				(c.Masquerade != 0 || w.view.neighbours)
		})
		w.addIf(f.servedBy(w.view.only) && !used, fmt.Sprintf("masqueradeIPs[%d]", i),
			"no masqueraded connection of "+f.String()+" gets this source")
	}

	m := w.svc.Masquerade
	if m == MasqueradeAt(m.ClusterIPs) {
		return
	}
	for k, p := range m.policies() {
		w.addIf(p != MasqueradeDefault && !w.has(Kind(k)), masqueradeFields[k],
			"the node answers at no address of this kind")
	}
}

// ports warns about ports of the service that no endpoint has, and about endpoints with ports that
// the service does not have.
func (w *warner) ports() {
	for i := range w.svc.Ports {
		p := &w.svc.Ports[i]
		served := 0 // the first endpoint that has the port
		for served < len(w.eps) && !w.serves(&w.eps[served], p) {
			served++
		}
		if served == len(w.eps) {
			c := Cause{Kind: causeNoPort, Endpoints: len(w.eps), Others: portsOf(w.eps),
				Service: PortName{Name: w.name, Port: p.Name, Protocol: p.Protocol}}
			w.add(WarnNoPort, fmt.Sprintf("ports[%d].name", i), c.String())
			return
		}
		if p.EndPort == 0 || p.NodePort == 0 || p.NodePort == p.Port {
			continue
		}
		if target, _ := w.portOf(&w.eps[served], p); target == 0 {
			w.add(WarnNoEffect, fmt.Sprintf("ports[%d].nodePort", i), fmt.Sprintf("packets keep "+
				"their ports, so node port %d goes to port %[1]d of the endpoints, and not to %d",
				p.NodePort, p.Port))
		}
	}

	var checked []EndpointPort // neighbours share their lists
	for i := range w.eps {
		e := &w.eps[i]
		if len(e.Ports) > 0 && len(e.Ports) == len(checked) && &e.Ports[0] == &checked[0] {
			continue
		}
		checked = e.Ports
		n := 0
		for j := range w.svc.Ports {
			if w.serves(e, &w.svc.Ports[j]) {
				n++
			}
		}

		if n == 0 || n < len(e.Ports) {
			w.add(WarnNoPort, fmt.Sprintf("endpoints[%d].ports", i), fmt.Sprintf("%d of %d have "+
				"the name and protocol of a port of the service", n, len(e.Ports)))
			return
		}
	}
}

func (w *warner) serves(e *endpoint, p *ServicePort) bool {
	_, ok := w.portOf(e, p)
	return ok
}

// endpoints warns about endpoints that serve nothing, and about settings that apply to no endpoint.
func (w *warner) endpoints() {
	usable, unready, far := false, 0, w.svc.Prefer != ""
	foreign, weighed := -1, -1
	for i := range w.eps {
		e := &w.eps[i]
		usable = usable || usabilityOf(e) != unusable
		if e.Condition == NotReady {
			unready++
		}
		far = far && e.Node == "" && e.Zone == ""
		if f := FamilyOf(e.Addr); foreign < 0 && f.servedBy(w.view.only) &&
			*w.answer.of(f) < len(w.svc.Ports) {
			foreign = i
		}

		if weighed < 0 && e.Weight > 1 {
			weighed = i
		}
	}

	if !usable && unready > 0 {
		w.add(WarnNotReady, "endpoints", endpointsText(len(w.eps))+", none ready")
	}
	if foreign >= 0 {
		f := FamilyOf(w.eps[foreign].Addr)
		w.add(WarnOtherFamily, fmt.Sprintf("endpoints[%d].addr", foreign), fmt.Sprintf(
			"%d of %d ports of the service have an address of %v", *w.answer.of(f),
			len(w.svc.Ports), f))
	} else {
		w.withoutEndpoints()
	}
	w.addIf(far, "prefer", "no endpoint names its node or zone")
	w.shares()
	if c := w.svc.Scheduler; weighed >= 0 && (c.Even() || c == DestHash) {
		w.add(WarnNoEffect, fmt.Sprintf("endpoints[%d].weight", weighed), "the scheduler "+
			string(c)+" does not follow weights")
	}
}

// withoutEndpoints warns about addresses of a family in which the service has no endpoint, while it
// has endpoints of the other family. Node ports cause no warning: a service gets them in both
// families of the node without asking for both.
func (w *warner) withoutEndpoints() {
	of := FamilyOf(w.eps[0].Addr)
	f := IPv4 + IPv6 - of
	if slices.ContainsFunc(w.eps, func(e endpoint) bool { return FamilyOf(e.Addr) == f }) {
		return
	}
	if slices.ContainsFunc(w.claims, func(c *Frontend) bool {
		return c.Kind != NodePort && c.Key.Family() == f
	}) {
		w.add(WarnOtherFamily, "endpoints", "all are of "+of.String()+
			", so nobody serves the service's addresses of "+f.String())
	}
}

// shares warns about shares that the scheduler does not use.
func (w *warner) shares() {
	i := slices.IndexFunc(w.eps, func(e endpoint) bool { return e.Share > 0 })
	if i >= 0 && !w.svc.Scheduler.Fed() {
		w.add(WarnNoEffect, fmt.Sprintf("endpoints[%d].share", i),
			"only the schedulers lc and wlc have shares that are fed back")
	}
}

// hinted counts the ready endpoints of a family and their topology hints of one kind.
type hinted struct {
	ready, hinted int
	lacks         int  // the first ready endpoint without hints
	here          bool // an endpoint is hinted for this node, or its zone
}

// hints warns about topology hints that the node cannot follow, and about a preference that they
// override.
func (w *warner) hints() {
	for _, f := range families {
		nodes, zones := hinted{}, hinted{}
		for i := range w.eps {
			e := &w.eps[i]
			if FamilyOf(e.Addr) == f && usabilityOf(e) == ready {
				nodes.count(i, e.ForNodes, w.view.name)
				zones.count(i, e.ForZones, w.view.zone)
			}
		}

		decide := w.hint(nodes, "forNodes", "name", w.view.name)
		if !decide {
			decide = w.hint(zones, "forZones", "zone", w.view.zone)
		}
		w.addIf(decide && w.svc.Prefer != "", "prefer", "topology hints of the endpoints decide")
	}
}

func (h *hinted) count(i int, hints []string, own string) {
	if len(hints) > 0 {
		h.hinted++
	} else if h.ready == h.hinted {
		h.lacks = i
	}

	h.ready++
	h.here = h.here || slices.Contains(hints, own)
}

// hint reports whether hints of a kind decide, and warns if they cannot.
func (w *warner) hint(h hinted, field, what, own string) (decide bool) {
	switch {
	case h.hinted == 0:
	case own == "":
		w.add(WarnNoEffect, "endpoints."+field, "the node has no "+what)
	case h.hinted < h.ready:
		w.add(WarnNoEffect, fmt.Sprintf("endpoints[%d].%s", h.lacks, field),
			"is empty, so the hints of the other endpoints have no effect")
	default:
		return h.here
	}

	return false
}
