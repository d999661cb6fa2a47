//go:build !linux

package livetrace

import (
	"context"
	"errors"
	"fmt"
)

func notSupported(what string) error {
	return fmt.Errorf("livetrace: %s: not supported on this operating system: %w", what,
		errors.ErrUnsupported)
}

// Tracer cannot be opened on this operating system.
type Tracer struct{}

// Open is not supported on this operating system.
func Open(context.Context, *Config) (*Tracer, error) { return nil, notSupported("open") }

// Next is not supported on this operating system.
func (t *Tracer) Next(context.Context) (*Trace, error) { return nil, notSupported("next") }

// Close does nothing.
func (t *Tracer) Close() error { return nil }

// Send is not supported on this operating system.
func Send(context.Context, *Config) (*Trace, error) { return nil, notSupported("send") }
