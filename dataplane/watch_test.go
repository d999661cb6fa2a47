package dataplane_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/memory"
)

// watching is a Watcher in memory. It calls changed for each nil that it receives, and fails with
// each error that it receives.
type watching struct {
	*memory.Backend
	events chan error
	begun  int
}

func (w *watching) Watch(ctx context.Context, changed func()) error {
	w.begun++
	for {
		select {
		case err := <-w.events:
			if err != nil {
				return err
			}
			changed()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func newWatching() (*bench, *watching) {
	m := memory.New(nil)
	w := &watching{Backend: m, events: make(chan error, 8)}
	return &bench{m, dataplane.New(w, nil)}, w
}

func TestRunAppliesAgainWhatTheBackendSawChange(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b, w := newWatching()
		r := runOn(t, b, dataplane.RunOptions{MinInterval: 2 * time.Second})
		w.events <- nil
		r.at(time.Second)
		require.Empty(t, r.applies, "there is nothing to apply yet")
		r.set(services(2))
		r.at(10 * time.Second)
		require.Equal(t, seconds(1), r.applies)

		r.Kernel().Flush()
		w.events <- nil
		r.at(11 * time.Second)
		require.Equal(t, seconds(1, 10), r.applies)
		requireHolds(t, r.Kernel(), services(2))

		for range 5 {
			w.events <- nil
		}
		r.at(20 * time.Second)
		require.Equal(t, seconds(1, 10, 12), r.applies,
			"many changes are one apply, and the interval is kept")
	})
}

func TestRunWatchesAgainAfterAFailure(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b, w := newWatching()
		r := runOn(t, b, dataplane.RunOptions{RetryMax: 5 * time.Second})
		r.set(services(1))
		r.at(time.Second)
		lost := errors.New("the socket overflowed")
		w.events <- lost
		r.at(10 * time.Second)
		r.stop()
		require.Equal(t, seconds(0, 1, 6), r.applies, "what happened meanwhile is not known")
		require.ErrorIs(t, r.errs[1], lost)
		require.Nil(t, r.results[1])
		require.NoError(t, r.errs[2])
		require.Equal(t, 2, w.begun)
	})
}
