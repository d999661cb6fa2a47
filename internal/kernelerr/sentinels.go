package kernelerr

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
)

// Sentinels that several public packages name, each with its own documentation. One errors.Is finds
// the errors of all these packages.
var (
	ErrNoPermission  = errors.New("no permission")
	ErrMissingModule = errors.New("missing module")
	ErrKernelTooOld  = errors.New("kernel too old")
	ErrConflict      = errors.New("kernel state was changed by another program")
	ErrClosed        = errors.New("already closed")
)

// Permission makes an error about missing permission match [ErrNoPermission] and keeps its text. It
// returns other errors unchanged.
func Permission(err error) error {
	if denied(err) && !errors.Is(err, ErrNoPermission) {
		return permissionError{err}
	}
	return err
}

func denied(err error) bool {
	return errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS)
}

// permissionError is an [ErrNoPermission] and, like the kernel's errors, an fs.ErrPermission.
type permissionError struct{ error }

func (e permissionError) Unwrap() error { return e.error }

func (permissionError) Is(target error) bool {
	return target == ErrNoPermission || target == fs.ErrPermission
}

// NoPermission returns err as an [ErrNoPermission] that names the missing privilege.
func NoPermission(takes string, err error) error {
	return permissionError{fmt.Errorf("%w: it takes %s: %w", ErrNoPermission, takes, err)}
}
