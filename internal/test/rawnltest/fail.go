package rawnltest

import (
	"context"
	"errors"
	"sync"
	"testing"
)

// FailEach calls do again and again. The first context fails the first request to the kernel, the
// second context fails only the second request, and so on, until no request is left to fail. Each
// time, do must return the error, which shows that do ignores no error. what names the operation in
// messages.
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

// failing is a context that has ended only when it is asked for the n-th time. Done and a following
// Err are one question together, and Err alone is also one question.
type failing struct {
	context.Context
	mu       sync.Mutex
	n, asked int
	begun    bool // Done was called, and Err was not called since
	over     bool // Done was called for the n-th time
	told     bool // a caller has seen that the context has ended
}

// Done returns a closed channel at the n-th question, and nil otherwise.
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

// Err returns context.Canceled at the n-th question.
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
