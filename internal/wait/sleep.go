package wait

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// For waits for d. If the context ends earlier, For returns at once, with the error of [Ended].
func For(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return Ended(ctx)
	case <-t.C:
		return nil
	}
}

// Ended returns nil while the context lasts, and then the context's error and its cause. The error
// alone would hide the cause. The cause alone need not be the [context.Canceled] that callers ask
// for: since Go 1.26, the cause of [os/signal.NotifyContext] is not.
func Ended(ctx context.Context) error {
	err := ctx.Err()
	if err == nil {
		return nil
	}
	cause := context.Cause(ctx)
	if cause == nil || errors.Is(cause, err) {
		return err
	}
	return fmt.Errorf("%w: %w", err, cause)
}
