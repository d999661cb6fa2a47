package dataplane

import (
	"context"
	"fmt"
	"slices"

	"github.com/kernlb/kernlb/servicemodel"
)

// approve calls [Config.Approve] for a commit of c, the changes of the result.
func (e *Engine) approve(ctx context.Context, r *Result, c *servicemodel.ChangeSet) error {
	if e.cfg.Approve == nil {
		return nil
	}
	plan, err := e.backend.Plan(c)
	if err != nil {
		return err
	}
	err = e.cfg.Approve(ctx, &Preview{Changes: c, Repaired: r.Repaired,
		Drift: slices.Clone(e.drift), Plan: plan, Refused: slices.Clone(r.Refused),
		Conflicts: slices.Clone(r.Conflicts)})
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotApproved, err)
	}
	return nil
}

// disturbed reports whether other programs may have changed the kernel since the last reading or
// commit.
func (e *Engine) disturbed(ctx context.Context) bool {
	if e.take(ctx) != nil {
		return false
	}
	defer e.give()
	if e.kernel == nil {
		return true
	}
	i, due, err := e.integrity(ctx)
	return err != nil || i == Broken || due
}
