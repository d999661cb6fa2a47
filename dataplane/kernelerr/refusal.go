// Package kernelerr defines the errors of all packages that talk to the kernel: the backends,
// package conntrack, and the packages that only read. Use errors.Is for the sentinels, and
// errors.As for an [OpError].
package kernelerr

import (
	"fmt"
	"io/fs"
	"strings"
	"syscall"
)

// OpError is one request that the kernel refused. errors.Is finds its errno (for example with
// errors.Is(err, fs.ErrPermission)), its Meaning, and [ErrNoPermission] if the errno is EPERM or
// EACCES.
type OpError struct {
	// Op is the operation, such as "add", or "commit" if the kernel refused a transaction as a
	// whole.
	Op string
	// Object is the object of the operation, such as "element 10.0.0.1 . tcp . 80 in map
	// endpoints-3 of table ip kernlb".
	Object string
	// Index is the position of the message in its batch, from 0; -1 means the transaction as a
	// whole.
	Index int
	// Errno is the kernel's error.
	Errno syscall.Errno
	// Meaning is the sentinel for the errno in this operation, for example that the ruleset
	// changed. It is nil if the errno needs no explanation.
	Meaning error
	// ExtAck is the kernel's own explanation (NLMSGERR_ATTR_MSG), often empty.
	ExtAck string
	// Offset is the position of the attribute at fault in the message, headers included
	// (NLMSGERR_ATTR_OFFS); 0 means that the kernel named no attribute.
	Offset int
}

// Error returns one line: the operation, the object, and the kernel's reasons.
func (e *OpError) Error() string {
	reason := e.Errno.Error()
	if e.Meaning != nil {
		reason = e.Meaning.Error()
	}
	if e.ExtAck != "" {
		reason += " (" + e.ExtAck + ")"
	}
	return strings.TrimSpace(e.Op+" "+e.Object) + ": " + reason
}

// Unwrap returns the errno, so that errors.Is(err, unix.ENOENT) works.
func (e *OpError) Unwrap() error { return e.Errno }

// Is reports whether target is the Meaning.
func (e *OpError) Is(target error) bool {
	return e.Meaning != nil && target == e.Meaning ||
		target == ErrNoPermission && e.Errno.Is(fs.ErrPermission)
}

// OpErrors lists the refused requests of one batch, in the order in which they were sent. The text
// shows the first few.
type OpErrors []*OpError

// Error returns the text of the first few errors, and the number of further errors.
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

// Unwrap returns all errors, for [errors.Is] and [errors.As].
func (e OpErrors) Unwrap() []error {
	errs := make([]error, len(e))
	for i, err := range e {
		errs[i] = err
	}
	return errs
}

// Err returns e in its simplest form: nil, the only error, or all.
func (e OpErrors) Err() error {
	switch len(e) {
	case 0:
		return nil
	case 1:
		return e[0]
	}

	return e
}
