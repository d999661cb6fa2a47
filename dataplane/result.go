package dataplane

import (
	"time"

	"github.com/kernlb/kernlb/servicemodel"
)

// Result says what an apply did.
type Result struct {
	// Backend is the backend's name.
	Backend string
	// Counts counts what was added, changed and removed, in all.
	servicemodel.Counts
	// Changes is what was applied.
	Changes *servicemodel.ChangeSet
	// Rest is what was removed after that: what nobody wants, where the backend found what is
	// wanted first. Nil if there was no such second step.
	Rest *servicemodel.ChangeSet
	// Drift is what was found in the kernel that did not belong, and was put right.
	Drift []string
	// Refused are the services that were left out, in the order of their names.
	Refused []Refusal
	// Conflicts are the addresses and ports that several services claim, in their order. The
	// services that lost one have all their others.
	Conflicts []servicemodel.Conflict
	// Observed says that the kernel was read.
	Observed bool
	// Settle is how long until there is work to be done with [Engine.Settle]; 0: none is left.
	Settle time.Duration
	// Stats is what was sent to the kernel by the commit; the duration is that of the whole apply.
	Stats

	state servicemodel.State // what was applied: without the refused
}

// Preview is what an apply would do.
type Preview struct {
	// Changes is what would change, and Drift what would be put right.
	Changes *servicemodel.ChangeSet
	Drift   []string
	// Plan is what would be sent to the kernel.
	Plan Plan
	// Refused and Conflicts are those of [Result].
	Refused   []Refusal
	Conflicts []servicemodel.Conflict
}
