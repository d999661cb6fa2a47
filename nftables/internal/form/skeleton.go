package form

import "github.com/kernlb/kernlb/internal/nft"

// Skeleton is everything about one table in the kernel except its elements.
type Skeleton struct {
	Exists bool
	Shape  Shape
	Stale  bool // the rules do not fit the shape and the observed node-wide rules
	Broken bool // sets or chains are missing or have a wrong type: the table must be rewritten
	// Held are the objects of a broken table. It is nil if the whole table must be deleted.
	Held *HeldObjects
	// Counts is the known number of elements in each set, except sets that rules fill.
	Counts map[string]int
	// Leads is the number of frontends that refer to each leaf. It is nil until a plan needs it.
	Leads map[string]int
}

// HeldObjects are the chains and sets of a broken table.
type HeldObjects struct {
	Chains  map[string]nft.Chain
	Specs   map[string]nft.SetSpec
	Sizes   map[string]uint32 // of sets that do not grow
	Dormant bool
}
