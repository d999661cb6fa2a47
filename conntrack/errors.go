package conntrack

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/kernlb/kernlb/internal/kernelerr"
	"github.com/kernlb/kernlb/internal/rawnl"
)

// Errors that callers act on. They are found with [errors.Is].
var (
	// ErrNoPermission: the process lacks a capability. Requests need CAP_NET_ADMIN in the user
	// namespace that owns the network namespace. Sending resets also needs CAP_NET_RAW, and another
	// network namespace also needs CAP_SYS_ADMIN. It is the error of package dataplane, and matches
	// fs.ErrPermission.
	ErrNoPermission = kernelerr.ErrNoPermission
	// ErrMissingModule: this kernel has no conntrack, or was built without a feature that the
	// request needs. It is the error of package dataplane. On systems other than Linux it is
	// errors.ErrUnsupported.
	ErrMissingModule = kernelerr.ErrMissingModule
	// ErrTableFull: the kernel made no new flow because nf_conntrack_max is reached.
	ErrTableFull = errors.New("the conntrack table is full")
	// ErrInterrupted: the table was rebuilt during a dump, so the list is not complete. Try again.
	ErrInterrupted = errors.New("the dump of the conntrack table was interrupted")
	// ErrClosed: the table is closed.
	ErrClosed = errors.New("the conntrack table is closed")
)

// OpError is one refusal by the kernel, found with errors.As. It has the operation (Op), its object
// (Object), the error (Errno) and the explanation (ExtAck, the text of the extended
// acknowledgement).
type OpError = kernelerr.OpError

// explain replaces an error by its counterpart in this package. The cause stays in the chain.
func explain(err error) error {
	err = kernelerr.Permission(err)
	for _, known := range []struct{ cause, meaning error }{
		{syscall.ENOMEM, ErrTableFull},
		{rawnl.ErrDumpInterrupted, ErrInterrupted},
		{syscall.EPROTONOSUPPORT, ErrMissingModule},
		{rawnl.ErrClosed, ErrClosed},
	} {
		if errors.Is(err, known.cause) && !errors.Is(err, known.meaning) {
			return fmt.Errorf("%w: %w", known.meaning, err)
		}
	}
	return err
}
