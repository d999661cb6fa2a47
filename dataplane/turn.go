package dataplane

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kernlb/kernlb/internal/wait"
)

// turn is a lock. A context can end the wait for it. Waiters get it in the order of their calls.
type turn chan struct{}

func newTurn() turn { return make(turn, 1) }

// errNoBackend says that an engine or parts have no backend.
var errNoBackend = errors.New("there is no backend")

// take waits for the turn. give ends it. It returns the context's error. A context that has ended
// gets no turn, not even a free one.
func (t turn) take(ctx context.Context) error {
	if t == nil {
		return errNoBackend
	}
	if err := wait.Ended(ctx); err != nil {
		return fmt.Errorf("wait for the turn: %w", err)
	}
	select {
	case t <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the turn: %w", wait.Ended(ctx))
	}
}

func (t turn) give() { <-t }

// tries is the maximum number of tries after conflicts with other programs. The waits in between
// add up to 1.2 s.
const tries = 16

// retry repeats f as long as it fails with ErrConflict, up to tries times. It is the only retry of
// reading and committing, because backends return conflicts to the engine.
func retry(ctx context.Context, doing string, f func() error) error {
	var err error
	for try := range tries {
		if try > 0 {
			if err := wait.For(ctx, time.Duration(try*try)*time.Millisecond); err != nil {
				return err
			}
		}
		if err = f(); !errors.Is(err, ErrConflict) {
			return err
		}
	}
	return fmt.Errorf("%s: tried %d times: %w", doing, tries, err)
}
