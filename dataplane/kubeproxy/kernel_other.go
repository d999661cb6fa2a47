//go:build !linux

package kubeproxy

import (
	"context"
	"errors"
	"fmt"
)

// kernel is not there.
type kernel struct{}

var errNotSupported = fmt.Errorf("not supported on this operating system: %w",
	errors.ErrUnsupported)

func open(*Config) (*kernel, error) { return nil, errNotSupported }

func (k *kernel) close() {}

func (k *kernel) find(context.Context) (*Plan, error) { return nil, errNotSupported }

func (k *kernel) cleanup(context.Context) (*Plan, error) { return &Plan{}, errNotSupported }
