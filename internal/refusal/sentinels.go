package refusal

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
)

// The sentinels that several public packages name, each with its own documentation, so that one
// errors.Is finds the errors of all of them.
var (
	ErrNoPermission  = errors.New("no permission")
	ErrMissingModule = errors.New("missing module")
	ErrKernelTooOld  = errors.New("kernel too old")
	ErrConflict      = errors.New("kernel state was changed by another program")
)

// Permission makes an error that says that permission is missing match [ErrNoPermission], with its
// text as it is; other errors it returns as they are.
func Permission(err error) error {
	if denied(err) && !errors.Is(err, ErrNoPermission) {
		return permissionError{err}
	}
	return err
}

func denied(err error) bool {
	return errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS)
}

// permissionError is an [ErrNoPermission] and, like those of the kernel, an fs.ErrPermission.
type permissionError struct{ error }

func (e permissionError) Unwrap() error { return e.error }

func (permissionError) Is(target error) bool {
	return target == ErrNoPermission || target == fs.ErrPermission
}

// NoPermission returns err as an [ErrNoPermission], with what it takes.
func NoPermission(takes string, err error) error {
	return permissionError{fmt.Errorf("%w: it takes %s: %w", ErrNoPermission, takes, err)}
}
