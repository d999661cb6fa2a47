//go:build !windows

package kernelspace

import (
	"errors"
	"fmt"
	"runtime"
)

// Host returns the Host Networking Service of this host. It needs Windows.
func Host() (HNS, error) {
	return nil, fmt.Errorf("the Host Networking Service on %s: %w", runtime.GOOS,
		errors.ErrUnsupported)
}
