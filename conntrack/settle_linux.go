package conntrack

import (
	"context"
	"time"

	"golang.org/x/sys/unix"
)

// membarrierGlobal is MEMBARRIER_CMD_GLOBAL (include/uapi/linux/membarrier.h).
const membarrierGlobal = 1

// settle waits until every packet that was under way is through: a packet goes from the rules that translate
// it to the table in one RCU read-side section, and membarrier(2) waits for all of these to end
// (synchronize_rcu in kernel/sched/membarrier.c, since Linux 4.3). Where it may not be called (seccomp) or
// cannot wait (nohz_full), some time has to do.
func settle(ctx context.Context) error {
	if _, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, membarrierGlobal, 0, 0); errno == 0 {
		return ctx.Err()
	}
	t := time.NewTimer(20 * time.Millisecond)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
