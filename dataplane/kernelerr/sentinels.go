package kernelerr

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
)

// Errors that callers act on; find them with errors.Is. docs/errors.md says what to do about each.
// On systems other than Linux, everything that needs a kernel fails with errors.ErrUnsupported.
var (
	// ErrNoPermission says that the process lacks a capability. Opening a backend needs
	// CAP_NET_ADMIN in the user namespace that owns the network namespace; for IPVS, in the initial
	// user namespace. Requests to conntrack need it, too. Sending resets also needs CAP_NET_RAW.
	// Entering another network namespace needs CAP_SYS_ADMIN. Such errors also match
	// fs.ErrPermission.
	ErrNoPermission = errors.New("no permission")
	// ErrMissingModule says that the kernel lacks a module, does not load the module automatically,
	// or was built without an option. The text names the module if it can be determined.
	ErrMissingModule = errors.New("missing module")
	// ErrKernelTooOld says that the kernel is too old for the backend.
	ErrKernelTooOld = errors.New("kernel too old")
	// ErrConflict says that another program changed the kernel's state between reading and writing.
	// The engine reads the kernel again and retries. It returns the error only if conflicts
	// persist.
	ErrConflict = errors.New("kernel state was changed by another program")
	// ErrClosed says that the backend was closed.
	ErrClosed = errors.New("already closed")
)

// Permission makes an error about missing permission match [ErrNoPermission], with the same text.
// It returns other errors unchanged.
func Permission(err error) error {
	if denied(err) && !errors.Is(err, ErrNoPermission) {
		return permissionError{err}
	}
	return err
}

func denied(err error) bool {
	return errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS)
}

// permissionError matches [ErrNoPermission] and, like the kernel's errors, fs.ErrPermission.
type permissionError struct{ error }

func (e permissionError) Unwrap() error { return e.error }

func (permissionError) Is(target error) bool {
	return target == ErrNoPermission || target == fs.ErrPermission
}

// NoPermission returns err as an [ErrNoPermission] that names the missing privilege.
func NoPermission(takes string, err error) error {
	return permissionError{fmt.Errorf("%w: it takes %s: %w", ErrNoPermission, takes, err)}
}
