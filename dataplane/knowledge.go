package dataplane

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/internal/wait"
	"github.com/kernlb/kernlb/servicemodel"
)

// knowledge is an engine's knowledge of the kernel through one backend, and of the state that it
// applied there. Only the engine keeps tables; a backend borrows one for the time of a sweep.
// Otherwise a backend keeps only data that a table does not contain, such as handles, sizes of sets
// and versions.
type knowledge struct {
	// applied is the table of the last apply, from which the next state is resolved. It is nil
	// before the first apply and after a commit that may have failed half way, because then nothing
	// tells our changes from other programs' changes.
	applied *servicemodel.Table
	// inKernel is the table that the kernel holds, and drift describes the kernel's other contents.
	// inKernel is the same pointer as applied if the two are equal. It is nil if the kernel's
	// contents are unknown: before the first reading and after any failure. Then the next
	// operation, an apply or a check by Run, reads the kernel.
	inKernel *servicemodel.Table
	drift    []string
	partial  bool // the kernel holds more objects than any wanted state
	// lastRead is the table of the last reading. It lacks pools that the kernel cannot store.
	lastRead *servicemodel.Table
	// suspect says that another program committed since the last reading. readings limits the time
	// that readings for this reason may take.
	suspect  bool
	readings wait.Budget
	// lacks names a family that the kernel lacks, so that applies need not try it again. It is nil
	// if no such family is known, as after a reading.
	lacks *Problem
	// accepted is the last accepted state. It is kept only if refused services are kept.
	accepted servicemodel.State
}

// Readings for a mere suspicion are limited: readBurst short readings at once, then at most
// 1/readShare of the time. Without this limit, a neighbour that commits all the time would cause a
// reading in each apply.
const (
	readBurst = 3
	readShare = 200
)

// newKnowledge returns the knowledge before the first reading. accepted is the last accepted state,
// possibly of another backend or process.
func newKnowledge(accepted servicemodel.State) knowledge {
	return knowledge{accepted: accepted, readings: wait.NewBudget(readBurst, readShare)}
}

// observed takes over a reading. If it equals the applied table except for the order of slots,
// which IPVS does not keep, the applied table takes over this order and stays in force, because it
// also contains data that no kernel stores, such as health checks and some pools.
func (k *knowledge) observed(o *backends.Observation) {
	k.drift, k.partial, k.suspect = o.Drift, o.Partial, false
	k.lastRead = cmp.Or(o.Table, &servicemodel.Table{})
	k.inKernel = k.lastRead
	if k.applied == nil {
		return
	}
	k.inKernel = k.applied.AssumedIn(k.inKernel)
	if same := k.applied.Arrange(k.inKernel); same.Equal(k.inKernel) {
		k.applied, k.inKernel = same, same
	}
}

// committed records a commit that wrote t and removed the drift.
func (k *knowledge) committed(t *servicemodel.Table) { k.applied, k.inKernel, k.drift = t, t, nil }

// failed records a commit that failed. Unless it failed because of another writer, the kernel may
// hold some of its changes.
func (k *knowledge) failed(err error) {
	k.inKernel = nil
	if !errors.Is(err, kernelerr.ErrConflict) {
		k.applied = nil
	}
}

// disturbed reports whether the kernel's table differs from the table of the last apply, or is
// unknown.
func (k *knowledge) disturbed() bool { return k.inKernel != k.applied }

// inSync reports whether the kernel holds the applied table and nothing else.
func (k *knowledge) inSync() bool { return !k.disturbed() && len(k.drift) == 0 && !k.partial }

// same reports whether the kernel has the same contents and the same drift as before, except for
// the order of slots.
func (k *knowledge) same(before knowledge) bool {
	return k.inKernel.Arrange(before.inKernel).Equal(before.inKernel) &&
		slices.Equal(k.drift, before.drift)
}

// suspected returns Touched if a suspicion allows a reading now, and otherwise Intact. i is Touched
// if another program has just committed. A suspicion that the limit puts off is not forgotten.
func (k *knowledge) suspected(i backends.Integrity, now time.Time) backends.Integrity {
	k.suspect = k.suspect || i == backends.Touched
	if k.suspect && k.readings.Allow(now) {
		return backends.Touched
	}
	return backends.Intact
}

// atPresent returns t with the present weight of each endpoint that has a slow start.
func (k *knowledge) atPresent(t *servicemodel.Table) *servicemodel.Table {
	return t.At(time.Now, cmp.Or(k.applied, k.inKernel))
}

// changes returns the changes from the kernel's table to t. In a disturbed kernel, endpoints keep
// the slots that they have there. Pools that the kernel cannot store never cause a change alone. If
// anything else differs, they are in the change set, because a stored change set must begin from
// contents that any process can read.
func (k *knowledge) changes(t *servicemodel.Table) *servicemodel.ChangeSet {
	if !k.disturbed() { // t was resolved from this table, so it has its slots
		return servicemodel.Diff(k.inKernel, t)
	}
	t = t.Arrange(k.inKernel)
	assumed := t.AssumedIn(k.inKernel)
	c := servicemodel.Diff(assumed, t)
	if assumed != k.inKernel && !c.Empty() {
		c = servicemodel.Diff(k.inKernel, t)
	}
	return c
}

// repairs returns the changes that undo other programs' changes of the applied table.
func (k *knowledge) repairs() *servicemodel.ChangeSet {
	return servicemodel.Diff(k.inKernel, k.applied.Arrange(k.inKernel))
}

// requested returns the changes from the applied table to t, whatever other programs did since
// then.
func (k *knowledge) requested(t *servicemodel.Table) *servicemodel.ChangeSet {
	return servicemodel.Diff(k.applied, t.Arrange(k.applied))
}
