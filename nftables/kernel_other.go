//go:build !linux

package nftables

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/servicemodel"
)

// kernel is not there.
type kernel struct{}

func notSupported(what string) error {
	return fmt.Errorf("nftables: %s: not supported on this operating system: %w", what,
		errors.ErrUnsupported)
}

func (k *kernel) open(*Config) error { return notSupported("open") }

// Observe is not supported on this operating system.
func (b *Backend) Observe(context.Context, *servicemodel.Table) (*dataplane.Observation, error) {
	return nil, notSupported("observe")
}

// Integrity is not supported on this operating system.
func (b *Backend) Integrity(context.Context) (dataplane.Integrity, error) {
	return dataplane.Broken, notSupported("integrity")
}

// Commit is not supported on this operating system.
func (b *Backend) Commit(context.Context, *servicemodel.ChangeSet) (dataplane.Stats, error) {
	return dataplane.Stats{}, notSupported("commit")
}

// Lock is not supported on this operating system.
func (b *Backend) Lock(context.Context) (unlock func(), err error) {
	return nil, notSupported("lock")
}

// Settle is not supported on this operating system.
func (b *Backend) Settle(context.Context) (time.Duration, error) {
	return 0, notSupported("settle")
}

// Witness is not supported on this operating system.
func (b *Backend) Witness(context.Context) (dataplane.Program, error) {
	return dataplane.Program{}, notSupported("witness")
}

// Cleanup is not supported on this operating system.
func (b *Backend) Cleanup(context.Context) (dataplane.Stats, error) {
	return dataplane.Stats{}, notSupported("cleanup")
}

// Close does nothing.
func (b *Backend) Close() error { return nil }

// ObserveParts is not supported on this operating system.
func (b *Backend) ObserveParts(context.Context, []string, *servicemodel.Table) (
	*dataplane.Observation, error) {
	return nil, notSupported("observe parts")
}

// Owners is not supported on this operating system.
func (b *Backend) Owners(context.Context) ([]string, error) { return nil, notSupported("owners") }
