package servicemodel_test

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	sm "github.com/kernlb/kernlb/servicemodel"
)

// reference decides about packets directly from a state, packet by packet, following the written
// behaviour of kube-proxy. It has no tables, no pools and no memory, and shares no code with the
// package.
type reference struct {
	state sm.State
	node  sm.Node
	local sm.Locality
	// isHairpin is the only input from the table: hairpins depend on the addresses of all services,
	// and have separate tests.
	isHairpin func(netip.Addr) bool
}

// hit is a service port that a packet matches, and the kind of the matched address.
type hit struct {
	svc  *sm.Service
	port sm.ServicePort
	kind sm.Kind
	// family and loopback describe the destination
	family   sm.Family
	loopback bool
}

func (r reference) decide(p sm.Packet) string {
	f := sm.FamilyOf(p.Dst.Addr())
	if r.node.OnlyFamily != 0 && r.node.OnlyFamily != f {
		return "untouched"
	}
	h, found := r.find(p)
	if !found {
		return r.unserved(p)
	}
	allows := func(src netip.Addr) bool {
		return (h.kind != sm.LoadBalancer || r.allowed(h.svc, src, f)) &&
			(h.kind == sm.NodePort || allowedByRules(h.svc, src, p.Dst.Addr()))
	}
	own := h.kind != sm.NodePort && p.Src.Addr() == p.Dst.Addr() && len(h.svc.Clients) > 0 &&
		r.primary(f).IsValid()
	if !allows(p.Src.Addr()) && (!own || !allows(r.primary(f))) {
		return answered(r.node.Forbidden, "dropped")
	}
	cluster, local, hasAny := r.endpoints(h, f)
	useLocal, masquerade := r.policy(h, p)
	use := cluster
	if useLocal {
		use = local
	}
	switch {
	case !hasAny:
		return answered(r.node.NoEndpoints, "rejected")
	case len(use) == 0:
		return "dropped"
	}

	return r.balanced(p, h, use, masquerade)
}

// unserved returns the outcome for a packet that matches no service port.
func (r reference) unserved(p sm.Packet) string {
	dst := p.Dst.Addr()
	isClusterIP, inRange := false, slices.ContainsFunc(r.node.ServiceCIDRs,
		func(c netip.Prefix) bool { return c.Contains(dst) })
	for svc := range r.state.Services() {
		isClusterIP = isClusterIP || len(svc.Ports) > 0 && slices.Contains(svc.ClusterIPs, dst)
	}
	switch {
	case r.local.Local(dst) && !p.FromThisNode:
		return "untouched"
	case isClusterIP:
		return "rejected"
	case inRange:
		return "dropped"
	}

	return "untouched"
}

// policy returns whether a packet may reach only endpoints on this node, and whether it is
// masqueraded.
func (r reference) policy(h hit, p sm.Packet) (useLocal, masquerade bool) {
	pod := r.fromPod(p)
	host := !pod && r.local.Local(p.Src.Addr())
	switch {
	case h.kind == sm.ClusterIP:
		return h.svc.InternalTrafficPolicy == sm.PolicyLocal,
			masquerades(h.svc.Masquerade.ClusterIPs, pod, host,
				r.node.MasqueradeAll || r.detects(h.family) && !pod)
	case h.svc.ExternalTrafficPolicy == sm.PolicyLocal:
		return !pod && !host, masquerades(h.masquerade(), pod, host, host) || r.loopback(h, host)
	}

	return false, masquerades(h.masquerade(), pod, host, true) || r.loopback(h, host)
}

func masquerades(m sm.MasqueradePolicy, pod, host, usual bool) bool {
	switch m {
	case sm.MasqueradeAlways:
		return true
	case sm.MasqueradeNever:
		return false
	case sm.MasqueradeHost:
		return host
	case sm.MasqueradeNotPods:
		return !pod
	}

	return usual
}

func (h hit) masquerade() sm.MasqueradePolicy {
	m := h.svc.Masquerade
	return map[sm.Kind]sm.MasqueradePolicy{sm.LoadBalancer: m.LoadBalancerIPs,
		sm.ExternalIP: m.ExternalIPs, sm.HostIP: m.HostIPs, sm.NodePort: m.NodePorts}[h.kind]
}

