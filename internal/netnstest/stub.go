package netnstest

import (
	"context"
	"os"
)

type (
	sctpServers  struct{}
	canary       struct{}
	sourcePorts  struct{}
	packetSocket struct{}
)

func (*packetSocket) Close() error { return nil }

func newNetNS() (*os.File, error)               { return nil, ErrNotSupported }
func inNetNS(ns *NS, f func() error) error      { return ErrNotSupported }
func usable() error                             { return ErrNotSupported }
func openCapture(*NS, string) (*Capture, error) { return nil, ErrNotSupported }

func (ns *NS) prepare() error                           { return ErrNotSupported }
func (c *Cluster) build(context.Context, Options) error { return ErrNotSupported }
func (p Probe) send(ctx context.Context) Outcome        { return Outcome{Err: ErrNotSupported} }
func (s *Server) start() error                          { return ErrNotSupported }

// ReExecInUserNS runs a copy of this program, with the same arguments, environment and standard streams, in new
// user, network and mount namespaces in which the caller is root, if this process may not create network
// namespaces itself. With done, the copy has run and exitCode is its exit code: exit with it. Without, carry on:
// namespaces can be created, or err says why not.
func ReExecInUserNS() (done bool, exitCode int, err error) { return false, 0, ErrNotSupported }
