//go:build !linux

package hooks

import (
	"context"
	"errors"
)

// Read returns errors.ErrUnsupported: only Linux has chains of nf_tables.
func Read(context.Context, *Config, func(table string) bool) ([]Chain, error) {
	return nil, errors.ErrUnsupported
}
