package conntrack

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/kernlb/kernlb/internal/logkey"
	"github.com/kernlb/kernlb/internal/wait"
)

const (
	// emptyWalk is the number of flows that the kernel copies in the time of a walk over an empty
	// table of 262,144 buckets. walkShare is the number of flows that it walks over in the time of
	// copying one flow.
	emptyWalk = 4000
	walkShare = 5
	// narrowFlows is the size of a table that the kernel can walk in one go without a noticeable
	// delay.
	narrowFlows = 100_000
	// smallTable is the largest size at which one request for the whole table is cheaper than a
	// request for each protocol and family.
	smallTable = 20_000
	// cleanAttempts limits the passes over a table if the kernel rebuilds it during every pass.
	cleanAttempts = 3
)

// scan selects the precision of the requests that search the kernel for stale flows. Every
// scan finds the same flows.
//
// The narrower the request, the less the kernel copies. But the kernel answers in buffers of some
// hundred flows. Until a buffer is full, the kernel walks on with preemption and softirqs off
// (ctnetlink_dump_table, up to Linux 6.18 at least), and this CPU receives no packets. A walk takes
// 0.1 to 0.4 µs for each flow on the machine, in all namespaces.
type scan uint8

// The requests.
const (
	scanAuto scan = iota // the choice of chooseScan
	// scanNarrow requests ports and IPv4 addresses. It is the fastest scan, and occupies a CPU for
	// the whole walk.
	scanNarrow
	// scanProtocol requests protocols. It occupies a CPU for a long time only if flows of these
	// protocols are rare.
	scanProtocol
	// scanAll requests everything. It is the slowest scan, and occupies a CPU for at most some
	// milliseconds.
	scanAll
)

// CleanOptions are options of a cleanup. The zero value suits most programs.
type CleanOptions struct {
	// KeepOpen deletes TCP connections without resetting them: the peers notice when they send.
	// Without it, Clean also needs CAP_NET_RAW, see [Table.Clean].
	KeepOpen bool
	// Stale, if not nil, is called with each stale flow before it is deleted. The flow may already
	// have ended when it is to be deleted. Stale must not keep a reference to the flow.
	Stale func(*Flow)

	scan scan // tests choose one
}

// CleanResult counts the flows that a cleanup found and deleted.
type CleanResult struct {
	Dumps        int // dumps of the table: none if no flow could be stale
	Seen         int // flows in the kernel's answers
	Misdirected  int // stale flows to endpoints that may no longer have them
	Untranslated int // stale flows that are untranslated, or [Frontend.Backwards]
	Deleted      int // flows deleted, including connections that were reset
	Missing      int // flows that had ended or changed before they could be deleted
	Reset        int // TCP connections that will be reset, because their clients were made to send
	Duration     time.Duration
}

// Clean deletes exactly the flows that the matcher considers stale, in one pass over the table. If
// no flow can be stale, it makes no pass. Call it after the change is in the kernel: before that, a
// client that keeps sending would get its flow back. Clean first waits some 10 ms until no packet
// that saw the former rules is in flight, because such a packet could create its flow after the
// pass.
//
// If a client creates a flow again while Clean works, now with a valid endpoint, Clean does not
// delete it, see [Table.Delete].
//
// Clean cuts open TCP connections among the stale flows, so that both peers notice at once: it
// makes them send, and for 30 seconds the node answers their packets with resets. Healthy
// connections are safe: a peer is reset only if no flow has its tuple. This works with every
// backend, whatever the service does with packets after the change, and needs no rule. The node's
// firewall must accept packets of established connections, and must let resets out.
//
// Some connections are not reset: connections whose packets are offloaded to hardware or bypass
// conntrack, connections whose peers reach each other without this node once the flow is deleted
// (direct server return), and connections to a peer to which the node has no route. Clean needs
// CAP_NET_RAW to make the peers send. Without it, Clean returns [kernelerr.ErrNoPermission] after
// it has deleted the flows: peers that send within 30 seconds are still reset.
//
// Running Clean twice is harmless. After an error, the flows that it did not reach are still there.
// Two changes must not overlap: flows that are stale for the first change may be valid again after
// the second.
func (t *Table) Clean(ctx context.Context, m *Matcher, opts CleanOptions) (CleanResult, error) {
	start := time.Now()
	if m == nil {
		return CleanResult{}, fmt.Errorf("clean up stale flows: %w: no matcher", ErrBadChange)
	}
	c := cleaning{table: t, matcher: m, opts: opts}
	c.cutting = newCutting(t, &c.result)
	defer c.cutting.close()
	err := errors.Join(c.run(ctx), c.cutting.unreached)
	c.result.Duration = time.Since(start)
	if t.log != nil {
		t.log.LogAttrs(ctx, slog.LevelDebug, "conntrack cleaned", slog.Any(logkey.Result, c.result),
			slog.Any(logkey.Error, err))
	}

	if err != nil {
		return c.result, fmt.Errorf("clean up stale flows: %w", explain(err))
	}
	return c.result, nil
}

