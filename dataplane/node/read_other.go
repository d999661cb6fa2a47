//go:build !linux

package node

import (
	"context"
	"errors"
)

// read reads nothing on this operating system.
func (*Config) read(context.Context) *facts {
	return &facts{unknown: []string{errors.ErrUnsupported.Error()}}
}
