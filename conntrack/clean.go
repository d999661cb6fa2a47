package conntrack

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"
)

const (
	// narrowDumps is how many dumps that the kernel filters by port take less than one that it filters by protocol: a walk
	// over the table without copying is about a fifth of the whole.
	narrowDumps = 4
	// narrowFlows is the default of [CleanOptions.NarrowFlows].
	narrowFlows = 100_000
	// cleanAttempts bounds the passes over a table that is rebuilt meanwhile.
	cleanAttempts = 3
)

// CleanOptions say how to clean. The zero value is what most programs want.
type CleanOptions struct {
	// NarrowFlows is the number of flows in the table up to which the kernel is asked for ports and addresses; above, it is
	// asked for the protocols only. 0 means 100,000; negative means never.
	//
	// A narrow question is answered about six times faster than the table can be copied, but until it has found a hundred flows the kernel
	// walks on with preemption and softirqs off (ctnetlink_dump_table, up to Linux 6.18 at least): this CPU receives no packets
	// meanwhile. A walk takes 0.1 to 0.4 µs for each flow on the machine, of all namespaces.
	NarrowFlows int
	// KeepOpen makes TCP connections be deleted without being reset: their ends find out when they send.
	KeepOpen bool
}

// Cleaned says what a cleaning found and did.
type Cleaned struct {
	Dumps        int // dumps of the table: none if no flow could be stale
	Seen         int // flows the kernel sent
	Misdirected  int // stale flows of each kind
	Untranslated int
	Deleted      int // flows deleted, connections reset among them
	Gone         int // flows that had ended or changed before they could be deleted
	Reset        int // TCP connections whose ends were told, see [Table.Cut]
	Duration     time.Duration
}

// Clean deletes the flows that the matcher finds stale, and no others, in one pass over the table; none if there can be none. Open TCP
// connections among them are cut, see [Table.Cut]. Call it after the change is in the kernel: before, a client that sends on
// would get its flow again.
//
// A flow that was made again with a valid endpoint while Clean was at it is left alone, see [Table.Delete]. Running Clean twice does no harm; an
// error leaves what it had not reached. Two changes must not overlap: the second may make valid again what the first takes for
// stale.
func (t *Table) Clean(ctx context.Context, m *Matcher, opts CleanOptions) (Cleaned, error) {
	start := time.Now()
	c := cleaning{table: t, matcher: m, opts: opts}
	err := c.run(ctx)
	c.result.Duration = time.Since(start)
	if t.log != nil {
		t.log.LogAttrs(ctx, slog.LevelDebug, "conntrack cleaned", slog.Any("result", c.result), slog.Any("error", err))
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
	result  Cleaned
	silent  []Flow // to be deleted
	open    []Flow // to be cut
}

func (c *cleaning) run(ctx context.Context) error {
	if c.matcher.Empty() {
		return nil
	}
	requests, err := c.requests(ctx)
	if err != nil {
		return err
	}
	for attempt := 1; ; attempt++ {
		c.result.Dumps += len(requests)
		err := c.table.scan(ctx, requests, c.wants, func(f *Flow) error { return c.take(ctx, f) })
		err = errors.Join(err, c.flush(ctx))
		if !errors.Is(explain(err), ErrInterrupted) || attempt == cleanAttempts {
			return err
		}
	}
}

// requests chooses what to ask the kernel for.
func (c *cleaning) requests(ctx context.Context) ([]dumpRequest, error) {
	limit := c.opts.NarrowFlows
	if limit == 0 {
		limit = narrowFlows
	}
	usage, err := c.table.usage(ctx)
	if err != nil {
		return nil, err
	}
	if int64(usage.Count) > int64(limit) {
		return c.matcher.dumps(0), nil
	}
	return c.matcher.dumps(narrowDumps), nil
}

func (c *cleaning) wants(f *Flow) bool {
	c.result.Seen++
	return c.matcher.claim(f) != nil
}

// take puts the flow on one of the lists if it is stale.
func (c *cleaning) take(ctx context.Context, f *Flow) error {
	switch c.matcher.Judge(f) {
	case Misdirected:
		c.result.Misdirected++
	case Untranslated:
		c.result.Untranslated++
	default:
		return nil
	}
	if f.Protocol == TCP && f.TCP.Open() && !c.opts.KeepOpen {
		c.open = append(c.open, *f)
	} else {
		c.silent = append(c.silent, *f)
	}
	if len(c.open)+len(c.silent) < batchFlows {
		return nil
	}
	return c.flush(ctx)
}

// flush deletes what is on the lists.
func (c *cleaning) flush(ctx context.Context) error {
	silent, open := c.silent, c.open
	c.silent, c.open = c.silent[:0], c.open[:0]
	if len(silent) > 0 {
		d, err := c.table.Delete(ctx, All(silent...))
		c.result.Deleted += d.Deleted
		c.result.Gone += d.Gone
		if err != nil {
			return err
		}
	}
	if len(open) > 0 {
		cut, err := c.table.Cut(ctx, All(open...))
		c.result.Deleted += cut.Deleted
		c.result.Gone += cut.Gone
		c.result.Reset += cut.Reset
		return err
	}
	return nil
}
