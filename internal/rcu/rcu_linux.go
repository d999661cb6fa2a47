// Package rcu waits until packets that were under way are through.
package rcu

import (
	"context"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/internal/sleep"
)

// membarrierGlobal is MEMBARRIER_CMD_GLOBAL (include/uapi/linux/membarrier.h).
const membarrierGlobal = 1

// Wait waits until every packet that was under way is through: a packet goes through the chains of
// a hook, and from the rules that translate it to the table of conntrack, in one RCU read-side
// section, and membarrier(2) waits for all of these to end (synchronize_rcu in
// kernel/sched/membarrier.c, since Linux 4.3), some 10 ms. Where it may not be called (seccomp) or
// cannot wait (nohz_full), some time has to do. Packets that somebody queues to user space in
// between are not waited for. The error is the context's.
func Wait(ctx context.Context) error {
	if _, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, membarrierGlobal, 0, 0); errno == 0 {
		return context.Cause(ctx)
	}
	return sleep.For(ctx, 20*time.Millisecond)
}
