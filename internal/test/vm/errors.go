package vmtest

import "errors"

// Errors that callers distinguish with errors.Is.
var (
	// ErrMissing: the machine lacks a program, a package source or the network. The error names it
	// and the package to install.
	ErrMissing = errors.New("missing")
	// ErrUnknownKernel: [Options].Kernel names none of [Releases].
	ErrUnknownKernel = errors.New("unknown kernel")
	// ErrTestsFailed: everything ran, and at least one program ended with an exit code other
	// than 0. The [Result] is complete.
	ErrTestsFailed = errors.New("tests failed in the VM")
	// ErrPanic: the guest's kernel panicked; an oops counts as one.
	ErrPanic = errors.New("the guest's kernel panicked")
	// ErrTimeout: the guest did not start, or not finish, in its time.
	ErrTimeout = errors.New("the VM took too long")
	// ErrNoVerdict: the VM ended, or broke its protocol, before it had reported the end of all
	// programs.
	ErrNoVerdict = errors.New("the VM ended without a verdict")
)
