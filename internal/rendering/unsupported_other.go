//go:build !linux

package rendering

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/servicemodel"
)

// NotSupported returns an error that matches errors.ErrUnsupported.
func NotSupported(what string) error {
	return fmt.Errorf("%s: not supported on this operating system: %w", what, errors.ErrUnsupported)
}

// Unsupported has the methods of a backend that need Linux. On other systems, each backend embeds
// it instead of its connection to the kernel.
type Unsupported struct{}

// Observe is not supported on this operating system.
func (Unsupported) Observe(context.Context, *servicemodel.Table) (*backends.Observation, error) {
	return nil, NotSupported("observe")
}

// Integrity is not supported on this operating system.
func (Unsupported) Integrity(context.Context) (backends.Integrity, error) {
	return backends.Broken, NotSupported("integrity")
}

// Commit is not supported on this operating system.
func (Unsupported) Commit(context.Context, *servicemodel.ChangeSet) (backends.Stats, error) {
	return backends.Stats{}, NotSupported("commit")
}

// Lock is not supported on this operating system.
func (Unsupported) Lock(context.Context) (unlock func(), err error) {
	return nil, NotSupported("lock")
}

// Settle is not supported on this operating system.
func (Unsupported) Settle(context.Context) (time.Duration, error) {
	return 0, NotSupported("settle")
}

// Blame is not supported on this operating system.
func (Unsupported) Blame(context.Context) (backends.Program, error) {
	return backends.Program{}, NotSupported("blame")
}

// Cleanup is not supported on this operating system.
func (Unsupported) Cleanup(context.Context) (backends.Stats, error) {
	return backends.Stats{}, NotSupported("cleanup")
}

// Close does nothing.
func (Unsupported) Close() error { return nil }
