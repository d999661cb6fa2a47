package iptables

import "hash/maphash"

// Uses. The kernel reports one number with each chain (NFTA_CHAIN_USE): how many rules the chain
// has, plus how many rules lead to it. It lists ten thousand chains in some milliseconds. So it is
// cheap to notice that rules came or went in chains of services. The numbers do not show that a
// rule replaced another. The backend keeps one sum for all these numbers: it multiplies each number
// by a hash of the chain's identity. So the sum after a change follows from the change.

// uses is a sum over the chains of an instance, except shared ones: the hash of the chain times its
// number plus one.
type uses uint64

// add counts n more uses of a chain. A new chain counts as one more.
func (u *uses) add(l *layout, id chainID, n int) {
	if n != 0 && l.names.owned(id.name) {
		*u += uses(maphash.Comparable(l.seed, id) * uint64(n))
	}
}

// usesOf returns the sum for the chains that the kernel lists.
func (l *layout) usesOf(r *raw) (u uses) {
	for id, c := range r.all() {
		u.add(l, id, int(c.Use)+1)
	}
	return u
}

// change counts the changes that a plan makes to a chain. A chain to which a foreign rule leads is
// flushed, but stays.
func (u *uses) change(l *layout, x *chainChange, needed bool) {
	if !x.shared {
		n := len(x.after) - len(x.before)
		switch {
		case x.creates():
			n++
		case x.removes() && !needed:
			n--
		}
		u.add(l, x.id, n)
	}
	for i := range x.before {
		u.add(l, x.before[i].leads(x.id), -1)
	}
	for i := range x.after {
		u.add(l, x.after[i].leads(x.id), 1)
	}
}

// leads returns the chain to which a rule of a chain jumps or goes. The name is empty if there is
// none.
func (r *rule) leads(from chainID) chainID { return from.table.chain(r.chain) }
