package nftables

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/internal/wait"
)

// Settle forgets the clients of endpoints that earlier commits removed. After it has returned 0, no
// new connection reaches such an endpoint, and no packet can write such a client again. It costs
// nothing if no frontend with affinity lost an endpoint. It also finishes a sweep that a stopped
// process had begun.
//
// Settle deletes the entries to forget until none is left. A deleted entry can come back: a packet
// may follow the entry before its deletion, and write it again after the deletion. A packet
// traverses the rules in one RCU read-side section, so Settle waits for a grace period before each
// reading of all maps. New entries for a removed endpoint come only from existing entries. So the
// sweep of a commit ends when a reading finds none of its entries, and all packets in flight began
// after the commit and after the last deletion. One reading serves all commits before it.
func (b *backend) Settle(ctx context.Context) (time.Duration, error) {
	if !b.observed || !b.pl.Version.Unswept {
		return 0, nil
	}
	left, err := b.sweepTables(ctx)

	// Another writer removed the maps. If that writer's tables need a sweep, they have their own
	// mark.
	if errors.Is(err, unix.ENOENT) {
		b.observed = false
		return 0, nil
	}

	if err != nil {
		b.sweep.Tries = 0
		return 0, b.failed("forget clients", err)
	}

	switch p := wait.PacketsOf(ctx); {
	case left && p.More:
		return wait.Pause, nil
	case left:
		return wait.Grace, nil
	}

	if err := b.swept(ctx); err != nil {
		return 0, b.failed("note that clients were forgotten", err)
	}
	return 0, nil
}
