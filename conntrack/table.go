package conntrack

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"syscall"

	"github.com/kernlb/kernlb/dataplane/netns"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/threadns"
)

// Config says which network namespace's table to use. A nil *Config is the zero Config.
type Config struct {
	// NetNS names the network namespace of the table.
	NetNS netns.Namespace
	// Logger gets a debug record for each request. Nil disables logging.
	Logger *slog.Logger
}

// Table is the conntrack table of one network namespace. Its methods are safe for concurrent use.
type Table struct {
	ns   *threadns.NS
	conn *rawnl.Conn // for requests; each dump opens its own connection
	log  *slog.Logger
	wrap func(rawnl.Socket) rawnl.Socket // tests wrap sockets with it; may be nil
}

// Open opens the conntrack table of a network namespace. Reading and changing the table needs
// CAP_NET_ADMIN in the user namespace that owns it.
func Open(cfg *Config) (*Table, error) {
	cfg = cmp.Or(cfg, &Config{})
	ns, err := threadns.Open(cfg.NetNS)
	if err != nil {
		return nil, fmt.Errorf("open the conntrack table: %w", explain(err))
	}
	t := &Table{ns: ns, log: cfg.Logger}
	if t.conn, err = t.dial(); err != nil {
		return nil, errors.Join(fmt.Errorf("open the conntrack table: %w", explain(err)),
			ns.Close())
	}

	return t, nil
}

// Close closes the table. Iterations in progress run to their end.
func (t *Table) Close() error { return errors.Join(t.conn.Close(), t.ns.Close()) }

// Do runs fn on a thread in the network namespace of the table. Sockets that fn opens belong to
// this namespace, and so do the files below /proc/sys/net (net_ctl_header_lookup in
// net/sysctl_net.c).
func (t *Table) Do(fn func() error) error { return t.ns.Do(fn) }

// dial opens a connection in the table's namespace.
func (t *Table) dial() (conn *rawnl.Conn, err error) {
	err = t.ns.Do(func() (err error) {
		conn, err = rawnl.Dial(&rawnl.Config{Logger: t.log, Wrap: t.wrap})
		return err
	})
	return conn, err
}

// errStop ends a dump when the reader needs no more flows.
var errStop = errors.New("stop")

// Flows yields the flows that the filter selects, from a dump of the table. It keeps at most a few
// hundred flows in memory. An error is the last thing that the sequence yields. [ErrBadFilter] and
// [kernelerr.ErrNoPermission] come before any flow; ctx's error and [ErrInterrupted] may follow
// some flows.
//
// A dump is not a snapshot. It may or may not contain flows that begin or end during the dump. A
// flow may appear twice if its neighbour in the table ended between two buffers of the dump.
// Resizing the hash table (nf_conntrack_buckets) during a dump hides flows, and the kernel does not
// report this.
//
// For a flow that the kernel filters out, the only cost is its share of the walk over the table.
// But that walk runs with softirqs disabled on one CPU until it has found some 100 matching flows:
// 0.1 to 0.4 s for a million flows that do not match.
func (t *Table) Flows(ctx context.Context, filter Filter) iter.Seq2[Flow, error] {
	return func(yield func(Flow, error) bool) {
		if err := t.dump(ctx, filter, yield); err != nil && !errors.Is(err, errStop) {
			yield(Flow{}, fmt.Errorf("list flows: %w", explain(err)))
		}
	}
}

// dump yields the flows that the filter selects. It returns errStop if yield returned false.
func (t *Table) dump(ctx context.Context, filter Filter, yield func(Flow, error) bool) error {
	requests, err := filter.dumps()
	if err != nil {
		return err
	}
	return t.scan(ctx, requests, filter.matchOriginal, func(f *Flow) error {
		if filter.Match(f) && !yield(*f, nil) {
			return errStop
		}
		return nil
	})
}

// scan calls each with the flows that the requests return and wants accepts. wants sees only the
// protocol and the original tuple. The flow is valid until each returns.
func (t *Table) scan(ctx context.Context, requests []dumpRequest, wants func(*Flow) bool,
	each func(*Flow) error) error {
	conn, err := t.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	var f Flow
	var b rawnl.Batch
	for _, request := range requests {
		b.Reset()
		appendDump(&b, request)
		err := conn.Dump(ctx, &b, func(m rawnl.Message) error {
			switch err := parseFlow(m.Attrs, &f, wants); err {
			case nil:
				return each(&f)
			case errUnwanted:
				return nil
			default:
				return err
			}
		})
		if err != nil {
			return err
		}
	}

	return nil
}

// Reread reads flows again by their original tuples, many at a time. It calls each with every flow
// that is still in the table. i is the position in flows. A flow that ended may have been created
// again with the same tuple: compare the ID. A flow for which Reread does not call the function has
// ended. The *Flow is valid until the function returns, and the function must not use the table.
func (t *Table) Reread(ctx context.Context, flows []Flow, each func(i int, now *Flow)) error {
	var b rawnl.Batch
	for i := range flows {
		appendGet(&b, &flows[i])
	}
	var now Flow
	_, err := t.conn.SendAll(ctx, &b, func(i int, m rawnl.Message) error {
		err := parseFlow(m.Attrs, &now, wantAll)
		if err == nil {
			each(i, &now)
		}
		return err
	})
	gone, err := refusals(err)
	for _, e := range gone {
		if e.Errno != syscall.ENOENT {
			return fmt.Errorf("read flow %s again: %w", flows[e.Index], explain(e))
		}
	}

	if err != nil {
		return fmt.Errorf("read flows again: %w", explain(err))
	}
	return nil
}
