//go:build !linux

package ipvs

import (
	"context"
	"errors"
	"fmt"
)

func probeKernel(context.Context, int) error {
	return fmt.Errorf("ipvs: probe: not supported on this operating system: %w",
		errors.ErrUnsupported)
}

func explain(err error) error { return err }
