package iptables

import (
	"cmp"
	"hash/maphash"
	"slices"
)

// ruleEdit is one step of the change from the current rules of a chain to the desired rules. Steps
// are in the order of the chain.
type ruleEdit struct {
	kind editKind
	// at is the index of the rule that is kept, replaced or deleted, or before which a rule is
	// inserted (at the end, if the index is past the last rule).
	at int
	// rule is the index of the new rule among the desired rules.
	rule int
}

type editKind uint8

const (
	editKeep editKind = iota
	editInsert
	editReplace
	editDelete
)

// maxCompared limits the number of pairs of equal rules of two chains that are compared.
const maxCompared = 1 << 20

// editsBetween returns the shortest list of steps from one list of rules to another.
func editsBetween(before, after []rule) (l []ruleEdit) {
	at, next := 0, 0
	for _, k := range append(kept(before, after), pair{len(before), len(after)}) {
		for ; at < k.before && next < k.after; at, next = at+1, next+1 {
			l = append(l, ruleEdit{editReplace, at, next})
		}
		for ; next < k.after; next++ {
			l = append(l, ruleEdit{editInsert, at, next})
		}
		for ; at < k.before; at++ {
			l = append(l, ruleEdit{editDelete, at, next})
		}
		if at < len(before) {
			l = append(l, ruleEdit{editKeep, at, next})
			at, next = at+1, next+1
		}
	}

	return l
}

// pair holds the indices of a rule in both lists.
type pair struct{ before, after int }

// kept returns a longest common subsequence of two lists.
func kept(a, b []rule) (l []pair) {
	head, tail, shorter := 0, 0, min(len(a), len(b))
	for head < shorter && a[head].same(&b[head]) {
		l = append(l, pair{head, head})
		head++
	}

	for tail < shorter-head && a[len(a)-1-tail].same(&b[len(b)-1-tail]) {
		tail++
	}
	for _, k := range commonest(a[head:len(a)-tail], b[head:len(b)-tail]) {
		l = append(l, pair{head + k.before, head + k.after})
	}
	for ; tail > 0; tail-- {
		l = append(l, pair{len(a) - tail, len(b) - tail})
	}
	return l
}

// commonest returns a longest common subsequence of two lists (Hunt and Szymanski, 1977). Its time
// grows with the number of pairs of equal rules, and chains have few such pairs. If there are too
// many, it returns none.
func commonest(before, after []rule) (l []pair) {
	seed := maphash.MakeSeed()
	last := make(map[uint64]int, len(after)) // by hash, the last place in after, counted from 1
	prev := make([]int, len(after))          // the place before it with that hash
	for j := range after {
		h := maphash.Comparable(seed, after[j])
		prev[j], last[h] = last[h], j+1
	}

	type link struct {
		pair
		prev int // the index of the pair before, -1 for none
	}
	var links []link
	var ends []int // by length, the pair that ends such a subsequence earliest in after
	compared := 0
	for i := range before {
		for j := last[maphash.Comparable(seed, before[i])] - 1; j >= 0; j = prev[j] - 1 {
			if compared++; compared > maxCompared {
				return nil
			}
			if !before[i].same(&after[j]) {
				continue
			}
			n, _ := slices.BinarySearchFunc(ends, j, func(e, j int) int {
				return cmp.Compare(links[e].after, j)
			})
			x := link{pair{i, j}, -1}
			if n > 0 {
				x.prev = ends[n-1]
			}
			if n == len(ends) {
				ends = append(ends, 0)
			}
			ends[n] = len(links)
			links = append(links, x)
		}
	}

	if len(ends) == 0 {
		return nil
	}
	for at := ends[len(ends)-1]; at >= 0; at = links[at].prev {
		l = append(l, links[at].pair)
	}
	slices.Reverse(l)
	return l
}