// cleaning is a Clean in progress.
type cleaning struct {
	table   *Table
	matcher *Matcher
	opts    CleanOptions
	result  CleanResult
	stale   []Flow // to delete
	open    []Flow // to cut
	cutting *cutting
}

func (c *cleaning) run(ctx context.Context) error {
	if c.matcher.empty() {
		return nil
	}
	if _, err := wait.PacketsOf(ctx).Wait(ctx); err != nil {
		return err
	}
	how := c.opts.scan
	if how == scanAuto {
		usage, err := c.table.usage(ctx)
		if err != nil {
			return err
		}
		how = chooseScan(int(usage.Count), len(c.matcher.dumps(scanNarrow)))
	}

	requests := c.matcher.dumps(how)
	wants := func(f *Flow) bool {
		c.result.Seen++
		return c.matcher.mayBeStale(f)
	}

	for attempt := 1; ; attempt++ {
		c.result.Dumps += len(requests)
		err := c.table.scan(ctx, requests, wants, func(f *Flow) error { return c.take(ctx, f) })
		err = errors.Join(err, c.flush(ctx))
		if !errors.Is(explain(err), ErrInterrupted) || attempt == cleanAttempts {
			return err
		}
	}
}

// chooseScan chooses the scan for a table with this number of flows. narrow is the number of
// requests that scanNarrow would need. In a narrow scan, each port is a separate walk.
func chooseScan(flows, narrow int) scan {
	switch {
	case flows <= narrowFlows && narrow*(emptyWalk+flows/walkShare) <= emptyWalk+flows:
		return scanNarrow
	case flows <= smallTable:
		return scanAll
	}

	return scanProtocol
}

// take adds a stale flow to one of the lists. It flushes full lists.
func (c *cleaning) take(ctx context.Context, f *Flow) error {
	if isTombstone(f) {
		return nil // a tombstone is still needed, and expires
	}
	switch c.matcher.classify(f) {
	case misdirected:
		c.result.Misdirected++
	case untranslated, backwards:
		c.result.Untranslated++
	default:
		return nil
	}

	if c.opts.Stale != nil {
		c.opts.Stale(f)
	}
	if f.Protocol == TCP && f.TCP.Open() && !c.opts.KeepOpen {
		c.open = append(c.open, *f)
	} else {
		c.stale = append(c.stale, *f)
	}

	if len(c.open)+len(c.stale) < batchFlows {
		return nil
	}
	return c.flush(ctx)
}

// flush deletes the flows on the lists.
func (c *cleaning) flush(ctx context.Context) error {
	stale, open := c.stale, c.open
	c.stale, c.open = c.stale[:0], c.open[:0]
	if len(stale) > 0 {
		deleted, err := c.table.Delete(ctx, All(stale...))
		if err != nil {
			return err
		}
		c.result.Deleted += deleted
		c.result.Missing += len(stale) - deleted
	}

	if len(open) > 0 {
		return c.cutting.cut(ctx, open)
	}
	return nil
}
