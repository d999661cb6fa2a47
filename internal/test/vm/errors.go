package vmtest

import (
	"errors"
	"fmt"
)

// Errors that callers distinguish with errors.Is.
var (
	// ErrMissing: the machine lacks a program, a package source or the network. The error is a
	// [*MissingError] that names it and the package to install.
	ErrMissing = errors.New("something the VM runner needs is missing")
	// ErrUnknownKernel: [Options].Kernel names none of [Releases].
	ErrUnknownKernel = errors.New("unknown kernel")
	// ErrTestsFailed: everything ran, and at least one program ended with another
	// exit code than 0. The [Result] is complete.
	ErrTestsFailed = errors.New("tests failed in the VM")
	// ErrPanic: the guest's kernel panicked; an oops counts as one.
	ErrPanic = errors.New("the guest's kernel panicked")
	// ErrTimeout: the guest did not start, or not finish, in its time.
	ErrTimeout = errors.New("the VM took too long")
	// ErrNoVerdict: the VM ended, or broke its protocol, before it had said how
	// all programs ended.
	ErrNoVerdict = errors.New("the VM ended without a verdict")
)

// MissingError says what the machine lacks. It wraps [ErrMissing].
type MissingError struct {
	// What names the missing thing: a program, a kernel, a source of packages.
	What string
	// Package is the Debian package that has it, or "".
	Package string
	// Err is the error that showed it; may be nil.
	Err error
}

// Error names what is missing and the package to install.
func (e *MissingError) Error() string {
	msg := "missing: " + e.What
	if e.Package != "" {
		msg += fmt.Sprintf(" (Debian package %s)", e.Package)
	}
	if e.Err != nil {
		msg += ": " + e.Err.Error()
	}
	return msg
}

// Unwrap gives [ErrMissing] and the cause.
func (e *MissingError) Unwrap() []error {
	if e.Err == nil {
		return []error{ErrMissing}
	}
	return []error{ErrMissing, e.Err}
}
