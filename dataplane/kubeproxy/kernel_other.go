//go:build !linux

package kubeproxy

import (
	"context"
	"errors"
	"fmt"

	"github.com/kernlb/kernlb/servicemodel"
)

// kernel is a stub: this operating system has no kube-proxy.
type kernel struct{}

var errNotSupported = fmt.Errorf("not supported on this operating system: %w",
	errors.ErrUnsupported)

func open(*Config) (*kernel, error) { return nil, errNotSupported }

func (k *kernel) close() {}

func (k *kernel) find(context.Context) (*Plan, error) { return nil, errNotSupported }

func (k *kernel) readContents(context.Context, map[servicemodel.FrontendKey]Frontend) error {
	return errNotSupported
}

func (k *kernel) cleanup(context.Context) (*Plan, error) { return &Plan{}, errNotSupported }
