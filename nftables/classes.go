package nftables

import (
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
// The sets from -over-128 on exist only while some pool needs them ([shape]). Without them packets
// find the same class for all other pools.

// The numbers of classes: all that pools can have (see maxSlots), and those of nearly all nodes.
const (
	allClasses   = 16
	smallClasses = 7
)

// most is the greatest number of slots in a class.
func most(class int) int { return 2 << class }

// classOf returns the class of a pool with so many slots.
func classOf(slots int) (class int) {
	for slots > most(class) {
		class++
	}
	return class
}

// isOver reports whether the frontends of a class are in the set of those with more slots than
// another class has.
func isOver(class, than int) bool {
	return than < class && (than%2 == 0 || than == class-1)
}

// asked lists the classes for which packets in the chain for a class ask whether their frontends
// have more slots. The chains for odd classes are the first ones of two classes.
func asked(class int) []int {
	switch {
	case class == 0:
		return []int{0}
	case class%2 == 1:
		return []int{class + 1, class}
	}
	return nil
}

// overName is the name of the set of frontends with more slots than a class has, without the kind's
// prefix.
func overName(over string, class int) string { return over + strconv.Itoa(most(class)) }

// beyondSmall reports whether a pool is beyond smallClasses.
func beyondSmall(p *servicemodel.Pool) bool {
	return wayOfPool(p) == atRandom && classOf(slotCount(p)) >= smallClasses
}
