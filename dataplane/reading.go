package dataplane

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/servicemodel"
)

// Readings that only a suspicion causes are limited: readBurst short ones at once, then at most
// 1/readShare of the time. Without a ration, a
// neighbour that commits all the time would cause a reading in each apply, and the apply would take
// as long.
const (
	readBurst = 3
	readShare = 200
)

// intact reports whether another apply of the same state would find nothing to do. It reads the
// kernel only if its contents are unknown. If the last apply was denied, it says whether the kernel
// is as it was then, and reads because of a suspicion, because the apply would be denied again.
func (e *Engine) intact(ctx context.Context, denied bool) bool {
	ctx, err := e.begin(ctx, "", PhaseObserve)
	if err != nil {
		return true // Run ends
	}
	defer e.end()
	if e.kernel == nil && !denied {
		if e.observe(ctx, e.resolved) != nil {
			return false
		}
	} else if i, err := e.integrity(ctx); err != nil || i == backends.Broken ||
		i == backends.Touched && !denied {
		return false
	} else if i == backends.Touched {
		before := e.held
		_, err := e.verify(ctx, nil)
		return err == nil && e.sameAs(before)
	}
	return denied || e.kernel == e.resolved && len(e.drift) == 0 && !e.unread
}

// sameAs reports whether the kernel holds what it held before, whatever the order of slots, foreign
// objects included.
func (h *held) sameAs(before held) bool {
	return h.kernel.Arrange(before.kernel).Equal(before.kernel) &&
		slices.Equal(h.drift, before.drift)
}

// verify reads the kernel because of a suspicion that may be unfounded. Only readings that find
// nothing new use up the ration. If the reading has a conflict, the earlier knowledge stays valid
// until the next reading, unless the integrity is broken by then.
func (e *Engine) verify(ctx context.Context, want *servicemodel.Table) (read bool, err error) {
	before, start := e.held, time.Now()
	err = e.observe(ctx, want)
	switch {
	case errors.Is(err, kernelerr.ErrConflict):
		i, integrityErr := e.backend.Integrity(ctx)
		if integrityErr != nil || i == backends.Broken {
			return true, err
		}
		e.kernel, e.suspect = before.kernel, true
	case err != nil:
		return true, err
	case (len(e.drift) > 0 || e.kernel != e.resolved) && !e.sameAs(before):
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
	e.kernel, e.drift, e.unread, e.suspect = o.Table, o.Drift, o.Partial, false
	if e.kernel == nil {
		e.kernel = &servicemodel.Table{}
	}
	e.read = e.kernel
	if e.resolved == nil {
		return nil
	}
	e.kernel = e.resolved.AssumedIn(e.kernel)
	if same := e.resolved.Arrange(e.kernel); same.Equal(e.kernel) {
		e.resolved, e.kernel = same, same
	}
	return nil
}
