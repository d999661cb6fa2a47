// Package parts commits change sets that are too large for one transaction.
package parts

import (
	"errors"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/servicemodel"
)

// Commit writes a change set with write, and its parts one after the other if the socket cannot
// send it at once. The error is write's.
func Commit(c *servicemodel.ChangeSet, write func(*servicemodel.ChangeSet) (dataplane.Stats,
	error)) (dataplane.Stats, error) {
	stats, err := write(c)
	if !errors.Is(err, rawnl.ErrBatchTooLarge) {
		return stats, err
	}
	first, rest := c.Split()
	if first == nil {
		return stats, err
	}
	if stats, err = Commit(first, write); err != nil {
		return stats, err
	}
	more, err := Commit(rest, write)
	return stats.Plus(more), err
}
