package dataplane

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kernlb/kernlb/internal/sleep"
)

// turn is a lock, the waiting for which ends with a context. It is given in the order in which it
// was asked for.
type turn chan struct{}

func newTurn() turn { return make(turn, 1) }

// take waits for the turn, which give ends. The error is that of the context, and it is returned
// only if there was something to wait for.
func (t turn) take(ctx context.Context) error {
	select {
	case t <- struct{}{}:
		return nil
	default:
	}
	select {
	case t <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the turn: %w", context.Cause(ctx))
	}
}

func (t turn) give() { <-t }

// tries bounds how often something begins again because others changed the kernel meanwhile. The
// waits in between add up to 1.2 s.
const tries = 16

// retry does something again for as long as that fails with ErrConflict. It is the only retry of
// reading and committing: a backend returns the conflict.
func retry(ctx context.Context, doing string, f func() error) error {
	var err error
	for try := range tries {
		if try > 0 {
			if err := sleep.For(ctx, time.Duration(try*try)*time.Millisecond); err != nil {
				return err
			}
		}
		if err = f(); !errors.Is(err, ErrConflict) {
			return err
		}
	}
	return fmt.Errorf("%s: tried %d times: %w", doing, tries, err)
}
