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
	// ErrPermission: the process may not do this; it takes CAP_NET_ADMIN in the user namespace that
	// owns the network namespace, to send resets also CAP_NET_RAW, and to work in another network
	// namespace also CAP_SYS_ADMIN.
	ErrPermission = errors.New("no permission")
	// ErrTableFull: the kernel made no new flow because nf_conntrack_max is reached.
	ErrTableFull = errors.New("the conntrack table is full")
	// ErrInterrupted: the table was rebuilt during a dump, so what was listed is not complete. Try
	// again.
	ErrInterrupted = errors.New("the dump of the conntrack table was interrupted")
	// ErrNotSupported: there is no conntrack on this operating system or in this kernel.
	ErrNotSupported = errors.New("conntrack is not supported here")
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
	for _, known := range []struct{ cause, meaning error }{
		{syscall.EPERM, ErrPermission},
		{syscall.EACCES, ErrPermission},
		{syscall.EROFS, ErrPermission},
		{syscall.ENOMEM, ErrTableFull},
		{rawnl.ErrDumpInterrupted, ErrInterrupted},
		{rawnl.ErrNotSupported, ErrNotSupported},
		{syscall.EPROTONOSUPPORT, ErrNotSupported},
		{rawnl.ErrClosed, ErrClosed},
	} {
		if errors.Is(err, known.cause) && !errors.Is(err, known.meaning) {
			return fmt.Errorf("%w: %w", known.meaning, err)
		}
	}
	return err
}
