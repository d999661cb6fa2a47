package servicemodel

import (
	"fmt"
	"net/netip"
	"slices"
)

// ClientRule says which clients may connect to addresses of a service. Rules are independent: a
// client may connect to an address if all rules for this address allow it. At a load balancer IP,
// [Service.LoadBalancerSourceRanges] must allow it, too.
type ClientRule struct {
	// Addrs are the addresses of the service to which the rule applies; their kind does not matter.
	// Empty means all addresses. No rule restricts node ports.
	Addrs []netip.Addr `json:"addrs,omitempty"`

	// Allow, if not empty, lists the only clients that may connect. If it has no range of a family,
	// no client of that family may connect.
	Allow []netip.Prefix `json:"allow,omitempty"`

	// Deny lists clients that may not connect, even if Allow contains them. Tables store only
	// allowed ranges: one denied range becomes up to 32 allowed ranges, or 128 for IPv6. A service
	// may deny at most 64 ranges.
	Deny []netip.Prefix `json:"deny,omitempty"`
}

// maxDenied is the greatest number of ranges that the rules of a service may deny.
const maxDenied = 64

func (c ClientRule) equal(o ClientRule) bool {
	return slices.Equal(c.Addrs, o.Addrs) && slices.Equal(c.Allow, o.Allow) &&
		slices.Equal(c.Deny, o.Deny)
}

func (c ClientRule) clone() ClientRule {
	return ClientRule{slices.Clone(c.Addrs), slices.Clone(c.Allow), slices.Clone(c.Deny)}
}

// concerns reports whether the rule applies to an address.
func (c ClientRule) concerns(a netip.Addr) bool {
	return len(c.Addrs) == 0 || slices.Contains(c.Addrs, a)
}

func (p *problems) checkClients(rules []ClientRule) {
	denied := 0
	p.each("clients", len(rules), func(i int) {
		r := &rules[i]
		p.checkAddrs("addrs", r.Addrs, ofHost)
		p.checkRanges("allow", r.Allow)
		p.checkRanges("deny", r.Deny)
		if len(r.Allow)+len(r.Deny) == 0 {
			p.add("allow", nil, "required, unless deny is given")
		}
		if denied += len(r.Deny); denied > maxDenied {
			p.add("deny", denied, fmt.Sprintf("too many ranges: a service may deny %d", maxDenied))
		}
	})
}

// clients returns the ranges of allowed that the rules of the service allow at an address. Nil
// means no restriction. If the node itself may connect, it may also do so from that address, as in
// [decider.allowed].
func (d *decider) clients(a netip.Addr, allowed []netip.Prefix) []netip.Prefix {
	everybody := netip.PrefixFrom(unspecified(d.family), 0)
	rest := allowed
	if allowed == nil {
		rest = []netip.Prefix{everybody}
	}

	for _, r := range d.svc.Clients {
		if !r.concerns(a) {
			continue
		}
		if len(r.Allow) > 0 {
			rest = intersection(rest, r.Allow)
		}
		for _, p := range r.Deny {
			rest = without(rest, p.Masked())
		}
	}

	if slices.Contains(rest, everybody) {
		return nil
	}
	if containsAddr(rest, *d.view.primary.of(d.family)) {
		rest = append(rest, netip.PrefixFrom(a, a.BitLen()))
	}
	if len(rest) == 0 { // no client may connect: no client has this address
		rest = append(rest, netip.PrefixFrom(everybody.Addr(), a.BitLen()))
	}
	return canonical(rest)
}

// intersection returns the ranges that both lists cover.
func intersection(l, o []netip.Prefix) (both []netip.Prefix) {
	for _, p := range l {
		for _, q := range o {
			switch {
			case !p.Overlaps(q):
			case p.Bits() >= q.Bits():
				both = append(both, p)
			default:
				both = append(both, q.Masked())
			}
		}
	}

	return both
}

// without returns ranges that cover the list without the hole. A range around the hole is replaced
// by its halves that lie outside the hole, from the widest to the narrowest.
func without(list []netip.Prefix, hole netip.Prefix) (rest []netip.Prefix) {
	for _, p := range list {
		if !p.Overlaps(hole) {
			rest = append(rest, p)
			continue
		}
		for bits := p.Bits() + 1; bits <= hole.Bits(); bits++ {
			half := hole.Addr().AsSlice()
			half[(bits-1)/8] ^= 0x80 >> ((bits - 1) % 8)
			a, _ := netip.AddrFromSlice(half)
			rest = append(rest, netip.PrefixFrom(a, bits).Masked())
		}
	}

	return rest
}

// clientRules warns about addresses that the service does not have, and about node ports that stay
// open although the rules restrict all addresses.
func (w *warner) clientRules() {
	for i, r := range w.svc.Clients {
		for j, a := range r.Addrs {
			known := slices.ContainsFunc(w.claims, func(c *Frontend) bool {
				return c.Key.Addr == a
			})
			w.addIf(!known && FamilyOf(a).servedBy(w.view.only),
				fmt.Sprintf("clients[%d].addrs[%d]", i, j), "the node does not answer there")
		}
		w.addIf(len(r.Addrs) == 0 && w.has(NodePort), fmt.Sprintf("clients[%d]", i),
			"does not restrict the node ports")
	}
}
