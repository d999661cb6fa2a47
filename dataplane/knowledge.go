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

// knowledge is an engine's copy of what one backend has in the kernel, with the state from which it
// was made. Only the engine keeps tables; it passes them to a backend for one call.
// Otherwise, a backend keeps only data that is not in a table, such as handles, sizes of sets and
// versions.
type knowledge struct {
	// applied is the table of the last apply, from which the next state is resolved. It is nil
	// before the first apply, and after a commit that may have failed half way, because then the
	// engine cannot tell its own changes from those of other programs.
	applied *servicemodel.Table
	// inKernel is the table in the kernel, and drift describes the kernel's other contents.
	// inKernel is the same pointer as applied if the two are equal. It is nil if the kernel's
	// contents are unknown: before the first reading and after any failure. The next operation, an
	// apply or a check by Run, then reads the kernel.
	inKernel *servicemodel.Table
	drift    []string
	partial  bool // the kernel holds more objects than any wanted state
	// lastRead is the table of the last reading. It lacks pools that the kernel cannot store.
	lastRead *servicemodel.Table
	// suspect says that another program committed since the last reading. readings limits the time
	// spent on readings for this reason.
	suspect  bool
	readings wait.Budget
	// lacks names a family that the kernel lacks, so that applies do not try it again. It is nil if
	// no such family is known, for example after a reading.
	lacks *Problem
	// accepted is the last accepted state. It is kept only if refused services are kept.
	accepted servicemodel.State
}

// Readings because of a mere suspicion are limited: readBurst short readings at once, then at most
// 1/readShare of the time. Otherwise, another program that commits all the time would cause a
// reading in each apply.
const (
	readBurst = 3
	readShare = 200
)

// newKnowledge returns the knowledge of an engine before its first reading. accepted is the last
// accepted state, possibly of another backend or process.
func newKnowledge(accepted servicemodel.State) knowledge {
	return knowledge{accepted: accepted, readings: wait.NewBudget(readBurst, readShare)}
}

// observed records a reading. If the reading equals the applied table except for the order of
// slots, which IPVS does not store, the applied table adopts this order and remains the applied
// table, because it also contains data that no kernel stores, such as health checks and some pools.
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

// failed records a commit that failed. Unless it failed because of another writer, some of its
// changes may be in the kernel.
func (k *knowledge) failed(err error) {
	k.inKernel = nil
	if !errors.Is(err, kernelerr.ErrConflict) {
		k.applied = nil
	}
}

// disturbed reports whether the kernel's table differs from the table of the last apply, or is
// unknown.
func (k *knowledge) disturbed() bool { return k.inKernel != k.applied }

// inSync reports whether the applied table, and nothing else, is in the kernel.
func (k *knowledge) inSync() bool { return !k.disturbed() && len(k.drift) == 0 && !k.partial }

// same reports whether the kernel has the same contents and the same drift as before, except for
// the order of slots.
func (k *knowledge) same(before knowledge) bool {
	return k.inKernel.Arrange(before.inKernel).Equal(before.inKernel) &&
		slices.Equal(k.drift, before.drift)
}

// suspected returns Touched if the engine may read the kernel now because of a suspicion, and
// otherwise Intact. i is Touched if another program has just committed. If the limit delays the
// reading, the suspicion is remembered.
func (k *knowledge) suspected(i backends.Integrity, now time.Time) backends.Integrity {
	k.suspect = k.suspect || i == backends.Touched
	if k.suspect && k.readings.Allow(now) {
		return backends.Touched
	}
	return backends.Intact
}

// atPresent returns t with the current weight of each endpoint that has a slow start.
func (k *knowledge) atPresent(t *servicemodel.Table) *servicemodel.Table {
	return t.At(time.Now, cmp.Or(k.applied, k.inKernel))
}

// changes returns the changes from the kernel's table to t. If the kernel is disturbed, endpoints
// keep the slots that they have there. Pools that the kernel cannot store are not a reason for a
// change. But if anything else differs, they are in the change set, because a stored change set
// must start from contents that any process can read.
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

// repairs returns the changes that undo what other programs changed in the applied table.
func (k *knowledge) repairs() *servicemodel.ChangeSet {
	return servicemodel.Diff(k.inKernel, k.applied.Arrange(k.inKernel))
}

// requested returns the changes from the applied table to t, whatever other programs have done
// since.
func (k *knowledge) requested(t *servicemodel.Table) *servicemodel.ChangeSet {
	return servicemodel.Diff(k.applied, t.Arrange(k.applied))
}
