package threadns

import (
	"context"
	"errors"
	"os/exec"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/internal/test/must"
)

// Not parallel: the test uses the network namespace of the test process, which has one lock.
func TestOneHasItsTurnAtATime(t *testing.T) {
	ns := must.OK(Open(""))(t)
	defer ns.Close()
	a := must.OK(OpenTurn(""))(t)
	b := must.OK(OpenTurn(ns.NetNS()))(t)
	defer b.Close()

	release := must.OK(take(t.Context(), a, time.Minute))(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err := take(ctx, b, time.Minute)
	require.ErrorIs(t, err, context.DeadlineExceeded)

	var free time.Time
	released := make(chan struct{})
	go func(release func()) {
		time.Sleep(20 * time.Millisecond)
		free = time.Now()
		release()
		close(released)
	}(release)

	release = must.OK(take(t.Context(), b, time.Minute))(t)
	now := time.Now()
	<-released
	require.True(t, free.Before(now))
	require.ErrorIs(t, unix.Flock(int(ns.file.Fd()), unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK)
	release()

	must.OK(take(t.Context(), a, 0))(t)
	require.NoError(t, a.Close(), "who closes gives it back")
	release = must.OK(take(t.Context(), b, time.Minute))(t)
	release()
}

func TestNobodyWaitsForeverForItsTurn(t *testing.T) {
	a := must.OK(OpenTurn(""))(t)
	defer a.Close()
	b := must.OK(OpenTurn(""))(t)
	defer b.Close()
	release := must.OK(take(t.Context(), a, 0))(t)

	without := must.OK(take(t.Context(), b, 5*time.Millisecond))(t)
	without()
	require.ErrorIs(t, unix.Flock(int(b.file.Fd()), unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK,
		"a has it still")
	require.True(t, b.stuck)
	start := time.Now()
	must.OK(take(t.Context(), b, time.Minute))(t)
	require.Less(t, time.Since(start), 10*time.Second, "whoever waited in vain does not wait again")

	release()
	release = must.OK(take(t.Context(), b, time.Minute))(t)
	require.False(t, b.stuck)
	release()
}

// A process that takes the lock again at once lets waiting processes go first.
func TestWhoComesAgainAtOnceLetsOthersGoFirst(t *testing.T) {
	busy := must.OK(OpenTurn(""))(t)
	defer busy.Close()
	seldom := must.OK(OpenTurn(""))(t)
	defer seldom.Close()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	var turns atomic.Int32 // of the busy one
	go func() {
		for ; ctx.Err() == nil; turns.Add(1) {
			if release, err := take(ctx, busy, time.Minute); err == nil {
				time.Sleep(time.Millisecond)
				release()
			}
		}

		close(ended)
	}()

	passed := make([]int, 51) // turns of the busy one while the other waited
	for i := range passed {
		before := turns.Load()
		release := must.OK(take(t.Context(), seldom, time.Minute))(t)
		passed[i] = int(turns.Load() - before)
		release()
		time.Sleep(100 * time.Microsecond)
	}

	cancel()
	<-ended
	slices.Sort(passed)
	require.Less(t, passed[len(passed)/2], 20, passed)
}

// If the lock cannot be taken at all, or the Turn is closed, Lock returns an error at once.
func TestAClosedTurnIsNotWaitedFor(t *testing.T) {
	for name, breakIt := range map[string]func(*Turn) error{
		"closed":   (*Turn).Close,
		"no locks": func(turn *Turn) error { return unix.Dup3(pathOnly(t), turn.fd(), 0) },
	} {
		t.Run(name, func(t *testing.T) {
			turn := must.OK(OpenTurn(""))(t)
			require.NoError(t, breakIt(turn))
			start := time.Now()
			_, err := take(t.Context(), turn, time.Minute)
			require.Less(t, time.Since(start), 10*time.Second)
			require.ErrorIs(t, err, kernelerr.ErrClosed)
			require.NoError(t, errors.Join(turn.Close(), turn.Close()))
		})
	}
}

// pathOnly is a descriptor on which the kernel allows no lock (O_PATH, EBADF).
func pathOnly(t *testing.T) int {
	t.Helper()
	fd := must.OK(unix.Open(threadNetNS, unix.O_PATH|unix.O_CLOEXEC, 0))(t)
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// TestStrangersAreNotWaitedFor lets a user without privileges hold the lock, and then root.
func TestStrangersAreNotWaitedFor(t *testing.T) {
	for _, tt := range []struct {
		user     uint32
		patience time.Duration
		least    time.Duration
	}{
		{65534, 2 * time.Minute, strangePatience},
		{0, 3 * time.Second, 3 * time.Second},
	} {
		holder := exec.Command("flock", "-x", "/proc/self/ns/net", "sh", "-c",
			"echo held; exec cat")
		holder.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: tt.user,
			Gid: tt.user}}
		in := must.OK(holder.StdinPipe())(t)
		out := must.OK(holder.StdoutPipe())(t)
		if err := holder.Start(); errors.Is(err, exec.ErrNotFound) || errors.Is(err, unix.EPERM) {
			t.Skipf("no process of another user: %v", err)
		} else {
			require.NoError(t, err)
		}

		must.OK(out.Read(make([]byte, 16)))(t)

		turn := must.OK(OpenTurn(""))(t)
		start := time.Now()
		_, err := take(t.Context(), turn, tt.patience)
		waited := time.Since(start)
		require.NoError(t, in.Close())
		require.NoError(t, holder.Wait())
		require.NoError(t, err)
		require.NoError(t, turn.Close())
		require.GreaterOrEqual(t, waited, tt.least, "the holder is of user %d", tt.user)
		require.Less(t, waited, time.Minute, "the holder is of user %d", tt.user)
	}
}

// TestAQueueIsWaitedForToItsEnd lets eight processes hold the lock one after the other, each for
// less than the patience.
func TestAQueueIsWaitedForToItsEnd(t *testing.T) {
	const each, count = 800 * time.Millisecond, 8
	var holders []*exec.Cmd
	for range count {
		holder := exec.Command("flock", "-x", "/proc/self/ns/net", "sleep", "0.8")
		if err := holder.Start(); errors.Is(err, exec.ErrNotFound) {
			t.Skip(err)
		} else {
			require.NoError(t, err)
		}

		holders = append(holders, holder)
	}

	turn := must.OK(OpenTurn(""))(t)
	defer turn.Close()
	time.Sleep(each / 4) // the first has it
	start := time.Now()
	release := must.OK(take(t.Context(), turn, 5*each))(t)
	release()
	require.False(t, turn.stuck, "after %v", time.Since(start))
	for _, holder := range holders {
		require.NoError(t, holder.Wait())
	}
}

// take locks a Turn with this patience for the same other process.
func take(ctx context.Context, turn *Turn, patience time.Duration) (release func(), err error) {
	turn.patience = patience
	return turn.Lock(ctx)
}
