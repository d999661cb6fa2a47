//go:build !linux

package rendering

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/servicemodel"
)

// NotSupported returns an error that matches errors.ErrUnsupported.
func NotSupported(what string) error {
	return fmt.Errorf("%s: not supported on this operating system: %w", what, errors.ErrUnsupported)
}

// Unsupported has the methods of a backend that need Linux. Each backend has it where its
// connection to the kernel would be.
type Unsupported struct{}

// Observe is not supported on this operating system.
func (Unsupported) Observe(context.Context, *servicemodel.Table) (*dataplane.Observation, error) {
	return nil, NotSupported("observe")
}

// Integrity is not supported on this operating system.
func (Unsupported) Integrity(context.Context) (dataplane.Integrity, error) {
	return dataplane.Broken, NotSupported("integrity")
}

// Commit is not supported on this operating system.
func (Unsupported) Commit(context.Context, *servicemodel.ChangeSet) (dataplane.Stats, error) {
	return dataplane.Stats{}, NotSupported("commit")
}

// Lock is not supported on this operating system.
func (Unsupported) Lock(context.Context) (unlock func(), err error) {
	return nil, NotSupported("lock")
}

// Settle is not supported on this operating system.
func (Unsupported) Settle(context.Context) (time.Duration, error) {
	return 0, NotSupported("settle")
}

// Witness is not supported on this operating system.
func (Unsupported) Witness(context.Context) (dataplane.Program, error) {
	return dataplane.Program{}, NotSupported("witness")
}

// Cleanup is not supported on this operating system.
func (Unsupported) Cleanup(context.Context) (dataplane.Stats, error) {
	return dataplane.Stats{}, NotSupported("cleanup")
}

// Close does nothing.
func (Unsupported) Close() error { return nil }
