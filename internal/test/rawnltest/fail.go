package rawnltest

import (
	"context"
	"errors"
	"sync"
	"testing"
)

// FailEach calls do with a context that fails the first request to the kernel, then with one that
// fails the second and lets all others pass, and so on, until do makes no request that fails. Each
// time, do must return the error, so do swallows no error. what names the operation in messages.
func FailEach(t testing.TB, what string, do func(context.Context) error) {
	t.Helper()
	for n := 1; ; n++ {
		ctx := &failing{Context: t.Context(), n: n}
		err := do(ctx)
		if ctx.told {
			if !errors.Is(err, context.Canceled) {
				t.Fatalf("%s: request %d failed, and the result is %v", what, n, err)
			}
			continue
		}
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if ctx.asked < n {
			if n == 1 {
				t.Fatalf("%s: no request", what)
			}
			return
		}
	}
}

// failing is a context that has ended when it is asked for the n-th time, and never else. To ask is
// to call Done, with the Err that may follow it, or Err alone.
type failing struct {
	context.Context
	mu       sync.Mutex
	n, asked int
	begun    bool // Done was asked, and Err was not since
	over     bool // Done was asked for the n-th time
	told     bool // a caller has seen that the context has ended
}

// Done returns a channel that is closed at the n-th time, and nil else.
func (c *failing) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked++
	c.begun, c.over = true, c.asked == c.n
	if !c.over {
		return nil
	}
	done := make(chan struct{})
	close(done)
	return done
}

// Err returns context.Canceled at the n-th time.
func (c *failing) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.over {
		if c.begun {
			c.begun = false
			return nil
		}
		if c.asked++; c.asked != c.n {
			return nil
		}
	}
	c.told = true
	return context.Canceled
}
