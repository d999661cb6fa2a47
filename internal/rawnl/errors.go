package rawnl

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/kernlb/kernlb/dataplane/kernelerr"
)

// Errors that callers act on. Use [errors.Is] to find them.
var (
	// ErrGenerationChanged: the kernel refused the transaction (ERESTART) because another program
	// has committed since the generation for which the transaction was built. Read, compare and
	// commit again.
	ErrGenerationChanged = errors.New("the ruleset changed since it was read")
	// ErrDumpInterrupted: the objects changed during the dump, so the dump shows neither the old
	// state nor the new one.
	ErrDumpInterrupted = errors.New("the dump was interrupted by a change")
	// ErrBatchTooLarge: the batch does not fit into one sendmsg. A [TooLargeError] contains the
	// limit.
	ErrBatchTooLarge = errors.New("the batch is too large for the socket's send buffer")
	// ErrAnswersLost: answers of the kernel are missing, because the receive buffer overflowed or
	// the kernel had no memory for them. After a Commit with only this error and no refusals, the
	// caller must read back, because the kernel may have committed.
	ErrAnswersLost = errors.New("answers of the kernel are missing")
	// ErrBadBatch: the batch was written incorrectly; nothing was sent.
	ErrBadBatch = errors.New("malformed batch")
	// ErrMalformed: bytes from the kernel cannot be parsed.
	ErrMalformed = errors.New("malformed netlink message")
	// ErrOverflow: the kernel had more messages for a [Listener] than its queue had room for.
	ErrOverflow error = errOverrun
	// ErrClosed: the connection is closed.
	ErrClosed = kernelerr.ErrClosed
	// ErrNotSupported: there is no netlink on this operating system. It is an
	// [errors.ErrUnsupported].
	ErrNotSupported = fmt.Errorf("there is no netlink on this operating system: %w",
		errors.ErrUnsupported)
)

// Refusals by the kernel: of one message, or of several messages of a batch.
type (
	OpError  = kernelerr.OpError
	OpErrors = kernelerr.OpErrors
)

// Refusals returns the kernel's refusals in an error of a [Conn], or nil for other errors.
func Refusals(err error) OpErrors {
	var all OpErrors
	var one *OpError
	switch {
	case errors.As(err, &all):
		return all
	case errors.As(err, &one):
		return OpErrors{one}
	}

	return nil
}

// Except returns the error of a [Conn] without the refusals that have the errno, or nil if nothing
// else is left. It returns other errors unchanged.
func Except(err error, errno syscall.Errno) error {
	all, several := err.(OpErrors)
	if one, ok := err.(*OpError); ok {
		all = OpErrors{one}
	} else if !several {
		return err
	}

	var rest OpErrors
	for _, e := range all {
		if e.Errno != errno {
			rest = append(rest, e)
		}
	}

	return rest.Err()
}

// transactionError is a refusal of the transaction b as a whole.
func transactionError(b *Batch, v verdict) *OpError {
	what := "transaction of 1 message"
	if b.Len() != 1 {
		what = fmt.Sprintf("transaction of %d messages", b.Len())
	}
	e := &OpError{Op: "commit", Object: what, Index: -1, Errno: v.errno, ExtAck: v.text}
	if v.errno == errRestart { // only a wrong generation id causes this errno
		e.Meaning = ErrGenerationChanged
	}
	return e
}

// messageError is a refusal of message i of b.
func messageError(b *Batch, i int, v verdict) *OpError {
	obj := b.msgs[i].obj
	e := &OpError{Op: obj.Verb, Object: obj.blame(b.At(i), v.offset), Index: i,
		Errno: v.errno, ExtAck: v.text, Offset: v.offset}
	if e.Op == "" && e.Object == "" {
		e.Object = obj.label(i)
	}
	if x, ok := obj.Part.(Explainer); ok {
		e.Meaning = x.Explain(v.errno)
	}
	return e
}

// TooLargeError contains the size of a batch and the limit. It is an [ErrBatchTooLarge].
type TooLargeError struct {
	Size, Limit int // bytes
}

// Error returns both sizes.
func (e *TooLargeError) Error() string {
	return fmt.Sprintf("%v: %d bytes, the limit is %d", ErrBatchTooLarge, e.Size, e.Limit)
}

// Is reports whether target is [ErrBatchTooLarge].
func (e *TooLargeError) Is(target error) bool { return target == ErrBatchTooLarge }
