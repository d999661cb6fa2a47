package conntrack

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/kernlb/kernlb/internal/logkey"
	"github.com/kernlb/kernlb/internal/rcu"
)

const (
	// emptyWalk is how many flows the kernel copies in the time it takes to walk over an empty
	// table of 262,144 buckets, and walkShare how many it walks over in the time it takes to copy
	// one.
	emptyWalk = 4000
	walkShare = 5
	// narrowFlows is the size of a table that can be walked over in one go without anybody
	// noticing.
	narrowFlows = 100_000
	// smallTable is the size of a table that is best asked for as a whole, rather than once for
	// each protocol and family.
	smallTable = 20_000
	// cleanAttempts bounds the passes over a table that is rebuilt meanwhile.
	cleanAttempts = 3
)

// Scan says what the kernel is asked for when stale flows are looked for. The flows found are the
// same.
//
// The narrower the question, the less the kernel copies. But it answers in parts of some hundred
// flows, and until it has found so many it walks on with preemption and softirqs off
// (ctnetlink_dump_table, up to Linux 6.18 at least): this CPU receives no packets meanwhile. A walk
// takes 0.1 to 0.4 µs for each flow on the machine, in all namespaces.
type Scan uint8

// The questions.
const (
	// ScanAuto is ScanNarrow for up to 100,000 flows in the table where that is less work: each
	// port is a walk of its own. Otherwise it is ScanAll for up to 20,000 flows, and ScanProtocol
	// for more.
	ScanAuto Scan = iota
	// ScanNarrow asks for ports, and addresses of IPv4. It is the fastest, and keeps a CPU busy for
	// the whole walk.
	ScanNarrow
	// ScanProtocol asks for protocols. It keeps a CPU busy for long only where their flows are
	// rare.
	ScanProtocol
	// ScanAll asks for everything. It is the slowest, and keeps a CPU busy for no more than some
	// milliseconds.
	ScanAll
)

// CleanOptions say how to clean. The zero value is what most programs want.
type CleanOptions struct {
	// Scan is what the kernel is asked for in a pass over the table.
	Scan Scan
	// Index, if not nil, finds stale flows without a pass, as far as it knows the flows. The
	// outcome is the same.
	Index Index
	// KeepOpen makes TCP connections be deleted without being reset: their ends find out when they
	// send.
	KeepOpen bool
}

// Index knows where flows go, so that [Table.Clean] need not pass over the table to find those that
// are stale. Package mirror has one.
type Index interface {
	// Find calls each with the flows that m may find stale, as the kernel has them now. It finds
	// all that were there when it was called, of the protocols that it returns; Clean looks for
	// those of others in a pass, also after Find has found some of them. An error of each ends it
	// and is returned.
	Find(ctx context.Context, m *Matcher, each func(*Flow) error) (Found, error)
}

// Found says what an [Index] found.
type Found struct {
	Protocols []Protocol // those of which all flows were found that can be stale
	Lookups   int        // flows that the kernel was asked for, one by one
}

// CleanResult says what a cleaning found and did.
type CleanResult struct {
	Dumps        int // dumps of the table: none if no flow could be stale
	Seen         int // flows the kernel sent
	Lookups      int // flows that an [Index] asked the kernel for, one by one
	Misdirected  int // stale flows of each kind
	Untranslated int // those that were backwards among them
	Deleted      int // flows deleted, connections reset among them
	Missing      int // flows that had ended or changed before they could be deleted
	Reset        int // TCP connections whose ends were reset, see [Table.Cut]
	Duration     time.Duration
}

// Clean deletes the flows that the matcher finds stale, and no others, in one pass over the table;
// none if there can be none. Open TCP connections among them are cut, see [Table.Cut]. Call it
// after the change is in the kernel: before, a client that sends on would get its flow again. It
// begins by waiting some 10 ms, until no packet is under way that saw the rules of before: its flow
// might be put into the table behind the back of a pass that had begun.
//
// A flow that was made again with a valid endpoint while Clean was at it is left alone, see
// [Table.Delete]. Where the table is large and the program runs for long, a [CleanOptions.Index]
// makes it faster.
//
// Running Clean twice does no harm; an error leaves what it had not reached. Two changes must not
// overlap: the second may make valid again what the first takes for stale.
func (t *Table) Clean(ctx context.Context, m *Matcher, opts CleanOptions) (CleanResult, error) {
	start := time.Now()
	c := cleaning{table: t, matcher: m, opts: opts}
	err := c.run(ctx)
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
	stale   []Flow // to be deleted
	open    []Flow // to be cut
}

func (c *cleaning) run(ctx context.Context) error {
	if c.matcher.Empty() {
		return nil
	}
	if err := rcu.Wait(ctx); err != nil {
		return err
	}
	done, err := c.find(ctx)
	if err != nil {
		return err
	}
	return c.pass(ctx, done)
}

// find cleans with the help of the index. It returns the protocols that are done.
func (c *cleaning) find(ctx context.Context) ([]Protocol, error) {
	if c.opts.Index == nil {
		return nil, nil
	}
	found, err := c.opts.Index.Find(ctx, c.matcher, func(f *Flow) error { return c.take(ctx, f) })
	c.result.Lookups += found.Lookups
	return found.Protocols, errors.Join(err, c.flush(ctx))
}

// pass cleans in one pass over the table, apart from the protocols that are done.
func (c *cleaning) pass(ctx context.Context, done []Protocol) error {
	requests, err := c.requests(ctx, done)
	if err != nil || len(requests) == 0 {
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
func (c *cleaning) requests(ctx context.Context, done []Protocol) ([]dumpRequest, error) {
	scan := c.opts.Scan
	narrow := c.matcher.dumps(ScanNarrow, done...)
	if scan == ScanAuto && len(narrow) > 0 {
		usage, err := c.table.usage(ctx)
		if err != nil {
			return nil, err
		}
		scan = chooseScan(int(usage.Count), len(narrow))
	}
	return c.matcher.dumps(scan, done...), nil
}

// chooseScan chooses the question for a table with so many flows, of which the narrow question has
// so many parts.
func chooseScan(flows, narrow int) Scan {
	switch {
	case flows <= narrowFlows && narrow*(emptyWalk+flows/walkShare) <= emptyWalk+flows:
		return ScanNarrow
	case flows <= smallTable:
		return ScanAll
	}
	return ScanProtocol
}

func (c *cleaning) wants(f *Flow) bool {
	c.result.Seen++
	return c.matcher.mayBeStale(f)
}

// take puts the flow on one of the lists if it is stale.
func (c *cleaning) take(ctx context.Context, f *Flow) error {
	if isTombstone(f) {
		return nil // it is of use, and goes by itself
	}
	switch c.matcher.Classify(f) {
	case Misdirected:
		c.result.Misdirected++
	case Untranslated, Backwards:
		c.result.Untranslated++
	default:
		return nil
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

// flush deletes what is on the lists.
func (c *cleaning) flush(ctx context.Context) error {
	stale, open := c.stale, c.open
	c.stale, c.open = c.stale[:0], c.open[:0]
	if len(stale) > 0 {
		d, err := c.table.Delete(ctx, All(stale...))
		c.result.Deleted += d.Deleted
		c.result.Missing += d.Missing
		if err != nil {
			return err
		}
	}
	if len(open) > 0 {
		cut, err := c.table.Cut(ctx, All(open...))
		c.result.Deleted += cut.Deleted
		c.result.Missing += cut.Missing
		c.result.Reset += cut.Reset
		return err
	}
	return nil
}
