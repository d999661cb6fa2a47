//go:build !linux

package ipvs

import (
	"context"
	"errors"
	"fmt"
)

// Watch fails: there is no IPVS here.
func (b *Backend) Watch(context.Context, func()) error {
	return fmt.Errorf("ipvs: watch addresses: %w", errors.ErrUnsupported)
}
