package ipvs

import (
	"context"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// membarrierGlobal is MEMBARRIER_CMD_GLOBAL (include/uapi/linux/membarrier.h).
	membarrierGlobal = 1
	// graceWithout is waited where membarrier may not be called, as under seccomp.
	graceWithout = 20 * time.Millisecond
)

// awaitPackets waits until no packet is under way that has passed the chains of nf_tables before.
// The kernel leads a packet through all hooks in one RCU read-side section, and membarrier(2) waits
// for all of these to end (synchronize_rcu in kernel/sched/membarrier.c, since Linux 4.3).
func awaitPackets(ctx context.Context) error {
	if _, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, membarrierGlobal, 0, 0); errno == 0 {
		return nil
	}
	return pause(ctx, graceWithout)
}