// loopback reports whether a packet of the node may come from a loopback address. Such a packet is
// masqueraded whatever the policy says.
func (r reference) loopback(h hit, host bool) bool {
	return host && r.localhost() && h.family == sm.IPv4 &&
		(h.kind == sm.NodePort || h.kind == sm.HostIP && h.loopback)
}

func answered(a, byDefault string) string {
	switch a {
	case "drop":
		return "dropped"
	case "":
		return byDefault
	}

	return "rejected"
}

func (r reference) balanced(p sm.Packet, h hit, use map[netip.AddrPort]sm.Endpoint,
	masquerade bool) string {
	var list []string
	as := ""
	for _, a := range h.svc.MasqueradeIPs {
		switch {
		case !masquerade || sm.FamilyOf(a) != h.family:
		case !a.IsUnspecified():
			as = " as " + a.String()
		case h.kind != sm.NodePort && !p.Dst.Addr().IsLoopback():
			as = " as " + p.Dst.Addr().String()
		}
	}

	weights := weightsOf(use, h.svc.Scheduler)
	for at, e := range use {
		hairpin := e.Addr == p.Src.Addr() && r.isHairpin(e.Addr)
		weight := weights[at]
		switch {
		case h.port.TargetPort != 0 && h.kind == sm.NodePort:
			at = netip.AddrPortFrom(at.Addr(), h.port.TargetPort+p.Dst.Port()-h.port.NodePort)
		case h.port.TargetPort != 0:
			at = netip.AddrPortFrom(at.Addr(), h.port.TargetPort+p.Dst.Port()-h.port.Port)
		case at.Port() == 0:
			at = netip.AddrPortFrom(at.Addr(), p.Dst.Port())
		}
		list = append(list, fmt.Sprintf("%v*%d/%v%s", at, weight,
			masquerade || hairpin, as))
	}

	slices.Sort(list)
	return "balanced " + strings.Join(list, " ")
}

// weightsOf returns the effective weights: without a common divisor, or the units of shares.
func weightsOf(use map[netip.AddrPort]sm.Endpoint, by sm.Scheduler) map[netip.AddrPort]int {
	out, unit := map[netip.AddrPort]int{}, commonDivisor(use)
	var shared, weights float64
	for at, e := range use {
		out[at] = int(max(e.Weight, 1) / unit)
		if e.Share > 0 {
			shared, weights = shared+float64(e.Share), weights+float64(out[at])
		}
	}

	if shared == 0 || by != sm.WeightedLC {
		return out
	}
	sorted := slices.SortedFunc(maps.Keys(use), netip.AddrPort.Compare)
	var shares []float64
	for _, at := range sorted {
		share := float64(use[at].Share)
		if share == 0 {
			share = shared * float64(out[at]) / weights
		}
		shares = append(shares, share)
	}

	for i, n := range sm.Apportion(shares, sm.FedUnits(len(shares))) {
		out[sorted[i]] = n
	}
	return out
}

// commonDivisor returns the largest number that divides all weights.
func commonDivisor(use map[netip.AddrPort]sm.Endpoint) uint16 {
	for n := uint16(5); n > 1; n-- { // random weights are at most 5
		all := true
		for _, e := range use {
			all = all && max(e.Weight, 1)%n == 0
		}
		if all {
			return n
		}
	}

	return 1
}

func (r reference) fromPod(p sm.Packet) bool {
	d := r.node.LocalPods
	return slices.ContainsFunc(d.CIDRs, func(c netip.Prefix) bool {
		return c.Contains(p.Src.Addr())
	}) ||
		d.Bridge != "" && p.InInterface == d.Bridge || d.InterfacePrefix != "" &&
		strings.HasPrefix(p.InInterface, d.InterfacePrefix)
}

func (r reference) detects(f sm.Family) bool {
	d := r.node.LocalPods
	return d.Bridge != "" || d.InterfacePrefix != "" ||
		slices.ContainsFunc(d.CIDRs, func(c netip.Prefix) bool {
			return sm.FamilyOf(c.Addr()) == f
		})
}

