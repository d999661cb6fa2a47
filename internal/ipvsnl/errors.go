package ipvsnl

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
)

// Errors that callers act on. They are found with [errors.Is].
var (
	// ErrNotSupported: the running kernel has no IPVS, neither built in nor as a module that it
	// could load; or this is not Linux.
	ErrNotSupported = errors.New("the kernel has no IPVS (module ip_vs)")
	// ErrInvalid: what is wanted is not something that IPVS can do. The error names the field.
	// Nothing was sent.
	ErrInvalid = errors.New("invalid")
	// ErrMalformed: the kernel's answer makes no sense.
	ErrMalformed = errors.New("malformed netlink message")
	// ErrDumpInterrupted: what was being read changed meanwhile, again and again.
	ErrDumpInterrupted = errors.New("the dump was interrupted by a change")
	// ErrAnswersLost: the kernel did not answer all that was asked, for want of memory or of room
	// in the receive queue. What became of the requests is unknown: read back.
	ErrAnswersLost = errors.New("answers of the kernel were lost")
	// ErrClosed: the client was closed.
	ErrClosed = errors.New("the IPVS client is closed")

	// ErrNoService: the service does not exist (ESRCH).
	ErrNoService = errors.New("no such service")
	// ErrNoDestination: the service has no such destination (ENOENT of a command about a
	// destination).
	ErrNoDestination = errors.New("no such destination")
	// ErrNoModule: the scheduler or the persistence engine is neither in the kernel nor a module
	// that it could load (ENOENT of a command about a service).
	ErrNoModule = errors.New("no such scheduler or persistence engine")
	// ErrExists: the service or the destination exists already (EEXIST).
	ErrExists = errors.New("exists already")
)

// invalid returns an ErrInvalid about a field of an object.
func invalid(object any, field, format string, args ...any) error {
	return fmt.Errorf("%v: %s: %w: %s", object, field, ErrInvalid, fmt.Sprintf(format, args...))
}

// CommandError is the kernel's refusal of one command. It is also the sentinel that the errno
// stands for: [ErrNoService], [ErrNoDestination], [ErrNoModule] or [ErrExists]; and it is its
// errno, so that errors.Is(err, os.ErrPermission) works.
type CommandError struct {
	// Index is the position of the command in its batch, from 0.
	Index int
	// Command is what was to be done.
	Command Command
	// Service is the service it was about; the zero key if it was about none.
	Service ServiceKey
	// Destination is the destination it was about; the zero key if it was about none.
	Destination DestinationKey
	// Errno is the kernel's error. The package documentation lists what it means.
	Errno syscall.Errno
	// Text is the kernel's own explanation (NLMSGERR_ATTR_MSG), mostly empty.
	Text string
}

// Error returns one line: what was to be done with which object, and why not.
func (e *CommandError) Error() string {
	var s strings.Builder
	s.WriteString(e.Command.String())
	if e.Destination.Addr.IsValid() {
		fmt.Fprintf(&s, " %v of", e.Destination)
	}
	if e.Service != (ServiceKey{}) {
		fmt.Fprintf(&s, " %v", e.Service)
	}
	reason := e.sentinel()
	if reason == nil {
		reason = e.Errno
	}
	fmt.Fprintf(&s, ": %v", reason)
	if e.Text != "" {
		fmt.Fprintf(&s, " (%s)", e.Text)
	}
	return s.String()
}

// Unwrap returns the errno.
func (e *CommandError) Unwrap() error { return e.Errno }

// Is reports whether target is what the errno stands for.
func (e *CommandError) Is(target error) bool {
	s := e.sentinel()
	return s != nil && s == target
}

// sentinel returns what the errno stands for, nil if it is just an errno.
func (e *CommandError) sentinel() error {
	switch {
	case e.Errno == syscall.EEXIST:
		return ErrExists
	case e.Errno == syscall.ESRCH:
		return ErrNoService
	case e.Errno != syscall.ENOENT:
		return nil
	case e.Command == CommandSetDestination || e.Command == CommandDelDestination:
		return ErrNoDestination
	case e.Command == CommandNewService || e.Command == CommandSetService:
		return ErrNoModule
	}
	return nil
}

// BatchError says which commands of a batch failed. The others have succeeded, if there is no
// Cause: IPVS has no transactions.
type BatchError struct {
	// Failed are the commands that the kernel refused, in the order of the batch.
	Failed []*CommandError
	// Total is the number of commands in the batch, and Answered how many of them, from the first
	// on, the kernel is known to have worked on. What became of the rest is not known.
	Total, Answered int
	// Cause is why not all commands were answered: the error of a context, ErrAnswersLost,
	// ErrClosed or one of the system. Nil if all were.
	Cause error
}

// Error returns how many commands failed, and the first few errors.
func (e *BatchError) Error() string {
	const shown = 3
	var s strings.Builder
	if e.Cause != nil {
		fmt.Fprintf(&s, "%d of %d commands were answered: %v", e.Answered, e.Total, e.Cause)
	}
	for i, err := range e.Failed[:min(shown, len(e.Failed))] {
		if i > 0 || e.Cause != nil {
			s.WriteString("; ")
		}
		s.WriteString(err.Error())
	}
	if more := len(e.Failed) - shown; more > 0 {
		fmt.Fprintf(&s, "; and %d more of %d commands failed", more, e.Total)
	}
	return s.String()
}

// Unwrap returns the cause and all failures.
func (e *BatchError) Unwrap() []error {
	var errs []error
	if e.Cause != nil {
		errs = append(errs, e.Cause)
	}
	for _, f := range e.Failed {
		errs = append(errs, f)
	}
	return errs
}
