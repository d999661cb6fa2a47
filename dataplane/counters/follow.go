package counters

import (
	"context"

	"github.com/kernlb/kernlb/dataplane"
)

// Follow starts the counters, and starts them again whenever an engine has repaired the kernel:
// another program may have flushed the whole ruleset. They then count from zero. failed gets the
// errors of [Counters.Start], one call after the other, while the engine waits; nil ignores them.
// Calling stop ends this, and leaves the counters on.
func (c *Counters) Follow(ctx context.Context, e *dataplane.Engine, failed func(error)) (
	stop func()) {
	start := func(ctx context.Context) {
		if err := c.Start(ctx); err != nil && failed != nil {
			failed(err)
		}
	}
	if e == nil {
		e = &dataplane.Engine{}
	}
	stop = e.Subscribe(func(ctx context.Context, ev dataplane.Event) {
		if _, repaired := ev.(dataplane.Repaired); repaired {
			start(ctx)
		}
	})
	start(ctx)
	return stop
}