// find returns the service port that p matches: addresses before node ports, node ports before
// ranges at addresses, and these before ranges of node ports. The narrowest range and then the
// first wins; then kind and name decide.
func (r reference) find(p sm.Packet) (best hit, found bool) {
	dst, f := p.Dst.Addr(), sm.FamilyOf(p.Dst.Addr())
	rank := func(h hit) [4]int {
		width := int(h.port.EndPort) - int(h.port.Port)
		switch {
		case h.port.EndPort == 0:
			return [4]int{0, 0, 0, int(h.kind)}
		case h.kind == sm.NodePort:
			return [4]int{2, width, int(h.port.NodePort)}
		}
		return [4]int{1, width, int(h.port.Port), int(h.kind)}
	}

	consider := func(h hit) {
		if x, y := rank(h), rank(best); !found || slices.Compare(x[:], y[:]) < 0 {
			best, found = h, true // services are in the order of their names
		}
	}

	for svc := range r.state.Services() {
		families := map[sm.Family]bool{}
		for _, a := range svc.ClusterIPs {
			families[sm.FamilyOf(a)] = true
		}
		if len(svc.ClusterIPs) > 0 && !families[f] {
			continue
		}
		for _, port := range svc.Ports {
			if port.Protocol != p.Protocol {
				continue
			}
			if port.Port <= p.Dst.Port() && p.Dst.Port() <= max(port.Port, port.EndPort) {
				for _, k := range r.kindsAt(svc, p) {
					consider(hit{svc, port, k, f, dst.IsLoopback()})
				}
			}

			more := max(port.EndPort, port.Port) - port.Port
			if port.NodePort != 0 && port.NodePort <= p.Dst.Port() &&
				p.Dst.Port() <= port.NodePort+more && r.takesNodePorts(p) &&
				r.answersNodePorts(svc, f) {
				consider(hit{svc, port, sm.NodePort, f, dst.IsLoopback()})
			}
		}
	}

	return best, found
}

// kindsAt returns the kinds of the service's addresses that equal the packet's destination.
func (r reference) kindsAt(svc *sm.Service, p sm.Packet) (kinds []sm.Kind) {
	dst := p.Dst.Addr()
	if slices.Contains(svc.ClusterIPs, dst) {
		kinds = append(kinds, sm.ClusterIP)
	}
	if slices.Contains(svc.LoadBalancerIPs, sm.LoadBalancerIP{Addr: dst}) {
		kinds = append(kinds, sm.LoadBalancer)
	}
	if slices.Contains(svc.ExternalIPs, dst) {
		kinds = append(kinds, sm.ExternalIP)
	}
	if slices.Contains(svc.HostIPs, dst) && (!dst.IsLoopback() || r.takesLoopback(p)) {
		kinds = append(kinds, sm.HostIP)
	}
	return kinds
}

// takesLoopback reports whether a packet to a loopback address may match a service.
func (r reference) takesLoopback(p sm.Packet) bool {
	return p.FromThisNode && r.localhost() && p.Dst.Addr().Is4()
}

// localhost reports whether loopback addresses can answer at all. They can if node ports may answer
// at them.
func (r reference) localhost() bool {
	any, covered := false, false
	for _, c := range r.node.NodePortAddresses.CIDRs {
		any = any || c.Addr().Is4()
		covered = covered || c.Overlaps(netip.MustParsePrefix("127.0.0.0/8"))
	}

	return r.node.LocalhostNodePorts && !r.node.NodePortAddresses.Primary && (!any || covered)
}

func (r reference) takesNodePorts(p sm.Packet) bool {
	dst := p.Dst.Addr()
	f := sm.FamilyOf(dst)
	if !r.local.Local(dst) || dst.IsLoopback() && !r.takesLoopback(p) {
		return false
	}
	if r.node.NodePortAddresses.Primary {
		return dst == r.primary(f)
	}
	any := false
	for _, c := range r.node.NodePortAddresses.CIDRs {
		any = any || sm.FamilyOf(c.Addr()) == f
		if c.Contains(dst) {
			return true
		}
	}

	return !any
}

