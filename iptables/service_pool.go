package iptables

import (
	"net/netip"
	"time"

	"github.com/kernlb/kernlb/servicemodel"
)

// poolChain adds the chain that balances over a pool.
//
// The slots are in reverse order, so that a new slot is a rule in front of the existing rules, and
// the share of each does not depend on the rules before it: the share of slot i is its weight among
// slots 0 to i. The rules that look up a client are in the order of slots, like kube-proxy's. Two
// endpoints may remember the same client, because it opened its first connections at the same time.
// After a takeover, such a client still reaches the same endpoint.
func (b *unitBuilder) poolChain(verdict servicemodel.Verdict, frontends []*servicemodel.Frontend) {
	p := b.pools[verdict]
	var affinity affinity
	var shift portRange
	for _, fe := range frontends { // Check ensures that all affinities are equal
		if fe.Affinity > 0 {
			affinity = affinityOf(fe)
		}
		if fe.Shifted { // all addresses of a service port have the same range
			shift = portRange{fe.Key.Port, fe.Key.EndPort}
		}
	}

	n := len(p.Slots)
	if affinity.time > 0 {
		n *= 2
	}
	rules := b.clusterMarks(make([]rule, 0, n+len(frontends)), verdict, frontends)
	if affinity.time > 0 {
		for i := range p.Slots {
			r := dnatRule(p, i, shift)
			r.recent = b.recent(recentUpdate, p.Slots[i].Endpoint, affinity)
			r.recent.seconds = uint32(affinity.time / time.Second)
			rules = append(rules, r)
		}
	}

	shares := slotShares(p)
	for i := len(p.Slots) - 1; i >= 0; i-- {
		r := dnatRule(p, i, shift)
		r.stat, r.comment = shares[i], slotComment(p, i)
		if affinity.time > 0 {
			r.recent = b.recent(recentSet, p.Slots[i].Endpoint, affinity)
		}
		rules = append(rules, r)
	}

	b.chain(nat, b.pool(verdict), rules)
}

// recent tests or changes the list of an endpoint's clients.
func (b *unitBuilder) recent(k recentKind, ep netip.AddrPort, a affinity) recentMatch {
	return recentMatch{kind: k, name: b.l.names.affinityList(b.name, ep, a), bits: a.bits}
}

// clusterMarks appends the rules that mark packets to cluster IPs, if such packets are sent
// straight to the pool.
func (b *unitBuilder) clusterMarks(rules []rule, v servicemodel.Verdict,
	frontends []*servicemodel.Frontend) []rule {
	for _, fe := range frontends {
		if fe.Internal != v || fe.Masquerade == 0 || !b.usesPool(fe) {
			continue
		}
		r := keyRule(fe.Key)
		r.comment, r.target, r.chain = b.name.String()+" cluster IP", targetJump,
			b.l.names.masqOffPod()
		if fe.Masquerade == servicemodel.FromAnywhere {
			r.chain = b.l.names.markMasq()
		}
		rules = append(rules, r)
	}

	return rules
}

func dnatRule(p *servicemodel.Pool, slot int, shift portRange) rule {
	return rule{proto: p.ID.Service.Protocol, target: targetDNAT, to: p.Slots[slot].Endpoint,
		shift: shift}
}

// affinity is the session affinity of a frontend. A zero time means no affinity.
type affinity struct {
	time  time.Duration
	bits  uint8 // the bits of an address that identify a client, 0 for all
	whole bool  // the ports of the service share their lists
}

func affinityOf(fe *servicemodel.Frontend) affinity {
	return affinity{fe.Affinity, fe.AffinityBits, fe.AffinityService}
}

// slotShares returns the match of each slot's rule, for packets that no rule before it matched.
func slotShares(p *servicemodel.Pool) []statMatch {
	shares := make([]statMatch, len(p.Slots))
	name, port, _ := p.Scheduler.Split()
	sum := uint64(0)
	for i, s := range p.Slots {
		w := uint64(s.Weight)
		sum += w
		switch {
		case i == 0:
		case p.Scheduler == servicemodel.RoundRobin:
			shares[i] = statMatch{kind: statNth, every: uint32(i + 1)}
		default:
			shares[i] = statMatch{kind: statRandom, prob: uint32((w*certain + sum/2) / sum)}
		}

		if i > 0 && name == servicemodel.SourceHash {
			shares[i].kind, shares[i].seed, shares[i].port = statHash, uint32(i), port
		}
	}

	return shares
}
