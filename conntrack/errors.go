package conntrack

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/refusal"
)

// Errors that callers act on. They are found with [errors.Is].
var (
	// ErrNoPermission: the process may not do this; it takes CAP_NET_ADMIN in the user namespace
	// that owns the network namespace, to send resets also CAP_NET_RAW, and to work in another
	// network namespace also CAP_SYS_ADMIN. It is the one of package dataplane, and matches
	// fs.ErrPermission.
	ErrNoPermission = refusal.ErrNoPermission
	// ErrMissingModule: this kernel has no conntrack, or was built without what is asked for. It is
	// the one of package dataplane. On other systems than Linux it is errors.ErrUnsupported.
	ErrMissingModule = refusal.ErrMissingModule
	// ErrTableFull: the kernel made no new flow because nf_conntrack_max is reached.
	ErrTableFull = errors.New("the conntrack table is full")
	// ErrInterrupted: the table was rebuilt during a dump, so what was listed is not complete. Try
	// again.
	ErrInterrupted = errors.New("the dump of the conntrack table was interrupted")
	// ErrNoEvents: the kernel does not tell of new flows, because the sysctl nf_conntrack_events is
	// 0, or cannot be read, or the kernel was built without CONFIG_NF_CONNTRACK_EVENTS.
	ErrNoEvents = errors.New("conntrack makes no events")
	// ErrClosed: the table is closed.
	ErrClosed = errors.New("the conntrack table is closed")
)

// OpError is one refusal by the kernel, found with errors.As. It says what was being done (Op) to
// what (Object), with which error (Errno) and explanation (ExtAck, the text of the extended
// acknowledgement).
type OpError = refusal.OpError

// explain says in the words of this package what went wrong. The cause stays in the chain.
func explain(err error) error {
	err = refusal.Permission(err)
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
