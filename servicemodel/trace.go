package servicemodel

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Trace says in words, step by step, what a table does to a packet.
type Trace struct {
	Packet   Packet
	Decision Decision
	Steps    []Step // in the order in which they decide; the last is the outcome
}

// Step is one step of a [Trace].
type Step struct {
	Kind StepKind
	Text string
}

// StepKind says what a step is about.
type StepKind uint8

// The kinds of steps, in their order.
const (
	StepSource      StepKind = iota // where the packet is taken to come from
	StepDestination                 // the frontend that it meets, or what it nearly meets
	StepConflict                    // another service that claims the frontend, and lost
	StepSources                     // who may connect
	StepPolicy                      // which traffic policy counts
	StepEndpoints                   // how many of the endpoints are used
	StepExcluded                    // an endpoint that is not, and why
	StepAffinity                    // whether a client stays with its endpoint
	StepMasquerade                  // whether the endpoint sees an address of the node
	StepOutcome                     // what happens
)

// String returns the kind as text, such as "destination".
func (k StepKind) String() string {
	names := [...]string{"source", "destination", "conflict", "sources", "policy", "endpoints",
		"excluded", "affinity", "masquerade", "outcome"}
	if int(k) < len(names) {
		return names[k]
	}
	return "step " + uitoa(uint16(k))
}

// String returns the packet and a line for each step.
func (t Trace) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v -> %v\n", t.Packet.Src.Addr(), t.Packet.key())
	for _, s := range t.Steps {
		fmt.Fprintf(&b, "  %-12s %s\n", s.Kind, s.Text)
	}
	return b.String()
}

// Trace decides about a packet as [Table.Decide] does, and says how it came to that. Which
// endpoints were left out, and why, is known to tables that were resolved; one that was read from a
// kernel has only those that are used. What the kernel remembers of the client by session affinity
// is no part of a table.
//
// It costs O(log n), and O(n) where no frontend is met: then it looks for what is like it.
func (t *Table) Trace(p Packet, here Locality) Trace {
	t = t.orEmpty()
	r := tracer{Trace: Trace{Packet: p, Decision: t.Decide(p, here)}, t: t, here: here}
	r.step(StepSource, "%s", r.source())
	if f := r.Decision.Frontend; f != nil {
		r.atFrontend(f)
	} else {
		r.nearMisses()
	}
	r.step(StepOutcome, "%s", r.outcome())
	return r.Trace
}

// tracer makes a trace.
type tracer struct {
	Trace
	t    *Table
	here Locality
}

func (r *tracer) step(k StepKind, format string, args ...any) {
	r.Steps = append(r.Steps, Step{k, fmt.Sprintf(format, args...)})
}

// source says where the packet comes from.
func (r *tracer) source() string {
	src, pods := r.Packet.Src.Addr(), r.t.rules.LocalPods
	switch r.Decision.Origin {
	case FromHost:
		return src.String() + " is an address of this node"
	case FromPods:
		for _, c := range pods.CIDRs {
			if c.Contains(src) {
				return fmt.Sprintf("%v is a pod, by the range %v", src, c)
			}
		}
		return fmt.Sprintf("%v is a pod, by the interface %s", src, r.Packet.InInterface)
	}
	if pods.detects(FamilyOf(src)) {
		return src.String() + " is outside: no pod, and no address of this node"
	}
	return src.String() + " counts as outside: nothing says which packets come from pods"
}

// kindText is what a frontend of a kind is, with an article.
func kindText(k Kind) string {
	switch k {
	case ClusterIP:
		return "a cluster IP"
	case LoadBalancer:
		return "a load balancer IP"
	case ExternalIP:
		return "an external IP"
	case HostIP:
		return "a host IP"
	}
	return "a node port"
}

func (r *tracer) atFrontend(f *Frontend) {
	r.step(StepDestination, "%v is %s of %v", r.Packet.key(), kindText(f.Kind), f.Service)
	for k, lost := range r.t.losers.From(claimKey{key: f.Key}) {
		if k.key != f.Key {
			break
		}
		r.step(StepConflict, "%v claims it too, as %s, and does not get it", lost.Service,
			kindText(lost.Kind))
	}
	if f.Sources != nil {
		r.step(StepSources, "only %s may connect", orNone(prefixesText(f.Sources)))
		if r.Decision.Cause.Kind == CauseSource {
			return
		}
	}
	verdict := r.Decision.verdict()
	r.step(StepPolicy, "%s", r.policy(f, verdict))
	r.endpoints(f, verdict)
	if r.Decision.Outcome != Balanced {
		return
	}
	if f.Affinity > 0 {
		r.step(StepAffinity, "the client stays with the endpoint that it is given, until it has "+
			"made no connection for %v", f.Affinity)
	}
	r.step(StepMasquerade, "%s", r.masquerade(f))
}

// policy says which traffic policy counts, and what it means.
func (r *tracer) policy(f *Frontend, v Verdict) string {
	local := v == BalanceLocal || v == Drop
	name := "externalTrafficPolicy"
	if f.Kind == ClusterIP {
		name = "internalTrafficPolicy"
	}
	switch {
	case local:
		return name + " is Local: endpoints on this node only"
	case f.Internal != f.External:
		return name + " is Local, which is for clients outside: this one gets endpoints anywhere"
	case f.External == Reject && r.t.isLocal(f):
		return name + " is Local: endpoints on this node only"
	}
	return name + " is Cluster: endpoints anywhere"
}

