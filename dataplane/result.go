package dataplane

import (
	"fmt"
	"time"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/servicemodel"
)

// Result is the outcome of an apply. Changes and Refused can be printed as text, with one change
// per line. A whole result can be encoded as JSON.
type Result struct {
	// Backend is the backend's name.
	Backend string `json:"backend"`
	// Revision is the number of the requested state, see [Engine.Set].
	Revision Revision `json:"revision,omitzero"`
	// Owners are the owners whose parts were applied or removed, even if nothing differed, see
	// [Parts]. It is nil in results of an engine.
	Owners []string `json:"owners,omitempty"`
	// State is the requested state, including refused services. It is empty for changes
	// ([Engine.ApplyChanges]) and parts.
	State servicemodel.State `json:"-"`
	// Counts counts the objects that new requests added, changed and removed since the last apply.
	// At the first apply, it counts the differences from the kernel.
	Counts servicemodel.Counts `json:"counts"`
	// Repaired counts the changes that restore what other programs changed in the kernel's services
	// since the last apply. Restored objects count as Added. They are not in Counts: a flushed
	// ruleset does not count as new services. Damage that affects no service is in Drift. Parts
	// keep no state outside the kernel, so their results have no Repaired: restored objects are in
	// Counts, and an apply after a complete loss looks like the first apply.
	Repaired servicemodel.Counts `json:"repaired,omitzero"`
	// Changes are the changes that were applied.
	Changes *servicemodel.ChangeSet `json:"changes"`
	// Rest is the removal of obsolete objects in a second step. A backend that reads with a hint
	// finds such objects only after it has committed Changes. Nil means no second step.
	Rest *servicemodel.ChangeSet `json:"rest,omitempty"`
	// Drift describes foreign or damaged objects that were found in the kernel and removed or
	// repaired.
	Drift []string `json:"drift,omitempty"`
	// Refused are the services that were left out as a whole or in part, in the order of their
	// names, or the owners that [Parts.ApplyAll] refused.
	Refused []Refusal `json:"refused,omitempty"`
	// Accepted is State without its refused services, or with earlier definitions of them
	// ([Refusal.Kept]). With [Config.KeepRefused], a service without endpoints also has its earlier
	// definition here, because its pools may still be refused. A service that is served without
	// some of its endpoints has its accepted endpoints here.
	Accepted servicemodel.State `json:"-"`
	// Conflicts are the addresses and ports that several services claim, in order. A service that
	// loses a claim keeps its other addresses and ports.
	Conflicts []servicemodel.Conflict `json:"conflicts,omitempty"`
	// Warnings name settings in Accepted, or in the part, that have no effect on this node. It is
	// empty for [Engine.ApplyChanges].
	Warnings servicemodel.Warnings `json:"warnings,omitzero"`
	// Observed says that the kernel was read.
	Observed bool `json:"observed"`
	// Settle is the time until [Engine.Settle] has work to do. 0 means that no work is left.
	Settle time.Duration `json:"-"`
	// Unsettled is the error of later work that this call or an earlier call left. The kernel has
	// the state anyway, but stale flows, drained endpoints or, after a Switch, objects of the
	// former backend are left. The next Apply or Settle tries again, and so does [Engine.Run]. Nil
	// means that nothing failed.
	Unsettled error `json:"-"`
	// Step says that the apply was not a request: it was a step of slow starts ([Engine.Settle]),
	// or changed only shares ([servicemodel.Endpoint.Share]). Steps are logged at debug level.
	Step bool `json:"step,omitzero"`
	// Phases contains the time of each phase.
	Phases Phases `json:"phases"`
	// Duration is the time of the whole call, from its turn to its end.
	Duration time.Duration `json:"-"`
	// Stats counts the messages and bytes that the commits sent to the kernel.
	Stats backends.Stats `json:"stats"`

	begun bool // the state that was wanted before is known
	// damaged says that other programs had changed the table, even if Repaired does not count the
	// change.
	damaged bool
	// stored says that the changes were planned from an unknown state, see [Engine.ApplyChanges].
	stored bool
	// partly are the services that are kept with only some of their accepted endpoints. Accepted
	// has all their accepted endpoints.
	partly []servicemodel.Name
}

// String returns one line for a log: counts and costs, such as "nftables: 2 added, 1 changed, 0
// removed; 4 kernel messages, 628 bytes, 85µs", then the numbers of refused services and warnings,
// if any, and Unsettled. A nil result is "no result".
func (r *Result) String() string {
	if r == nil {
		return "no result"
	}
	stats := r.Stats
	stats.Duration = r.Duration
	s := fmt.Sprintf("%s: %v; %v", r.Backend, r.Counts, stats)
	if n := len(r.Refused); n > 0 {
		s += fmt.Sprintf("; %d refused", n)
	}
	if n := r.Warnings.Len(); n == 1 {
		s += "; 1 warning"
	} else if n > 1 {
		s += fmt.Sprintf("; %d warnings", n)
	}

	if r.Unsettled != nil {
		s += "; not settled: " + r.Unsettled.Error()
	}
	return s
}

// IsRepair reports whether the apply undid other programs' changes to the kernel.
func (r *Result) IsRepair() bool {
	return r != nil && r.begun &&
		(r.damaged || r.Repaired != servicemodel.Counts{} || len(r.Drift) > 0)
}

// Preview describes the changes that an apply would make.
type Preview struct {
	// Revision is the number of the requested state, see [Engine.Set], and State is that state,
	// including refused services. Both are zero for changes ([Engine.ApplyChanges]). A plan has no
	// revision.
	Revision Revision           `json:"revision,omitzero"`
	State    servicemodel.State `json:"-"`
	// Changes are the changes that the apply would make. Changes.Counts returns the numbers of
	// frontends and endpoints that are added, changed and removed. Repaired counts those changes
	// that undo changes by other programs, see [Result.Repaired]. Drift describes the other damage
	// that the apply would repair.
	Changes  *servicemodel.ChangeSet `json:"changes"`
	Repaired servicemodel.Counts     `json:"repaired,omitzero"`
	Drift    []string                `json:"drift,omitempty"`
	// Plan has the messages of the commit.
	Plan backends.Plan `json:"-"`
	// Refused, Conflicts and Warnings have the same meaning as in [Result].
	Refused   []Refusal               `json:"refused,omitempty"`
	Conflicts []servicemodel.Conflict `json:"conflicts,omitempty"`
	Warnings  servicemodel.Warnings   `json:"warnings,omitzero"`
}

func sum(a, b servicemodel.Counts) servicemodel.Counts {
	return servicemodel.Counts{Added: a.Added + b.Added, Changed: a.Changed + b.Changed,
		Removed: a.Removed + b.Removed}
}
