package nftables

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/internal/wait"
)

// Settle forgets the clients of endpoints that earlier commits removed. After it has returned 0, no
// new connection reaches such an endpoint, and no connection can bring it back. It costs nothing if
// no frontend with affinity lost an endpoint. It also ends a sweep that a stopped process had
// begun.
//
// Settle deletes the entries that must go until there are none. An entry can come back: a packet
// that followed the entry before its deletion is learnt after it. A packet goes through the rules
// in one RCU read-side section, so Settle waits for a grace period before each reading of all maps.
// Only existing entries lead to new ones. So the sweep of a commit ends when a reading finds none
// of its entries, and no packet was under way that began before the commit and the last deletion.
// One reading serves all commits before it.
func (b *backend) Settle(ctx context.Context) (time.Duration, error) {
	if !b.observed || !b.pl.Version.Unswept {
		return 0, nil
	}
	left, err := b.sweepTables(ctx)

	// Another writer removed the maps. If its tables need a sweep, they have a mark of their own.
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
