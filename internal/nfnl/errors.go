package nfnl

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
)

// Errors that callers act on. They are found with [errors.Is].
var (
	// ErrGenerationChanged: the transaction was refused because somebody else committed one after
	// the generation id it was made for (the kernel says ERESTART). Read again, compare again, try
	// again.
	ErrGenerationChanged = errors.New("the ruleset changed since it was read")
	// ErrDumpInterrupted: what was being dumped changed meanwhile, so the dump shows neither the
	// old state nor the new one.
	ErrDumpInterrupted = errors.New("the dump was interrupted by a change")
	// ErrBatchTooLarge: the batch does not fit into one sendmsg. A [TooLargeError] holds the limit.
	ErrBatchTooLarge = errors.New("the batch is too large for the socket's send buffer")
	// ErrAnswersLost: answers of the kernel are missing, because the receive buffer overflowed or
	// the kernel had no memory for them. Whether a Commit took place is then unknown, unless there
	// are refusals beside this error: read back.
	ErrAnswersLost = errors.New("answers of the kernel are missing")
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
	// Index is the position of the message in its batch, from 0; -1 means the transaction as a
	// whole.
	Index int
	// Errno is the kernel's error.
	Errno syscall.Errno
	// ExtAck is the kernel's own explanation (NLMSGERR_ATTR_MSG), often empty.
	ExtAck string
	// Offset is where in the message the attribute at fault begins (NLMSGERR_ATTR_OFFS), headers
	// included; 0 means that the kernel did not say.
	Offset int
}

// transactionError is a refusal that is about no message of the transaction b.
func transactionError(b *Batch, v verdict) *OpError {
	what := "transaction of 1 message"
	if b.Len() != 1 {
		what = fmt.Sprintf("transaction of %d messages", b.Len())
	}
	return &OpError{Op: "commit", Object: what, Index: -1, Errno: v.errno, ExtAck: v.text}
}

// messageError is a refusal of message i of b.
func messageError(b *Batch, i int, v verdict) *OpError {
	obj := b.msgs[i].obj
	e := &OpError{Op: obj.Verb, Object: obj.blame(b.message(i), v.offset), Index: i,
		Errno: v.errno, ExtAck: v.text, Offset: v.offset}
	if e.Op == "" && e.Object == "" {
		e.Object = obj.label(i)
	}
	return e
}

// Error returns one line: what was being done to which object, and the kernel's reasons.
func (e *OpError) Error() string {
	reason := e.Errno.Error()
	if e.stale() {
		reason = ErrGenerationChanged.Error()
	}
	if e.ExtAck != "" {
		reason += " (" + e.ExtAck + ")"
	}
	return strings.TrimSpace(e.Op+" "+e.Object) + ": " + reason
}

// Unwrap returns the errno, so that errors.Is(err, unix.ENOENT) works.
func (e *OpError) Unwrap() error { return e.Errno }

// Is reports whether e is an [ErrGenerationChanged].
func (e *OpError) Is(target error) bool { return target == ErrGenerationChanged && e.stale() }

// stale: only a wrong generation id makes the kernel refuse a transaction with ERESTART.
func (e *OpError) stale() bool { return e.Index < 0 && e.Errno == errRestart }

// OpErrors are all refusals of one batch, in the order of the messages. The text shows the first
// few.
type OpErrors []*OpError

// Error returns the first few errors and how many more there are.
func (e OpErrors) Error() string {
	const shown = 3
	var s strings.Builder
	for i, err := range e[:min(shown, len(e))] {
		if i > 0 {
			s.WriteString("; ")
		}
		s.WriteString(err.Error())
	}
	if len(e) > shown {
		fmt.Fprintf(&s, "; and %d more", len(e)-shown)
	}
	return s.String()
}

// Unwrap returns all of them, for [errors.Is] and [errors.As].
func (e OpErrors) Unwrap() []error {
	errs := make([]error, len(e))
	for i, err := range e {
		errs[i] = err
	}
	return errs
}

// err returns e as simply as it can be said.
func (e OpErrors) err() error {
	switch len(e) {
	case 0:
		return nil
	case 1:
		return e[0]
	}
	return e
}

// TooLargeError says how large a batch is and how large it may be. It is an [ErrBatchTooLarge].
type TooLargeError struct {
	Size, Limit int // bytes
}

// Error returns both sizes.
func (e *TooLargeError) Error() string {
	return fmt.Sprintf("%v: %d bytes, the limit is %d", ErrBatchTooLarge, e.Size, e.Limit)
}

// Is reports whether target is [ErrBatchTooLarge].
func (e *TooLargeError) Is(target error) bool { return target == ErrBatchTooLarge }
