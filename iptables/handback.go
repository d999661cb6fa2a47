package iptables

import (
	"slices"

	"github.com/kernlb/kernlb/internal/nft"
)

// A kube-proxy in iptables mode that begins where this backend was takes its chains over as this
// backend took over kube-proxy's: with its first sync it writes all those anew whose names both
// have. They are its own then, and a cleanup takes away the rest.

// handedBack reports whether a kube-proxy has begun since the last commit: there is a chain that it
// makes first, and that each commit of ours removes.
func (l *layout) handedBack(r *raw) bool {
	for i := range nft.Families {
		if r.chain(chainID{uint8(i), filter, l.names.prefix + "-" + formerChains[0]}) != nil {
			return true
		}
	}
	return false
}

// planHandedBack makes the plan that removes the chains that kube-proxy does not have, and the
// rules that lead there. Chains of services that it does not know, kube-proxy removes by itself.
// The guard of node ports at localhost stays, and its sysctl: kube-proxy wants both.
func (l *layout) planHandedBack(k *kernelState, r *raw) *plan {
	ch := changes{}
	for i := range nft.Families {
		for _, t := range tables {
			for name, c := range r.tables[i][t].chains {
				id := chainID{uint8(i), t, name}
				x := &chainChange{id: id, existed: true, before: c.rules}
				if !l.names.exclusive(t, name) {
					x.exists, x.after = true, l.withoutExclusive(id, c.rules, r)
				}
				if !x.exists || !slices.Equal(x.after, x.before) {
					ch[id] = x
				}
			}
		}
	}
	p := &plan{l: l, needed: k.needed, next: &state{}, chains: ch.sorted()}
	if len(p.chains) > 0 || len(k.versions) > 0 {
		p.version = k.renew(false)
	}
	return p
}

// withoutExclusive returns the rules of a chain that stay: those of others, and kube-proxy's. Of
// our jumps to chains that kube-proxy has, it has all but one. Where ours lead to a step, its rules
// take their place: a kube-proxy cannot write anything as long as steps lead to chains of services
// that it would delete, and until it can, services go on.
func (l *layout) withoutExclusive(id chainID, rules []rule, in *raw) (stay []rule) {
	if !isBase(id.table, id.name) && !l.names.owned(id.name) {
		return rules
	}
	input := id.table == filter && id.name == "INPUT"
	for _, r := range rules {
		to := chainID{id.family, id.table, r.chain}
		switch step := in.chain(to); {
		case step != nil && l.names.isStep(r.chain):
			stay = append(stay, l.withoutExclusive(to, step.rules, in)...)
		case !l.names.exclusive(id.table, r.chain) && !(input && r.chain == l.names.services()):
			stay = append(stay, r)
		}
	}
	return stay
}

// exclusive reports whether a chain of a table is the instance's and none that kube-proxy makes,
// whose chains of services are all in nat.
func (n names) exclusive(t tableID, chain string) bool {
	switch chain {
	case n.services(), n.nodePorts(), n.markMasq(), n.postrouting(), n.forward(), n.sourceRanges(),
		n.prefix + "-" + formerChains[0]:
		return false
	}
	return n.owned(chain) && (t == filter || !n.ofService(chain))
}
