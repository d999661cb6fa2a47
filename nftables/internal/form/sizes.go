package form

import (
	"math/bits"
	"strconv"

	"github.com/kernlb/kernlb/servicemodel"
)

// A pool of at most 2 slots is of class 0, one of at most 4 of class 1, one of at most 8 of class
// 2, and so on. The sets -over-2, -over-4, -over-8 and so on tell the class of a frontend. A packet
// asks the sets of even classes in turn: -over-2, -over-8, -over-32. So it passes two classes with
// each question, the smallest ones first because small pools are usual. One more question tells the
// two classes apart. A frontend is only in those sets that its packets ask and that lead them to
// more slots. So one endpoint more or less changes none of the sets, unless the class changes.
//
// The sets from -over-128 on exist only while some pool needs them ([Shape]). Without them packets
// find the same class for all other pools.

// The numbers of classes: all that pools can have (see maxSlots), and those of nearly all nodes.
const (
	AllClasses   = 16
	SmallClasses = 7
)

// MostSlots is the greatest number of slots in a class.
func MostSlots(class int) int { return 2 << class }

// ClassOf returns the class of a pool with so many slots.
func ClassOf(slots int) int { return max(bits.Len(uint(max(slots, 1)-1))-1, 0) }

// isOver reports whether the frontends of a class are in the set of those with more slots than
// another class has.
func isOver(class, than int) bool {
	return than < class && (than%2 == 0 || than == class-1)
}

// compared lists the classes for which packets in the chain for a class ask whether their frontends
// have more slots. The chains for odd classes are the first ones of two classes.
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

// MaxSlots bounds the elements of one pool.
const MaxSlots = 1 << 16

// SlotCount is the number of elements of a pool: an endpoint of weight w has w of them.
func SlotCount(p *servicemodel.Pool) int {
	n := 0
	for _, s := range p.Slots {
		n += int(s.Weight)
	}
	return n
}
