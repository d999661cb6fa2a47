package dataplane

import (
	"context"
	"errors"
	"time"

	"github.com/kernlb/kernlb/internal/nocopy"
	"github.com/kernlb/kernlb/servicemodel"
)

// Readings because of a suspicion are rationed. readBurst short ones may follow each other
// directly. After that they take at most one part in readShare of the time. Without a ration, a
// neighbour that commits all the time would cause a reading in each apply, and the apply would take
// as long.
const (
	readBurst = 3
	readShare = 200
)

// intact reports whether another apply of the same state would find nothing to do. It reads the
// kernel only if its contents are unknown. If the last apply was denied, it does not read, and says
// whether others may have changed the kernel since.
func (e *Engine) intact(ctx context.Context, denied bool) bool {
	if e.begin(ctx, "", PhaseObserve) != nil {
		return true // Run ends
	}
	defer e.end()
	if e.kernel == nil && !denied {
		if e.observe(ctx, e.resolved) != nil {
			return false
		}
	} else if i, err := e.integrity(ctx); err != nil || i != Intact {
		return false
	}
	return denied || e.kernel == e.resolved && len(e.drift) == 0 && !e.unread
}

// verify reads the kernel because of a suspicion that may be unfounded. Only readings that find
// nothing use up the ration. If the reading has a conflict, the earlier knowledge stays valid until
// the next reading, unless the integrity is broken by then.
func (e *Engine) verify(ctx context.Context, want *servicemodel.Table) (read bool, err error) {
	before, start := e.kernel, time.Now()
	err = e.observe(ctx, want)
	switch {
	case errors.Is(err, ErrConflict):
		if i, integrityErr := e.backend.Integrity(ctx); integrityErr != nil || i == Broken {
			return true, err
		}
		e.kernel, e.suspect = before, true
	case err != nil:
		return true, err
	case len(e.drift) > 0 || e.kernel != e.resolved:
		return true, nil
	}
	e.readings.Spend(time.Since(start))
	return err == nil, nil
}

// observe reads the kernel. want is the table that it is about to hold, or nil if unknown. If the
// reading equals the resolved table except for the order of slots, which IPVS does not keep, the
// engine continues with the resolved table. That one also has what no kernel holds, such as health
// checks and pools for which the kernel has no place.
func (e *Engine) observe(ctx context.Context, want *servicemodel.Table) error {
	e.kernel = nil
	o, err := e.backend.Observe(ctx, want)
	if err != nil {
		return err
	}
	e.kernel, e.drift, e.unread, e.suspect = o.Table, o.Drift, o.Unread, false
	if e.kernel == nil {
		e.kernel = &servicemodel.Table{}
	}
	e.read = e.kernel
	if e.resolved == nil {
		return nil
	}
	e.kernel = nocopy.Of(e.resolved).AssumedIn(e.kernel)
	if same := e.resolved.Arrange(e.kernel); same.Equal(e.kernel) {
		e.resolved, e.kernel = same, same
	}
	return nil
}