func (r reference) primary(f sm.Family) netip.Addr {
	for _, a := range r.node.Addresses {
		if sm.FamilyOf(a) == f {
			return a
		}
	}

	return netip.Addr{}
}

// answersNodePorts implements kernlb's own rule for services without cluster IPs.
func (r reference) answersNodePorts(svc *sm.Service, f sm.Family) bool {
	if len(svc.ClusterIPs) > 0 {
		return true
	}
	seen := map[sm.Family]bool{}
	for _, a := range svc.ExternalIPs {
		seen[sm.FamilyOf(a)] = true
	}
	for _, a := range svc.HostIPs {
		seen[sm.FamilyOf(a)] = true
	}
	for _, a := range svc.LoadBalancerIPs {
		seen[sm.FamilyOf(a.Addr)] = true
	}
	for _, e := range r.state.Endpoints(svc.Name) {
		seen[sm.FamilyOf(e.Addr)] = true
	}
	return len(seen) == 0 || seen[f]
}

func allowedByRules(svc *sm.Service, src, dst netip.Addr) bool {
	in := func(l []netip.Prefix) bool {
		return slices.ContainsFunc(l, func(p netip.Prefix) bool { return p.Contains(src) })
	}
	for _, c := range svc.Clients {
		if (len(c.Addrs) == 0 || slices.Contains(c.Addrs, dst)) &&
			(len(c.Allow) > 0 && !in(c.Allow) || in(c.Deny)) {
			return false
		}
	}
	return true
}

func (r reference) allowed(svc *sm.Service, src netip.Addr, f sm.Family) bool {
	restricted, self := false, false
	for _, c := range svc.LoadBalancerSourceRanges {
		if sm.FamilyOf(c.Addr()) != f {
			continue
		}
		restricted = true
		if c.Bits() == 0 || c.Contains(src) {
			return true
		}
		self = self || c.Contains(r.primary(f))
	}

	return !restricted || self && slices.Contains(svc.LoadBalancerIPs, sm.LoadBalancerIP{Addr: src})
}

// endpoints implements section 1.6 of the behaviour, step by step.
func (r reference) endpoints(h hit, f sm.Family) (cluster, local map[netip.AddrPort]sm.Endpoint,
	hasAny bool) {
	all := map[netip.AddrPort]sm.Endpoint{}
	for _, e := range r.state.Endpoints(h.svc.Name) {
		for _, q := range e.Ports {
			if sm.FamilyOf(e.Addr) != f || q.Name != h.port.Name || q.Protocol != h.port.Protocol {
				continue
			}
			at := netip.AddrPortFrom(e.Addr, q.Port)
			switch {
			case q.Port == 0 && h.port.EndPort == 0:
				at = netip.AddrPortFrom(e.Addr, h.port.Port)
			case q.Port == 0:
				at = netip.AddrPortFrom(e.Addr, h.port.TargetPort)
			}
			if old, taken := all[at]; !taken || rank(e) > rank(old) {
				all[at] = e
			}
		}
	}

	ready := func(e sm.Endpoint) bool { return e.Condition == sm.Ready }
	fallback := func(e sm.Endpoint) bool { return e.Condition == sm.Serving }
	here := func(e sm.Endpoint) bool { return e.Node != "" && e.Node == r.node.Name }
	cluster = where(where(all, ready), r.topology(where(all, ready)))
	if len(cluster) == 0 {
		cluster = where(all, fallback)
	}
	local = where(where(all, here), ready)
	if len(local) == 0 {
		local = where(where(all, here), fallback)
	}
	return cluster, local, len(where(all, ready))+len(where(all, fallback)) > 0
}

// topology returns a filter for the ready endpoints that the hints allow.
func (r reference) topology(ready map[netip.AddrPort]sm.Endpoint) func(sm.Endpoint) bool {
	for _, hint := range []struct {
		of   func(sm.Endpoint) []string
		self string
	}{{func(e sm.Endpoint) []string {
		return e.ForNodes
	}, r.node.Name}, {func(e sm.Endpoint) []string { return e.ForZones }, r.node.Zone}} {
		names := func(e sm.Endpoint) bool {
			return hint.self != "" && slices.Contains(hint.of(e), hint.self)
		}
		hinted := where(ready, func(e sm.Endpoint) bool { return len(hint.of(e)) > 0 })
		if len(hinted) == len(ready) && len(where(ready, names)) > 0 {
			return names
		}
	}

	return func(sm.Endpoint) bool { return true }
}

