package node

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/kernlb/kernlb/dataplane/hooks"
	"github.com/kernlb/kernlb/dataplane/sysctls"
	"github.com/kernlb/kernlb/internal/rtnetlink"
	"github.com/kernlb/kernlb/servicemodel"
)

// families are the families in the order of messages.
var families = []servicemodel.Family{servicemodel.IPv4, servicemodel.IPv6}

// use contains the facts that matter to the services.
type use struct {
	remote, local map[servicemodel.Family]bool // endpoints elsewhere, and on the node itself
	bridges       map[int]bool                 // bridges of endpoints, by index in facts
	failed        map[netip.Addr]bool
	targets       []target // sorted, if rules of other programs drop
}

// target contains the properties of an endpoint that a firewall rule may match.
type target struct {
	protocol servicemodel.Protocol
	endpoint netip.AddrPort
}

// useOf examines each endpoint once.
func (f *facts) useOf(t *servicemodel.Table) use {
	u := use{map[servicemodel.Family]bool{}, map[servicemodel.Family]bool{}, map[int]bool{},
		map[netip.Addr]bool{}, nil}
	asked := f.dropRules()
	for pool := range t.Pools() {
		for _, s := range pool.Slots {
			addr := s.Endpoint.Addr()
			family := servicemodel.FamilyOf(addr)
			if f.addrs.Local(addr) {
				u.local[family] = true
				continue
			}

			u.remote[family] = true
			for i, b := range f.bridges {
				if slices.ContainsFunc(b.nets, func(p netip.Prefix) bool {
					return p.Contains(addr)
				}) {
					u.bridges[i] = true
				}
			}

			if len(f.failed) > 0 {
				u.failed[addr] = true
			}
			if asked {
				u.targets = append(u.targets, target{pool.ID.Service.Protocol, s.Endpoint})
			}
		}
	}

	slices.SortFunc(u.targets, func(a, b target) int { return a.endpoint.Compare(b.endpoint) })
	return u
}

// dropRules reports whether other programs have rules that drop.
func (f *facts) dropRules() bool {
	return slices.ContainsFunc(f.chains, func(c hooks.Chain) bool { return len(c.Drops) > 0 })
}

// findings evaluates all checks for the services in the kernel.
func (f *facts) findings(t *servicemodel.Table) []Finding {
	u, l := f.useOf(t), []Finding{}
	add := func(c Check, s Severity, do, means string, args ...any) {
		l = append(l, Finding{c, s, fmt.Sprintf(means, args...), do})
	}
	if f.undone != "" {
		add(Repairs, Error, "stop that program, or let it change only its own tables", "%s: until "+
			"the next repair, connections to services fail", f.undone)
	}
	for _, family := range families {
		f.forwarding(family, &u, add)
	}
	f.links(&u, add)
	f.conntrack(add)
	f.reversePath(add)
	for i, b := range f.bridges {
		f.bridge(b, u.bridges[i], add)
	}
	f.localnet(t, add)
	f.neighbours(&u, add)
	if f.proxy != "" {
		add(KubeProxy, Warning, "stop kube-proxy, then kernlb cleanup -of kube-proxy", "a "+
			"kube-proxy runs on this node (mode %s): for each new connection to a service of "+
			"both, the program whose rules come first decides", f.proxy)
	} else if len(f.leftover) > 0 {
		add(KubeProxy, Warning, "kernlb cleanup -of kube-proxy", "a kube-proxy that does not "+
			"run has left %s: connections may go to endpoints that are gone", some(f.leftover))
	}

	for _, c := range f.chains {
		f.chain(c, &u, add)
	}
	return l
}

type adder = func(c Check, s Severity, do, means string, args ...any)

func (f *facts) forwarding(family servicemodel.Family, u *use, add adder) {
	if f.forwards == nil || !u.remote[family] || f.forwards[family] {
		return
	}
	do := "sysctl -w net.ipv4.ip_forward=1"
	if family == servicemodel.IPv6 {
		do = "sysctl -w net.ipv6.conf.all.forwarding=1"
	}
	add(Forwarding, Error, do, "%v forwarding is off: clients that are not on this node reach "+
		"no endpoint through it", family)
}

// links judges links from which IPv4 packets are not forwarded. Some links are not meant to
// forward, such as a management link, so it is an error only if the kernel dropped packets for that
// reason.
func (f *facts) links(u *use, add adder) {
	if len(f.still) == 0 || !f.forwards[servicemodel.IPv4] || !u.remote[servicemodel.IPv4] {
		return
	}
	severity, dropped := Warning, ""
	if f.grown[unforwarded] > 0 {
		severity, dropped = Error, ": the kernel dropped "+f.packets(unforwarded, 0)
	}
	do := "sysctl -w"
	for _, link := range f.still[:min(len(f.still), mostNamed)] {
		do += " " + rtnetlink.Sysctl("ipv4", link, "forwarding") + "=1"
	}
	add(Forwarding, severity, do, "IPv4 packets that come in by %s are not forwarded to "+
		"endpoints%s", some(f.still), dropped)
}

// reversePath judges rp_filter by the packets that it dropped.
func (f *facts) reversePath(add adder) {
	severity, do := Warning, f.lenient
	switch {
	case f.grown[reversePath] == 0:
		return
	case len(f.strict) > 1:
		do = "kernlb diagnose and kernlb trace -live name the link where the packets come in, " +
			"clients' or endpoints', and what to do there"
	case len(f.strict) == 0 && f.loose:
		do = "add a route back to the sources: rp_filter is 2, so any link will do"
	case len(f.strict) == 0:
		severity, do = Note, "nothing: rp_filter is off at all links now"
	}

	add(ReversePath, severity, do, "rp_filter dropped %s, because the route back to their source "+
		"leads by another link%s", f.packets(reversePath, 0), on(f.strict))
}

