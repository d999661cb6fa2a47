package threadns

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Not parallel: the namespace is that of the tests, and there is one lock on it.
func TestOneHasItsTurnAtATime(t *testing.T) {
	ns, err := Open(0)
	require.NoError(t, err)
	defer ns.Close()
	a, err := OpenTurn(0)
	require.NoError(t, err)
	b, err := OpenTurn(ns.FD())
	require.NoError(t, err)
	defer b.Close()

	release, err := a.Take(t.Context(), time.Minute)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err = b.Take(ctx, time.Minute)
	require.ErrorIs(t, err, context.DeadlineExceeded)

	var free time.Time
	released := make(chan struct{})
	go func(release func()) {
		time.Sleep(20 * time.Millisecond)
		free = time.Now()
		release()
		close(released)
	}(release)
	release, err = b.Take(t.Context(), time.Minute)
	require.NoError(t, err)
	now := time.Now()
	<-released
	require.True(t, free.Before(now))
	require.ErrorIs(t, unix.Flock(ns.FD(), unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK)
	release()

	_, err = a.Take(t.Context(), 0)
	require.NoError(t, err)
	require.NoError(t, a.Close(), "who closes gives it back")
	release, err = b.Take(t.Context(), time.Minute)
	require.NoError(t, err)
	release()
}

func TestNobodyWaitsForeverForItsTurn(t *testing.T) {
	a, err := OpenTurn(0)
	require.NoError(t, err)
	defer a.Close()
	b, err := OpenTurn(0)
	require.NoError(t, err)
	defer b.Close()
	release, err := a.Take(t.Context(), 0)
	require.NoError(t, err)

	without, err := b.Take(t.Context(), 5*time.Millisecond)
	require.NoError(t, err)
	without()
	require.ErrorIs(t, unix.Flock(int(b.file.Fd()), unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK,
		"a has it still")
	require.True(t, b.stuck)
	start := time.Now()
	_, err = b.Take(t.Context(), time.Minute)
	require.NoError(t, err)
	require.Less(t, time.Since(start), 10*time.Second, "whoever waited in vain does not wait again")

	release()
	release, err = b.Take(t.Context(), time.Minute)
	require.NoError(t, err)
	require.False(t, b.stuck)
	release()
}

// Who takes the lock again as soon as it is given back lets those who wait go first.
func TestWhoComesAgainAtOnceLetsOthersGoFirst(t *testing.T) {
	busy, err := OpenTurn(0)
	require.NoError(t, err)
	defer busy.Close()
	seldom, err := OpenTurn(0)
	require.NoError(t, err)
	defer seldom.Close()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan int)
	go func() {
		turns := 0
		for ; ctx.Err() == nil; turns++ {
			if release, err := busy.Take(ctx, time.Minute); err == nil {
				time.Sleep(time.Millisecond)
				release()
			}
		}
		ended <- turns
	}()
	const turns = 50
	for range turns {
		release, err := seldom.Take(t.Context(), time.Minute)
		require.NoError(t, err)
		release()
		time.Sleep(100 * time.Microsecond)
	}
	cancel()
	require.Less(t, <-ended, 20*turns, "turns of the other meanwhile")
}
