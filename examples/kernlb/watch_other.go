//go:build !linux

package main

import "errors"

// dirFollower and addrFollower are for Linux.
type (
	dirFollower  struct{ changes <-chan changes }
	addrFollower struct{ changed <-chan struct{} }
)

func followDir(string) (*dirFollower, error) { return nil, errors.ErrUnsupported }
func followAddrs() (*addrFollower, error)    { return nil, errors.ErrUnsupported }

func (*dirFollower) close()  {}
func (*addrFollower) close() {}
