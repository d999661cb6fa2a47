package dataplane

import (
	"context"
	"errors"
	"time"

	"github.com/kernlb/kernlb/servicemodel"
)

// Readings because of a suspicion are rationed: readBurst of them come at once, if they are short;
// then they take no more than one part in readShare of the time. A neighbour that commits without
// end gives cause for one all the time, and an apply that reads takes as long as the reading.
const (
	readBurst = 3
	readShare = 200
)

// ensureKnown reads the kernel unless it is known what that holds, and reports whether it did. want
// is the table that the kernel is to hold; nil reads all.
func (e *Engine) ensureKnown(ctx context.Context, want *servicemodel.Table) (read bool, err error) {
	if !e.known || e.unread {
		return true, e.observe(ctx, want)
	}
	i, due, err := e.integrity(ctx)
	switch {
	case err != nil:
		return false, err
	case i == Broken:
		return true, e.observe(ctx, want)
	case due:
		if want != nil {
			want = e.kernel // with this hint only what is not ours is left unread
		}
		return e.verify(ctx, want)
	}
	return false, nil
}

// integrity returns the integrity that the backend reports, and whether a suspicion is reason to
// read now.
func (e *Engine) integrity(ctx context.Context) (i Integrity, due bool, err error) {
	if i, err = e.backend.Integrity(ctx); err != nil {
		return i, false, err
	}
	e.suspect = e.suspect || i == Touched
	return i, e.suspect && e.readings.Allow(time.Now()), nil
}

// intact reports whether an apply of the same state would find nothing to do, as far as that shows
// without reading the kernel. After something failed, the next try reads the kernel anyway.
func (e *Engine) intact(ctx context.Context) (bool, error) {
	if err := e.take(ctx); err != nil {
		return true, err
	}
	defer e.give()
	if !e.known || e.unread {
		return true, nil
	}
	if e.resolved != nil && e.kernel != e.resolved && // it was read since the last apply
		(len(e.drift) > 0 || !e.kernel.Equal(e.resolved)) {
		return false, nil
	}
	i, due, err := e.integrity(ctx)
	return i != Broken && !due, err
}

// verify reads the kernel for a suspicion that may be unfounded. Only a reading that finds nothing
// is counted in the ration. If the reading has a conflict, what is known stays until the next one,
// unless it is broken by now.
func (e *Engine) verify(ctx context.Context, want *servicemodel.Table) (read bool, err error) {
	before, start := e.kernel, time.Now()
	err = e.observe(ctx, want)
	switch {
	case errors.Is(err, ErrConflict):
		if i, integrityErr := e.backend.Integrity(ctx); integrityErr != nil || i == Broken {
			return true, err
		}
		e.known, e.suspect = true, true
	case err != nil:
		return true, err
	case len(e.drift) > 0 || !before.Equal(e.kernel):
		return true, nil
	}
	e.readings.Spend(time.Since(start))
	return err == nil, nil
}

// observe reads the kernel. want is the table that it is about to hold; nil if that is not known.
func (e *Engine) observe(ctx context.Context, want *servicemodel.Table) error {
	e.known = false
	o, err := e.backend.Observe(ctx, want)
	if err != nil {
		return err
	}
	e.kernel, e.drift, e.known, e.unread = o.Table, o.Drift, true, o.Unread
	e.suspect = false
	return nil
}
