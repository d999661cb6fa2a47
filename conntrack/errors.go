package conntrack

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/internal/rawnl"
)

// Errors that callers act on, in addition to those of package kernelerr: ErrNoPermission, and
// ErrMissingModule if this kernel has no conntrack or lacks a feature that the request needs. Test
// for them with errors.Is. Refusals by the kernel are *[kernelerr.OpError] values.
var (
	// ErrTableFull: the kernel created no new flow because nf_conntrack_max is reached.
	ErrTableFull = errors.New("the conntrack table is full")
	// ErrInterrupted: the table was rebuilt during a dump, so the list is incomplete. Try again.
	ErrInterrupted = errors.New("the dump of the conntrack table was interrupted")
	// ErrClosed: the table is closed.
	ErrClosed = errors.New("the conntrack table is closed")
)

// explain replaces an error with its counterpart in this package. The cause stays in the chain.
func explain(err error) error {
	err = kernelerr.Permission(err)
	for _, known := range []struct{ cause, meaning error }{
		{syscall.ENOMEM, ErrTableFull},
		{rawnl.ErrDumpInterrupted, ErrInterrupted},
		{syscall.EPROTONOSUPPORT, kernelerr.ErrMissingModule},
		{rawnl.ErrClosed, ErrClosed},
	} {
		if errors.Is(err, known.cause) && !errors.Is(err, known.meaning) {
			return fmt.Errorf("%w: %w", known.meaning, err)
		}
	}

	return err
}
