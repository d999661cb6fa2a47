package nftables

import (
	"strconv"

	"github.com/kernlb/kernlb/servicemodel"
)

// A pool of more than 2^(k-1) and at most 2^k slots is of class k. The sets -over-1, -over-2,
// -over-4 and so on tell the class of a frontend. A packet finds the class by a binary search over
// these numbers. A frontend is only in those sets that its search asks and that lead it to more
// slots. So one endpoint more or less changes none of the sets, unless the class changes.
//
// The sets from -over-128 on exist only while some pool needs them ([shape]). Without them the
// search finds the same class for all other pools.

// span is a range of classes.
type span struct{ lo, hi int }

// allClasses are the classes that pools can have: see maxSlots. Few nodes have a pool beyond
// smallClasses.
var (
	allClasses   = span{0, 16}
	smallClasses = span{0, 7}
)

// split returns the class at which a search splits s. Small pools are usual, so the search goes
// four classes at a time, from the smallest on.
func (s span) split() int {
	if s.hi-s.lo >= 4 {
		return s.lo + 3
	}
	return (s.lo + s.hi) / 2
}

// overName is the name of the set of frontends with more slots than class at, without the kind's
// prefix.
func overName(over string, at int) string { return over + strconv.Itoa(1<<at) }

// beyondSmall reports whether a pool is beyond smallClasses.
func beyondSmall(p *servicemodel.Pool) bool {
	return wayOfPool(p) == atRandom && slotCount(p) > 1<<smallClasses.hi
}

// search searches a class. more says whether the frontend is in the set of frontends with more
// slots than a class has.
func search(more func(class int) bool) (class int) {
	s := allClasses
	for s.lo < s.hi {
		if at := s.split(); more(at) {
			s.lo = at + 1
		} else {
			s.hi = at
		}
	}
	return s.lo
}

// overs lists, by class, the sets that contain a frontend of a pool with so many slots.
func overs(slots int) (l []int) {
	search(func(class int) bool {
		more := slots > 1<<class
		if more {
			l = append(l, class)
		}
		return more
	})
	return l
}
