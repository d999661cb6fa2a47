package nfnl

import (
	"errors"
	"syscall"
)

// Errors that callers act on. They are found with [errors.Is].
var (
	// ErrGenerationChanged: the transaction was refused because somebody else committed one after the
	// generation id it was made for (the kernel says ERESTART). Read again, compare again, try again.
	ErrGenerationChanged = errors.New("the ruleset changed since it was read")
	// ErrDumpInterrupted: what was being dumped changed meanwhile, so the dump shows neither the old
	// state nor the new one.
	ErrDumpInterrupted = errors.New("the dump was interrupted by a change")
	// ErrBatchTooLarge: the batch does not fit into one sendmsg. A [TooLargeError] holds the limit.
	ErrBatchTooLarge = errors.New("the batch is too large for the socket's send buffer")
	// ErrAnswersLost: the receive buffer overflowed and some answers of the kernel are missing. After
	// a Commit that says nothing else, whether it took place is unknown: read back.
	ErrAnswersLost = errors.New("the kernel's answers overflowed the socket's receive buffer")
	// ErrBadBatch: the batch was not written properly; nothing was sent.
	ErrBadBatch = errors.New("malformed batch")
	// ErrMalformed: bytes of the kernel do not parse.
	ErrMalformed = errors.New("malformed netlink message")
	// ErrClosed: the connection is closed.
	ErrClosed = errors.New("the netfilter connection is closed")
	// ErrNotSupported: there is no nfnetlink on this operating system.
	ErrNotSupported = errors.New("nfnetlink is not supported on this operating system")
)

// OpError is one refusal by the kernel.
type OpError struct {
	// Op is what was being done: the Verb of the message's [Object], or "commit" when the kernel
	// refused a transaction as a whole.
	Op string
	// Object is what it was being done to, as said by the message's [Object].
	Object string
	// Index is the position of the message in its batch, from 0; -1 means the transaction as a whole.
	Index int
	// Errno is the kernel's error.
	Errno syscall.Errno
	// ExtAck is the kernel's own explanation (NLMSGERR_ATTR_MSG), often empty.
	ExtAck string
	// Offset is where in the message the attribute at fault begins (NLMSGERR_ATTR_OFFS), headers
	// included; 0 means that the kernel did not say.
	Offset int
}

// Error returns one line: what was being done to which object, and the kernel's reasons.
func (e *OpError) Error() string { return "" }

// Unwrap returns the errno, so that errors.Is(err, unix.ENOENT) works.
func (e *OpError) Unwrap() error { return e.Errno }

// OpErrors are all refusals of one batch, in the order of the messages. The text shows the first few.
type OpErrors []*OpError

// Error returns the first few errors and how many more there are.
func (e OpErrors) Error() string { return "" }

// Unwrap returns all of them, for [errors.Is] and [errors.As].
func (e OpErrors) Unwrap() []error { return nil }

// TooLargeError says how large a batch is and how large it may be. It is an [ErrBatchTooLarge].
type TooLargeError struct {
	Size, Limit int // bytes
}

// Error returns both sizes.
func (e *TooLargeError) Error() string { return "" }

// Is reports whether target is [ErrBatchTooLarge].
func (e *TooLargeError) Is(target error) bool { return target == ErrBatchTooLarge }
