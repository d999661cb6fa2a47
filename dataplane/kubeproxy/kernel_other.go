//go:build !linux

package kubeproxy

import (
	"context"
	"errors"
	"fmt"
	"net"
)

// kernel is a stub: this operating system has no kube-proxy.
type kernel struct{}

var errNotSupported = fmt.Errorf("not supported on this operating system: %w",
	errors.ErrUnsupported)

func open(*Config) (*kernel, error) { return nil, errNotSupported }

func (k *kernel) close() {}

// within is a stub, like kernel.
type within struct{}

func enter(*Config) (within, error) { return within{}, errNotSupported }

func (within) Close() error { return nil }

func (within) rootListens() bool { return false }

func (within) dial(context.Context, string, string) (net.Conn, error) { return nil, errNotSupported }

func (k *kernel) find(context.Context) (*Plan, error) { return nil, errNotSupported }

func (k *kernel) readContents(context.Context, contents) error { return errNotSupported }

func (k *kernel) cleanup(context.Context) (*Plan, error) { return &Plan{}, errNotSupported }