func where(all map[netip.AddrPort]sm.Endpoint,
	keep func(sm.Endpoint) bool) map[netip.AddrPort]sm.Endpoint {
	kept := map[netip.AddrPort]sm.Endpoint{}
	for at, e := range all {
		if keep(e) {
			kept[at] = e
		}
	}

	return kept
}

// packet returns a packet that probably meets an object of the state.
func (r source) packet(s sm.State, here sm.Locality) sm.Packet {
	f := r.family()
	p := sm.Packet{
		Src:      netip.AddrPortFrom(r.addr(f, pick(r, 1, 64, 64, 96, 192), 12), 40000),
		Dst:      netip.AddrPortFrom(r.addr(f, pick(r, 96, 96, 96, 97), 12), uint16(78+r.IntN(7))),
		Protocol: pick(r, sm.TCP, sm.TCP, sm.UDP, sm.SCTP, sm.Protocol(1)),
	}
	if len(here) > 0 && r.chance(40) {
		p.Dst = netip.AddrPortFrom(pick(r, here...), uint16(30000+r.IntN(9)))
		if r.chance(80) {
			f = sm.FamilyOf(p.Dst.Addr())
			p.Src = netip.AddrPortFrom(r.addr(f, pick(r, 1, 64, 192), 12), 40000)
		}
	}

	if f == sm.IPv4 && r.chance(10) {
		p.Src = netip.MustParseAddrPort("127.0.0.1:40000")
		p.Dst = netip.AddrPortFrom(ip("127.0.0.1"), pick(r, p.Dst.Port(), 80, 30000, 30004))
	}

	switch r.IntN(4) {
	case 0:
		p.FromThisNode = true
	case 1:
		p.InInterface = pick(r, "cbr0", "veth1", "eth0")
	}

	return p
}

func TestDecisionsAgreeWithTheReference(t *testing.T) {
	t.Parallel()
	r := newSource(t)
	outcomes := map[string]int{}
	for range 150 {
		s := r.state()
		for svc := range s.Services() { // TestSharesOfLevels has its own reference
			svc.Prefer, svc.SlowStart = "", 0
			svc.MasqueradeIPs = pick(r, nil, addrs("192.0.2.9"), addrs("192.0.2.9", "::"),
				addrs("0.0.0.0"), addrs("2001:db8::9"))
			s = s.WithService(svc)
		}

		here := sm.Locality(some(r, 4, func() netip.Addr { return r.addr(r.family(), 192, 6) }))
		table := mustResolve(t, nil, s)
		ref := reference{state: s, node: s.Node(), local: here,
			isHairpin: table.HasHairpin}
		for range 60 {
			p := r.packet(s, here)
			if sm.FamilyOf(p.Src.Addr()) != sm.FamilyOf(p.Dst.Addr()) {
				continue
			}
			d := table.Decide(p, here)
			got := string(d.Outcome)
			if d.Outcome == sm.Balanced {
				var list []string
				for _, c := range d.Candidates {
					as := ""
					if c.MasqueradeIP.IsValid() {
						as = " as " + c.MasqueradeIP.String()
					}
					list = append(list, fmt.Sprintf("%v*%d/%v%s", c.Endpoint, c.Weight,
						c.Masquerade, as))
				}

				slices.Sort(list)
				got += " " + strings.Join(list, " ")
			}

			require.Equal(t, ref.decide(p), got, "%+v, decided: %v", p, d)
			outcomes[string(d.Outcome)]++
		}
	}

	for _, o := range []sm.Outcome{sm.Untouched, sm.Balanced, sm.Rejected, sm.Dropped} {
		require.Positive(t, outcomes[string(o)], "the packets must see %v", o)
	}
}
