package dataplane

import (
	"fmt"
	"time"

	"github.com/kernlb/kernlb/servicemodel"
)

// Result says what an apply did. Of its fields, Changes and Refused are for people: they print as
// text, the changes one on each line. As a whole a result is written as JSON.
type Result struct {
	// Backend is the backend's name.
	Backend string
	// Revision numbers the state among those that were asked for, see [Engine.Set].
	Revision Revision
	// Owners are those whose parts were changed, see [Parts]; an engine has none.
	Owners []string
	// State is what was asked for, services included that were refused. It is empty where changes
	// were applied ([Engine.ApplyChanges]), or a part.
	State servicemodel.State
	// Counts counts what was added, changed and removed since it was wanted otherwise: since the
	// last apply, or for the first one, since what the kernel held.
	servicemodel.Counts
	// Repaired counts what others did to the services in the kernel since the last apply, and what
	// it took to undo that: what they had removed is Added. It is apart from Counts, for somebody
	// who flushes the ruleset makes no new services. What had no meaning as services is in Drift.
	Repaired servicemodel.Counts
	// Changes is what was applied.
	Changes *servicemodel.ChangeSet
	// Rest is what was removed in a second step, because nobody wants it: a backend that reads with
	// a hint finds it only after Changes were committed. Nil if there was no second step.
	Rest *servicemodel.ChangeSet
	// Drift describes what was found in the kernel that did not belong there, and was repaired.
	Drift []string
	// Refused are the services that were left out, in the order of their names.
	Refused []Refusal
	// Conflicts are the addresses and ports that several services claim, in their order. A service
	// that loses one keeps its others.
	Conflicts []servicemodel.Conflict
	// Observed says that the kernel was read.
	Observed bool
	// Settle is after what time [Engine.Settle] has work to do; 0 means that no work is left.
	Settle time.Duration
	// Phases is how long each phase took.
	Phases Phases
	// Stats is what the commits sent to the kernel; the duration is that of the whole apply,
	// from its turn on.
	Stats

	accepted servicemodel.State // State without the services that were refused
	begun    bool               // it is known what was wanted before
	// damaged says that others had changed the table, if only in what Repaired does not count.
	damaged bool
}

// String returns one line for a log, such as "nftables: 2 added, 1 changed, 0 removed; 4 kernel
// messages, 628 bytes, 85µs", and how many services were refused, if any were.
func (r *Result) String() string {
	s := fmt.Sprintf("%s: %v; %v", r.Backend, r.Counts, r.Stats)
	if n := len(r.Refused); n > 0 {
		s += fmt.Sprintf("; %d refused", n)
	}
	return s
}

// IsRepair reports whether something was put right that others had done to the kernel.
func (r *Result) IsRepair() bool {
	return r.begun && (r.damaged || r.Repaired != servicemodel.Counts{} || len(r.Drift) > 0)
}

// Preview is what an apply would do.
type Preview struct {
	// Changes is what would change, and Drift what would be repaired.
	Changes *servicemodel.ChangeSet
	Drift   []string
	// Plan is what would be sent to the kernel.
	Plan Plan
	// Refused and Conflicts are those of [Result].
	Refused   []Refusal
	Conflicts []servicemodel.Conflict
}
