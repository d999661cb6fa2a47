package leastconn

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// costOf calls f, and returns the CPU time that it took, also in the kernel. CPU time of other
// programs does not count.
func costOf(f func() error) (time.Duration, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := threadTime()
	err := f()
	return threadTime() - before, err
}

// threadTime returns the CPU time of the calling thread so far.
func threadTime() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) // it cannot fail
	return time.Duration(t.Nano())
}
