package form

import (
	"math/bits"
	"strconv"

	"github.com/kernlb/kernlb/servicemodel"
)

// A pool of at most 2 slots is of class 0, a pool of at most 4 of class 1, a pool of at most 8 of
// class 2, and so on. The sets -over-2, -over-4, -over-8 and so on tell the class of a frontend. A
// packet is looked up in the sets of even classes in turn: -over-2, -over-8, -over-32. So each
// lookup excludes two classes, the smallest ones first because small pools are usual. One more
// lookup distinguishes the last two classes. A frontend is only in the sets that are looked up on
// this path and that must contain it. So a new or removed endpoint changes these sets only if the
// class changes.
//
// The sets from -over-128 on exist only while some pool needs them ([Shape]). Without these sets,
// packets find the same class for all other pools.

// The number of classes that pools can have (see [MaxSlots]), and the number that suffices on
// nearly all nodes.
const (
	AllClasses   = 16
	SmallClasses = 7
)

// MostSlots is the greatest number of slots in a class.
func MostSlots(class int) int { return 2 << class }

// ClassOf returns the class of a pool with this number of slots.
func ClassOf(slots int) int { return max(bits.Len(uint(max(slots, 1)-1))-1, 0) }

// isOver reports whether the frontends of a class are in the set of frontends with more slots than
// the class than has.
func isOver(class, than int) bool {
	return than < class && (than%2 == 0 || than == class-1)
}

// compared lists the classes in whose sets the chain for a class looks up packets. The chain for an
// odd class precedes the chain for the next even class.
func compared(class int) []int {
	switch {
	case class == 0:
		return []int{0}
	case class%2 == 1:
		return []int{class + 1, class}
	}

	return nil
}

// OverName is the name of the set of frontends with more slots than a class has, without the kind's
// prefix.
func OverName(over string, class int) string { return over + strconv.Itoa(MostSlots(class)) }

// MaxSlots limits the elements of one pool.
const MaxSlots = 1 << 16

// SlotCount is the number of elements of a pool: an endpoint of weight w has w elements.
func SlotCount(p *servicemodel.Pool) int {
	n := 0
	for _, s := range p.Slots {
		n += int(s.Weight)
	}
	return n
}
