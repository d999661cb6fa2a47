package dataplane

import (
	"context"
	"errors"
	"time"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/servicemodel"
)

// intact reports whether the applied state is in the kernel, so that another apply would change
// nothing. It reads the kernel only if its contents are unknown. After a denied apply, it reports
// whether the kernel is unchanged since then. In that case, a suspicion causes a reading here,
// because another apply would be denied again.
func (e *Engine) intact(ctx context.Context, denied bool) bool {
	ctx, err := e.begin(ctx, "", PhaseObserve)
	if err != nil {
		return true // Run ends
	}
	defer e.end()
	if e.known.inKernel == nil && !denied {
		if e.observe(ctx, e.known.applied) != nil {
			return false
		}
	} else if i, err := e.integrity(ctx); err != nil || i == backends.Broken ||
		i == backends.Touched && !denied {
		return false
	} else if i == backends.Touched {
		before := e.known
		_, err := e.verify(ctx, nil)
		return err == nil && e.known.same(before)
	}

	return denied || e.known.inSync()
}

// ensureKnown reads the kernel if its contents are unknown, and reports whether it did. t is the
// table that will be in the kernel. If hinted is set, the reading may be limited to the objects of
// t.
func (e *Engine) ensureKnown(ctx context.Context, t *servicemodel.Table, hinted bool) (read bool,
	err error) {
	i := backends.Broken
	if !e.known.partial {
		i, err = e.integrity(ctx)
	}
	var hint *servicemodel.Table
	switch {
	case err != nil || i == backends.Intact:
		return false, err
	case !hinted:
	case i == backends.Touched:
		hint = e.known.inKernel // only foreign objects stay unread
	default:
		hint = e.known.atPresent(t)
	}

	if i == backends.Touched {
		return e.verify(ctx, hint)
	}
	return true, e.observe(ctx, hint)
}

// integrity says whether the kernel must be read: Broken if its contents are unknown or destroyed,
// Touched if there is a suspicion and the limit allows a reading now.
func (e *Engine) integrity(ctx context.Context) (backends.Integrity, error) {
	if e.known.inKernel == nil {
		return backends.Broken, nil
	}
	i, err := e.backend.Integrity(ctx)
	if err == nil && i != backends.Broken {
		i = e.known.suspected(i, time.Now())
	}
	return i, err
}

// verify reads the kernel because of a suspicion that may be unfounded. Only readings that find
// nothing new count towards the limit. If the reading has a conflict, the previous knowledge
// remains valid until the next reading, unless the integrity is broken by then.
func (e *Engine) verify(ctx context.Context, want *servicemodel.Table) (read bool, err error) {
	before, start := e.known, time.Now()
	err = e.observe(ctx, want)
	switch {
	case errors.Is(err, kernelerr.ErrConflict):
		i, integrityErr := e.backend.Integrity(ctx)
		if integrityErr != nil || i == backends.Broken {
			return true, err
		}
		e.known = before
		e.known.suspect = true
	case err != nil:
		return true, err
	case (len(e.known.drift) > 0 || e.known.disturbed()) && !e.known.same(before):
		return true, nil
	}

	e.known.readings.Spend(time.Since(start))
	return err == nil, nil
}

// observe reads the kernel. want is the table that will be in the kernel, or nil if unknown.
func (e *Engine) observe(ctx context.Context, want *servicemodel.Table) error {
	e.known.inKernel = nil
	o, err := e.backend.Observe(ctx, want)
	if err == nil {
		e.known.observed(o)
	}
	return err
}
