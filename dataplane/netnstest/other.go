//go:build !linux

package netnstest

import (
	"context"
	"errors"
	"fmt"
	"os"
)

type pulse struct{}

// errNotSupported is the error of all functions here on systems other than Linux.
var errNotSupported = fmt.Errorf("netnstest: network namespaces need Linux: %w",
	errors.ErrUnsupported)

func newNetNS() (*os.File, error)            { return nil, errNotSupported }
func inNetNS(*NS, func() error) error        { return errNotSupported }
func usable() error                          { return errNotSupported }
func isReset(error) bool                     { return false }
func (ns *NS) prepare() error                { return errNotSupported }
func (p Probe) send(context.Context) Outcome { return Outcome{Err: errNotSupported} }

func (c *Cluster) build(context.Context, Options) error { return errNotSupported }

func (p Probe) dial(context.Context) (*conn, Outcome) { return nil, Outcome{Err: errNotSupported} }

// ReExecInUserNS needs Linux.
func ReExecInUserNS() (done bool, exitCode int, err error) { return false, 0, errNotSupported }