// isLocal reports whether the state says that the traffic policy of f is Local.
func (t *Table) isLocal(f *Frontend) bool {
	if !t.remembers() {
		return false
	}
	svc := t.memory.state.serviceOf(f.Service.Name)
	switch {
	case svc == nil:
		return false
	case f.Kind == ClusterIP:
		return svc.InternalTrafficPolicy == PolicyLocal
	}
	return svc.ExternalTrafficPolicy == PolicyLocal
}

// endpoints says how many endpoints are used, and what became of the others.
func (r *tracer) endpoints(f *Frontend, v Verdict) {
	used := len(r.Decision.Candidates)
	if !r.t.remembers() {
		r.step(StepEndpoints, "%s used", isOrAre(used))
		return
	}
	all := Select(r.t.memory.state, f.Service, f.Key.Family())
	r.step(StepEndpoints, "%d of %s used", used, isOrAre(len(all)))
	for _, s := range all {
		out := s.Cluster
		if v == BalanceLocal || v == Drop {
			out = s.Local
		}
		if out != Included {
			r.step(StepExcluded, "%s %v", s.name(), out)
		}
	}
}

// name is where the endpoint is reached, or its address where it has no port.
func (s *Selection) name() string {
	name := s.Endpoint.Addr.String()
	if s.Target.Port() != 0 {
		name = s.Target.String()
	}
	if s.Endpoint.Node != "" {
		name += " on " + s.Endpoint.Node
	}
	return name
}

func (r *tracer) masquerade(f *Frontend) string {
	src := r.Packet.Src.Addr()
	if f.Masquerade&r.Decision.Origin != 0 {
		return "the endpoint sees an address of this node: what comes from " +
			r.Decision.Origin.String() + " to " + kindText(f.Kind) + " is masqueraded"
	}
	if slices.ContainsFunc(r.Decision.Candidates, func(c Candidate) bool { return c.Masquerade }) {
		return fmt.Sprintf("the endpoint sees %v, but for itself: then it sees an address of "+
			"this node", src)
	}
	return fmt.Sprintf("the endpoint sees %v", src)
}

// outcome says what happens, and why not something else.
func (r *tracer) outcome() string {
	d := &r.Decision
	if d.Outcome != Balanced {
		if d.Cause.Kind == NoCause {
			return d.Outcome.String() + ": " + d.Reason
		}
		return d.Outcome.String() + ": " + d.Cause.String()
	}
	total := 0
	for _, c := range d.Candidates {
		total += int(c.Weight)
	}
	var shares []string
	for _, c := range d.Candidates {
		shares = append(shares, fmt.Sprintf("%v (%d of %d)", c.Endpoint, c.Weight, total))
	}
	return d.Outcome.String() + " over " + strings.Join(shares, ", ")
}

// nearMisses says what is like the destination.
func (r *tracer) nearMisses() {
	p, before := &r.Packet, len(r.Steps)
	dst := p.Dst.Addr()
	if c := r.t.otherPort(*p); len(c.Others) > 0 {
		r.step(StepDestination, "%v", c)
	}
	node := FrontendKey{Addr: unspecified(FamilyOf(dst)), Protocol: p.Protocol, Port: p.Dst.Port()}
	if f := r.t.frontend(node); f != nil && p.Protocol.Valid() {
		r.step(StepDestination, "%s is a node port of %v, but %s", numbered(node), f.Service,
			r.notNodePort(dst))
	}
	r.nearServices(dst)
	for id, pool := range r.t.pools.All() {
		if id.Service.Protocol != p.Protocol {
			continue
		}
		if slices.ContainsFunc(pool.Slots, func(s Slot) bool { return s.Endpoint == p.Dst }) {
			r.step(StepDestination, "%v is an endpoint of %v, and reached without the service",
				p.key(), id.Service)
			break
		}
	}
	if len(r.Steps) == before {
		r.step(StepDestination, "no service has %v", dst)
	}
}

// notNodePort says why an address of the packet takes no node ports.
func (r *tracer) notNodePort(dst netip.Addr) string {
	switch {
	case !r.here.Local(dst):
		return dst.String() + " is no address of this node"
	case dst.IsLoopback():
		return "none at loopback addresses"
	}
	return fmt.Sprintf("%v is not in %s, where they answer", dst,
		orNone(prefixesText(r.t.rules.NodePorts)))
}

// nearServices names services of the state that have an address and do not answer there.
func (r *tracer) nearServices(dst netip.Addr) {
	if !r.t.remembers() || len(slices.Collect(r.t.frontendsAt(dst))) > 0 {
		return
	}
	for n, svc := range r.t.memory.state.services.All() {
		proxied := func(l LoadBalancerIP) bool {
			return l.Addr == dst && l.Mode == LoadBalancerProxy
		}
		has := func(l LoadBalancerIP) bool { return l.Addr == dst }
		switch {
		case slices.ContainsFunc(svc.LoadBalancerIPs, proxied):
			r.step(StepDestination, "%v is a load balancer IP of %v, which the load balancer "+
				"replaces (ipMode Proxy)", dst, n)
		case !slices.Contains(svc.ExternalIPs, dst) && !slices.Contains(svc.ClusterIPs, dst) &&
			!slices.ContainsFunc(svc.LoadBalancerIPs, has):
		case !svc.exists(FamilyOf(dst)):
			r.step(StepDestination, "%v is an address of %v, which has no cluster IP of family %v",
				dst, n, FamilyOf(dst))
		default:
			r.step(StepDestination, "%v is an address of %v, which has no ports", dst, n)
		}
	}
}
