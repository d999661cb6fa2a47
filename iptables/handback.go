package iptables

import (
	"slices"

	"github.com/kernlb/kernlb/internal/nft"
)

// A kube-proxy in iptables mode may start after this backend has ended. It takes over the backend's
// chains in the same way as this backend takes over kube-proxy's: its first sync rewrites all
// chains whose names both programs use. From then on, these chains belong to kube-proxy, and a
// cleanup removes the other chains.

// handedBack reports whether a kube-proxy has started since the last commit. kube-proxy creates a
// certain chain first, and each of our commits removes that chain.
func (l *layout) handedBack(r *raw) bool {
	former := l.names.former()
	return r.chains[filter4.chain(former)] != nil || r.chains[filter6.chain(former)] != nil
}

// planHandedBack plans the removal of the chains that kube-proxy does not use, and of the rules
// that jump to them. kube-proxy itself removes chains of services that it does not know. The guard
// of node ports at localhost and its sysctl stay, because kube-proxy needs both.
func (l *layout) planHandedBack(k *kernelState, r *raw) *plan {
	ch := changes{}
	for id, c := range r.chains {
		x := &chainChange{id: id, existed: true, before: c.rules}
		if !l.names.exclusive(id.table.kind(), id.name) && !(l.isVersion(id) && c.Use > 0) {
			x.exists, x.after = true, l.withoutExclusive(id, c.rules, r)
		}
		if !x.exists || !slices.Equal(x.after, x.before) {
			ch[id] = x
		}
	}

	p := &plan{l: l, needed: k.needed, next: &state{}, chains: ch.sorted()}
	if len(p.chains) > 0 || len(k.versions) > 0 {
		p.version = l.renew(k, nft.IPv4, false)
	}
	return p
}

// withoutExclusive returns the rules of a chain that stay: rules of kube-proxy and of other
// programs. kube-proxy has the same jumps as we do to chains that both programs use, with one
// exception. A rule of ours that jumps to a step is replaced with the rules of that step.
// Otherwise, kube-proxy could not write anything while steps jump to chains of services that it
// wants to delete. Until it can write, services continue to work.
func (l *layout) withoutExclusive(id chainID, rules []rule, in *raw) (stay []rule) {
	if !isBase(id) && !l.names.owned(id.name) {
		return rules
	}
	input := id.table.kind() == filter && id.name == "INPUT"
	for _, r := range rules {
		to := id.table.chain(r.chain)
		switch step := in.chains[to]; {
		case step != nil && l.names.isStep(r.chain):
			stay = append(stay, l.withoutExclusive(to, step.rules, in)...)
		case !l.names.exclusive(id.table.kind(), r.chain) &&
			!(input && r.chain == l.names.services()):
			stay = append(stay, r)
		}
	}

	return stay
}

// exclusive reports whether a chain of a table belongs to the instance and kube-proxy does not make
// such chains. kube-proxy has its chains of services only in nat.
func (n names) exclusive(t tableKind, chain string) bool {
	switch chain {
	case n.services(), n.nodePorts(), n.markMasq(), n.postrouting(), n.forward(), n.sourceRanges(),
		n.former():
		return false
	}

	return n.owned(chain) && (t == filter || !n.ofService(chain))
}
