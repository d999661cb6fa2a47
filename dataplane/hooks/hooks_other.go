//go:build !linux

package hooks

import (
	"context"
	"errors"
)

// Reader reads the chains of one network namespace, on Linux.
type Reader struct{}

// Open returns errors.ErrUnsupported: only Linux has chains of nf_tables.
func Open(*Config) (*Reader, error) { return nil, errors.ErrUnsupported }

// Read returns errors.ErrUnsupported.
func (*Reader) Read(context.Context, func(table string) bool) ([]Chain, error) {
	return nil, errors.ErrUnsupported
}

// Close does nothing.
func (*Reader) Close() error { return nil }
