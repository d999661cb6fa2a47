package dataplane

import (
	"time"

	"github.com/kernlb/kernlb/servicemodel"
)

// Result says what an apply did.
type Result struct {
	// Backend is the backend's name.
	Backend string
	// Counts counts what was added, changed and removed since it was wanted otherwise: since the
	// last apply, or for the first one, since what the kernel held.
	servicemodel.Counts
	// Repaired counts what others did to the services in the kernel since the last apply, and what
	// it took to undo that: what they had removed is Added. It is apart from Counts, for somebody
	// who flushes the ruleset makes no new services. What had no meaning as services is in Drift.
	Repaired servicemodel.Counts
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
	begun bool               // it is known what was wanted before
	// damaged says that others had changed the table, if only in what Repaired does not count.
	damaged bool
}

// IsRepair reports whether something was put right that others had done to the kernel.
func (r *Result) IsRepair() bool {
	return r.begun && (r.damaged || r.Repaired != servicemodel.Counts{} || len(r.Drift) > 0)
}

// Totals counts what an engine did since it was made.
type Totals struct {
	// Applies counts the applies that succeeded, whether they found something to do or not.
	Applies int
	// Failures counts those that failed.
	Failures int
	// Repairs counts the applies that put right what others had done ([Result.IsRepair]).
	Repairs int
	// Repaired counts what was put right, see [Result.Repaired].
	Repaired servicemodel.Counts
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
