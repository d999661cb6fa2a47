//go:build !linux

package conntrack

import "context"

func settle(context.Context) error { return ErrNotSupported }
