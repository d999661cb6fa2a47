package iptables

import (
	"hash/maphash"

	"github.com/kernlb/kernlb/internal/nft"
)

// Uses. The kernel tells with each chain how many rules it has and how many rules lead to it, in
// one number (NFTA_CHAIN_USE), and lists ten thousand chains in some milliseconds. So it can be
// noticed cheaply that rules came or went in chains of services, though not in which, nor that a
// rule took the place of another. What is kept of all these numbers is a sum of products with a
// hash of the chain's identity, from which that of a change follows.

// uses is a sum over the chains of an instance but for shared ones: hash of the chain times one
// more than its number.
type uses uint64

// counts reports whether a chain is among those that are counted.
func (l *layout) counts(id chainID) bool { return l.names.owned(id.name) }

// add counts n uses more of a chain; one that is new counts as one more.
func (u *uses) add(l *layout, id chainID, n int) {
	if n != 0 && l.counts(id) {
		*u += uses(maphash.Comparable(l.seed, id) * uint64(n))
	}
}

// usesOf returns the sum of what the kernel lists.
func (l *layout) usesOf(r *raw) (u uses) {
	for i := range nft.Families {
		for _, t := range tables {
			for name, c := range r.tables[i][t].chains {
				u.add(l, chainID{uint8(i), t, name}, int(c.Use)+1)
			}
		}
	}
	return u
}

// change counts what a plan does to a chain. A chain that something foreign leads to is emptied,
// but stays.
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

// leads returns the chain that a rule of a chain jumps or goes to; one without a name if there
// is none.
func (r *rule) leads(from chainID) chainID { return chainID{from.family, from.table, r.chain} }