// packets returns the number of packets that a counter counted as lost, as text with the period. It
// subtracts packets that another cause explains.
func (f *facts) packets(counter int, without uint64) string {
	n := f.grown[counter] - without
	s := fmt.Sprintf("%d packets", n)
	if n == 1 {
		s = "1 packet"
	}
	return s + f.within(counter)
}

// within returns the period in which a number grew, and the time since the last growth, as text.
func (f *facts) within(counter int) string {
	s := " in the last " + f.over.Round(time.Second/10).String()
	if calm := f.calm[counter]; calm >= 30*time.Second {
		s += ", none in the last " + calm.Round(time.Second).String()
	}
	return s
}

func (f *facts) conntrack(add adder) {
	more := f.usage.Advice()
	resolved := min(f.grown[clashes], f.grown[drops])
	lost := f.grown[drops] > resolved
	share := f.usage.Fraction()
	full := share > 0.95
	switch {
	case lost && full:
		add(Conntrack, Error, more, "the table of connections is full (%d of %d) and lost %s: "+
			"new connections fail", f.usage.Count, f.usage.Max, f.packets(drops, resolved))
	case share >= 1:
		add(Conntrack, Error, more, "the table of connections is full (%d of %d): new connections "+
			"fail", f.usage.Count, f.usage.Max)
	case share > 0.9:
		add(Conntrack, Warning, more, "the table of connections is nearly full (%d of %d): new "+
			"connections will fail", f.usage.Count, f.usage.Max)
	}

	if lost && !full {
		add(Conntrack, Warning, more, "the table of connections was full and lost %s; now it "+
			"holds %d of %d", f.packets(drops, resolved), f.usage.Count, f.usage.Max)
	}
	if n := f.grown[evictions]; n > 0 {
		add(Conntrack, Warning, more, "the kernel evicted %d connections to make room in the "+
			"table%s", n, f.within(evictions))
	}
	if f.grown[longChains] > 0 {
		add(Conntrack, Warning, "raise net.netfilter.nf_conntrack_buckets", "the kernel lost %s "+
			"because buckets of the table of connections were full", f.packets(longChains, 0))
	}
	if f.grown[clashes] > 0 {
		add(MasqueradePorts, Warning, "give masqueraded clients more addresses, or spread them "+
			"over more endpoints; kernlb flows shows the clients with many connections to one",
			"the kernel lost %s because another connection had the same addresses and ports: the "+
				"ports of masquerade to an endpoint are exhausted, or a client sent two packets "+
				"at once",
			f.packets(clashes, 0))
	}
}

// bridge judges a bridge on which endpoints may be.
func (f *facts) bridge(b bridge, used bool, add adder) {
	if !used {
		return
	}
	for _, family := range families {
		has := slices.ContainsFunc(b.nets, func(p netip.Prefix) bool {
			return servicemodel.FamilyOf(p.Addr()) == family
		})
		if !has || b.calls[family] {
			continue
		}
		name := "bridge-nf-call-iptables"
		if family == servicemodel.IPv6 {
			name = "bridge-nf-call-ip6tables"
		}
		add(Bridge, Warning, "modprobe br_netfilter; sysctl -w net.bridge."+name+"=1", "endpoints "+
			"are on the bridge %s and %s is off: if a pod of the bridge uses a service whose "+
			"endpoint is another one there, the answer does not come back through this node, and "+
			"the connection times out", b.name, name)
	}
}

func (f *facts) localnet(t *servicemodel.Table, add adder) {
	r, value := t.Rules(), f.sysctls[sysctls.RouteLocalnet]
	wanted := len(sysctls.LoopbackNodePorts(&r)) > 0
	switch {
	case wanted && value == "0":
		add(RouteLocalnet, Error, "sysctl -w net.ipv4.conf.all.route_localnet=1", "the sysctl "+
			"route_localnet is off: node ports do not answer at loopback addresses")
	case !wanted && value == "1" && !f.guarded:
		add(RouteLocalnet, Warning, "sysctl -w net.ipv4.conf.all.route_localnet=0", "the sysctl "+
			"route_localnet is on and nothing guards it: other machines on the link reach "+
			"programs that listen at loopback addresses of this node")
	}
}

func (f *facts) neighbours(u *use, add adder) {
	var ends, hops []string
	for _, n := range f.failed {
		text := n.addr.String() + " on " + n.link
		if u.failed[n.addr] {
			ends = append(ends, text)
		} else if f.gateways[n.addr] {
			hops = append(hops, text)
		}
	}

	if len(ends) > 0 {
		add(Neighbours, Error, "see whether the pods run and their links are up (ip neigh, ip "+
			"link)", "nothing answers for the addresses of endpoints: %s; connections to them "+
			"time out",
			some(ends))
	}

	if len(hops) > 0 {
		add(Neighbours, Warning, "see whether the gateways are up (ip route, ip neigh)",
			"gateways do not answer: %s; connections by them time out", some(hops))
	}
}

// mostNamed is the maximum number of names that a finding lists.
const mostNamed = 3

// some lists the first few names.
func some(l []string) string {
	if n := len(l) - mostNamed; n > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(l[:mostNamed], ", "), n)
	}
	return strings.Join(l, ", ")
}

// on lists the links on which a setting is on.
func on(links []string) string {
	if len(links) == 0 {
		return ""
	}
	return " (it is on at " + some(links) + ")"
}
