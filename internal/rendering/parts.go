package rendering

import (
	"context"
	"errors"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/servicemodel"
)

// CommitInParts writes a change set with write in several parts, one after another, because the
// whole was too large for the socket. tooLarge is the error for the whole. Other errors come from
// write.
func CommitInParts(ctx context.Context, c *servicemodel.ChangeSet, tooLarge error,
	write func(context.Context, *servicemodel.ChangeSet) (backends.Stats, error)) (
	all backends.Stats, err error) {
	first, rest := c.Split()
	if first == nil {
		return all, tooLarge
	}
	for _, part := range []*servicemodel.ChangeSet{first, rest} {
		stats, err := write(ctx, part)
		if errors.Is(err, rawnl.ErrBatchTooLarge) {
			stats, err = CommitInParts(ctx, part, err, write)
		}
		all = all.Plus(stats)
		if err != nil {
			return all, err
		}
	}

	return all, nil
}
