package servicemodel

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Trace explains in words, step by step, what a table does to a packet.
type Trace struct {
	Packet   Packet   `json:"packet"`
	Decision Decision `json:"decision"`
	Steps    []Step   `json:"steps"` // in the order of the decision; the last is the outcome
}

// Step is one step of a [Trace].
type Step struct {
	// Kind is the subject of the step. The kinds are, in their order:
	//
	//	source       the origin that the packet is attributed to
	//	destination  the frontend that it matches, or nearly matches
	//	conflict     another service that claims the frontend, and lost
	//	sources      the clients that may connect
	//	policy       the traffic policy that applies
	//	nearness     the division of the traffic among near and far endpoints
	//	endpoints    the number of endpoints that are used
	//	excluded     an endpoint that is not used, and the reason
	//	growing      an endpoint that has a fraction of its weight
	//	affinity     whether a client stays with its endpoint
	//	masquerade   whether the endpoint sees an address of the node
	//	outcome      the fate of the packet
	//
	// An engine adds "refused" after the conflicts, for refused services that would claim the
	// destination. Package dataplane/silence adds "silent" before the outcome, for endpoints that
	// do not answer clients.
	Kind string `json:"step"`
	Text string `json:"text"`
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

// Trace decides about a packet in the same way as [Table.Decide], and explains the decision. Only
// resolved tables contain the unused endpoints and the reasons. A table that was read from a kernel
// has only the used endpoints. A table does not contain the clients that the kernel remembers for
// session affinity.
//
// It costs O(log n), or O(n) if the packet matches no frontend: then it searches for similar
// frontends.
func (t *Table) Trace(p Packet, here Locality) Trace {
	t = t.orEmpty()
	r := tracer{Trace: Trace{Packet: p, Decision: t.Decide(p, here)}, t: t, here: here}
	r.step("source", "%s", r.source())
	if f := r.Decision.Frontend; f != nil {
		r.atFrontend(f)
	} else {
		r.nearMisses()
	}

	r.step("outcome", "%s", r.outcome())
	return r.Trace
}

type tracer struct {
	Trace
	t    *Table
	here Locality
}

func (r *tracer) step(kind, format string, args ...any) {
	r.Steps = append(r.Steps, Step{kind, fmt.Sprintf(format, args...)})
}

// source explains the origin of the packet.
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
	return src.String() + " counts as outside: the node names no network of pods (Node.LocalPods)"
}

// kindText describes a kind of frontend, with an article.
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
	if f.Key.EndPort == 0 {
		r.step("destination", "%v is %s of %v", r.Packet.key(), kindText(f.Kind), f.Service)
	} else {
		r.atRange(f)
	}

	for i, claim := range r.t.contested.At(f.Key) {
		if i > 0 {
			r.step("conflict", "%v claims it too, as %s, and does not get it", claim.Service,
				kindText(claim.Kind))
		}
	}

	if f.Sources != nil {
		r.step("sources", "only %s may connect", orNone(prefixesText(f.Sources)))
		if r.Decision.Cause.Kind == causeSource {
			return
		}
	}

	verdict := r.Decision.verdict()
	r.step("policy", "%s", r.policy(f, verdict))
	r.endpoints(f, verdict)
	r.growing(f, verdict)
	if r.Decision.Outcome != Balanced {
		return
	}
	if f.Affinity > 0 {
		r.step("affinity", "%s", r.affinity(f))
	}
	r.step("masquerade", "%s", r.masquerade(f))
}

// atRange names the range that contains the packet's port, and wider ranges that also contain it.
func (r *tracer) atRange(f *Frontend) {
	r.step("destination", "%v is in the range %s of %v, %s", r.Packet.key(), f.Key.ports(),
		f.Service, kindText(f.Kind))
	for _, wider := range r.t.rangesAt(f.Key.Addr, f.Key.Protocol, r.Packet.Dst.Port())[1:] {
		r.step("conflict", "%v has it in the range %s, which comes after this one",
			wider.Service, wider.Key.ports())
	}
}

// affinity explains which clients stay with an endpoint, at which ports, and for how long.
func (r *tracer) affinity(f *Frontend) string {
	client, whose, at := "the client stays with the endpoint that it is given", "it has", ""
	if p, err := r.Packet.Src.Addr().Prefix(int(f.AffinityBits)); err == nil && p.Bits() > 0 {
		client, whose = "the clients in "+p.String()+" stay with the endpoint that one is given",
			"they have"
	}

	if f.AffinityService {
		at = " at all ports of the service"
	}
	return fmt.Sprintf("%s%s, until %s made no connection for %v", client, at, whose, f.Affinity)
}

// policy names the traffic policy that applies, and explains it.
func (r *tracer) policy(f *Frontend, v Verdict) string {
	name := f.policyName()
	switch {
	case v == BalanceLocal || v == Drop,
		f.Internal == f.External && f.External == Reject && r.t.isLocal(f):
		return name + " is Local: endpoints on this node only"
	case f.Internal != f.External:
		return name + " is Local, which is for clients outside: this one gets endpoints anywhere"
	}

	return name + " is Cluster: endpoints anywhere"
}

// isLocal reports whether the traffic policy of f is Local according to the state.
func (t *Table) isLocal(f *Frontend) bool {
	svc := t.service(f.Service.Name)
	switch {
	case svc == nil:
		return false
	case f.Kind == ClusterIP:
		return svc.InternalTrafficPolicy == PolicyLocal
	}

	return svc.ExternalTrafficPolicy == PolicyLocal
}

