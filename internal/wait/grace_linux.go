package wait

import (
	"context"

	"golang.org/x/sys/unix"
)

// membarrierGlobal is MEMBARRIER_CMD_GLOBAL (include/uapi/linux/membarrier.h).
const membarrierGlobal = 1

// GracePeriod waits until the kernel is done with every packet that it was working on. A packet
// passes the chains of a hook, and the step from a translating rule to the table of conntrack, in
// one RCU read-side section. membarrier(2) waits for all of these sections to end (synchronize_rcu
// in kernel/sched/membarrier.c, since Linux 4.3), which takes some 10 ms. If seccomp forbids the
// call or nohz_full makes it fail, GracePeriod sleeps instead. It does not wait for packets that
// are queued to user space in between. The error is the context's.
func GracePeriod(ctx context.Context) error {
	if _, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, membarrierGlobal, 0, 0); errno == 0 {
		return Ended(ctx)
	}
	return For(ctx, Grace)
}
