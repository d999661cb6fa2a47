//go:build !unix

package proxy

import (
	"errors"
	"os"
	"syscall"
)

func copySocket(syscall.Conn) (*os.File, error) { return nil, errors.ErrUnsupported }
