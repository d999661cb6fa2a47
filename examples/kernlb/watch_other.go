//go:build !linux

package main

import "errors"

// dirFollower is for Linux.
type dirFollower struct{ changes <-chan changes }

func followDir(string) (*dirFollower, error) { return nil, errors.ErrUnsupported }

func (*dirFollower) close() {}

func (*dirFollower) replaced(string) bool { return false }
