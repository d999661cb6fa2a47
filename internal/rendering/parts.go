package rendering

import (
	"errors"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/nocopy"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/servicemodel"
)

// CommitInParts writes a change set with write. If the change set is too large for the socket, it
// writes its parts one after the other. The error is write's.
func CommitInParts(c *servicemodel.ChangeSet, write func(*servicemodel.ChangeSet) (dataplane.Stats,
	error)) (dataplane.Stats, error) {
	stats, err := write(c)
	if !errors.Is(err, rawnl.ErrBatchTooLarge) {
		return stats, err
	}
	first, rest := nocopy.Of(c.New).Split(c)
	if first == nil {
		return stats, err
	}
	if stats, err = CommitInParts(first, write); err != nil {
		return stats, err
	}
	more, err := CommitInParts(rest, write)
	return stats.Plus(more), err
}