// endpoints states the number of endpoints that are used, and the reasons why the rest are not.
func (r *tracer) endpoints(f *Frontend, v Verdict) {
	used := len(r.Decision.Candidates)
	if !r.t.remembers() {
		r.step("endpoints", "%s used", isOrAre(used))
		return
	}

	if v == BalanceCluster {
		if n := r.t.memory.state.nearness(f.Service, f.Key.Family()); n != nil {
			r.step("nearness", "%v", n)
		}
	}

	all := Select(r.t.memory.state, f.Service, f.Key.Family())
	r.step("endpoints", "%d of %s used", used, isOrAre(len(all)))
	for _, s := range all {
		out := s.Cluster
		if v == BalanceLocal || v == Drop {
			out = s.Local
		}
		if out != "" {
			r.step("excluded", "%s %v", s.name(), out)
		}
	}
}

// growing names the endpoints that have a fraction of their weight.
func (r *tracer) growing(f *Frontend, v Verdict) {
	id, balances := f.Pool(v)
	if !balances || r.t.ramps == nil {
		return
	}
	list := r.t.ramps.pools.At(id)
	for _, s := range r.t.pools.At(id).Slots {
		if g := find(list, s.Endpoint); g != nil {
			r.step("growing", "%v has %d %% of its weight", s.Endpoint,
				100*int(s.Weight)/int(g.whole))
		}
	}
}

// name returns the endpoint's target, or only its address if it has no port.
func (s *Selection) name() string {
	name := TargetText(netip.AddrPortFrom(s.Endpoint.Addr, s.Target.Port()))
	if s.Endpoint.Node != "" {
		name += " on " + s.Endpoint.Node
	}
	return name
}

func (r *tracer) masquerade(f *Frontend) string {
	src := r.Packet.Src.Addr()
	if f.Masquerade&r.Decision.Origin != 0 {
		sees := "an address of this node"
		if f.MasqueradeIP.IsValid() {
			sees = f.MasqueradeIP.String()
		}
		return "the endpoint sees " + sees + ": what comes from " +
			r.Decision.Origin.String() + " to " + kindText(f.Kind) + " is masqueraded"
	}

	if slices.ContainsFunc(r.Decision.Candidates, func(c Candidate) bool { return c.Masquerade }) {
		return fmt.Sprintf("the endpoint sees %v, but for itself: then it sees an address of "+
			"this node", src)
	}

	return fmt.Sprintf("the endpoint sees %v", src)
}

// outcome states the outcome and the reason.
func (r *tracer) outcome() string {
	d := &r.Decision
	if d.Outcome != Balanced {
		if d.Cause.Kind == noCause {
			return string(d.Outcome) + ": " + d.Reason
		}
		return string(d.Outcome) + ": " + d.Cause.String()
	}

	total := 0
	for _, c := range d.Candidates {
		total += int(c.Weight)
	}
	var shares []string
	for _, c := range d.Candidates {
		shares = append(shares, fmt.Sprintf("%v (%d of %d)", c.Endpoint, c.Weight, total))
	}
	return string(d.Outcome) + " over " + strings.Join(shares, ", ")
}

// nearMisses adds steps about frontends that resemble the destination.
func (r *tracer) nearMisses() {
	p, before := &r.Packet, len(r.Steps)
	dst := p.Dst.Addr()
	if only := r.t.rules.OnlyFamily; !FamilyOf(dst).servedBy(only) {
		r.step("destination", "this node serves %v only (Node.OnlyFamily)", only)
		return
	}

	if c := r.t.otherPort(*p); len(c.Others) > 0 {
		r.step("destination", "%v", c)
	}
	node := FrontendKey{Addr: unspecified(FamilyOf(dst)), Protocol: p.Protocol, Port: p.Dst.Port()}
	if f := r.t.frontends.At(node); f != nil && p.Protocol.Valid() {
		r.step("destination", "%s is a node port of %v, but %s", numbered(node), f.Service,
			r.notNodePort(dst))
	}

	r.nearServices(dst)
	for id, pool := range r.t.pools.All() {
		if id.Service.Protocol != p.Protocol {
			continue
		}
		if slices.ContainsFunc(pool.Slots, func(s Slot) bool { return s.Endpoint == p.Dst }) {
			r.step("destination", "%v is an endpoint of %v, and reached without the service",
				p.key(), id.Service)
			break
		}
	}

	if len(r.Steps) == before {
		r.step("destination", "no service has %v", dst)
	}
}

// notNodePort returns the reason why an address of the node answers no node ports.
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

// nearServices names services of the state that have the address but do not answer there.
func (r *tracer) nearServices(dst netip.Addr) {
	if !r.t.remembers() || len(slices.Collect(r.t.frontendsAt(dst))) > 0 {
		return
	}
	for svc := range r.t.memory.state.sharedServices() {
		n := svc.Name
		proxied := func(l LoadBalancerIP) bool {
			return l.Addr == dst && l.Proxy
		}
		has := func(l LoadBalancerIP) bool { return l.Addr == dst }
		switch {
		case slices.ContainsFunc(svc.LoadBalancerIPs, proxied):
			r.step("destination", "%v is a load balancer IP of %v, which the load balancer "+
				"replaces (ipMode Proxy)", dst, n)
		case !slices.Contains(svc.ExternalIPs, dst) && !slices.Contains(svc.ClusterIPs, dst) &&
			!slices.ContainsFunc(svc.LoadBalancerIPs, has):
		case !svc.exists(FamilyOf(dst), 0):
			r.step("destination", "%v is an address of %v, which has no cluster IP of family %v",
				dst, n, FamilyOf(dst))
		default:
			r.step("destination", "%v is an address of %v, which has no ports", dst, n)
		}
	}
}
