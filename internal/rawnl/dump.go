package rawnl

import (
	"context"
	"errors"
	"fmt"
	"syscall"
)

// Dump sends the one message of req as a dump and calls fn for every message of the answer. It
// returns [ErrDumpInterrupted] if the objects changed during the dump: the messages that fn has
// seen are then worthless. If fn returns an error, Dump returns it and discards the rest of the
// dump. fn must not use the connection.
//
// The kernel marks an interrupted dump with NLM_F_DUMP_INTR, but not in every dump of every
// version. nf_tables also writes the generation into each message. Dump therefore treats a dump
// that spans two generations as interrupted.
//
// One kind of interruption can be noticed only by fn. After a set grew or shrank much, the kernel
// rehashes it in the background (lib/rhashtable.c). A dump in progress then returns some elements
// twice and misses as many other elements, without a mark and without an error. fn should return
// ErrDumpInterrupted when it meets an element again. The kernel does not rehash a set that was
// created with a size (NFTA_SET_DESC_SIZE).
func (c *Conn) Dump(ctx context.Context, req *Batch, fn func(Message) error) error {
	_, err := c.dump(ctx, req, false, fn)
	return err
}

// DumpThrough is like [Conn.Dump], but continues to the end after an interruption. It reports
// whether the dump was interrupted. If so, fn may have seen an object twice or not at all, unless
// nothing could change that object, and nothing was added or removed where it is stored.
func (c *Conn) DumpThrough(ctx context.Context, req *Batch, fn func(Message) error) (bool, error) {
	return c.dump(ctx, req, true, fn)
}

// DumpOwn is like [Conn.DumpThrough], for objects that do not change during the dump; the caller
// ensures this by other means. The kernel reports an interruption after any transaction in the
// network namespace, even if it changed only other tables. Dumps of the elements of one set, and of
// the sets and the rules of one table, count only objects in that table (nf_tables_dump_set,
// nf_tables_dump_sets, nf_tables_dump_rules), so a transaction about another table cannot make them
// skip anything. Dumps of chains and of tables count the objects of all tables, so such a
// transaction can.
func (c *Conn) DumpOwn(ctx context.Context, req *Batch, fn func(Message) error) error {
	_, err := c.dump(ctx, req, true, fn)
	return err
}

// dump implements Dump and, with through, DumpThrough.
//
// If the kernel has no memory for a part of a dump, the dump stalls: the queue is empty, and the
// kernel refuses the next dump with EBUSY (netlink_dump and __netlink_dump_start in
// net/netlink/af_netlink.c). Reading that refusal makes the kernel continue the stalled dump (at
// the end of netlink_recvmsg). So dump reads the stalled dump to its end and sends its own request
// again.
func (c *Conn) dump(ctx context.Context, req *Batch, through bool, fn func(Message) error) (
	torn bool, err error) {
	if err := req.single(); err != nil {
		return false, fmt.Errorf("dump: %w", err)
	}
	var gen uint16 // of the messages so far, if there were any
	begun := false
	interrupted := func() error {
		torn = true
		if through {
			return nil
		}
		return fmt.Errorf("%s: %w", req.msgs[0].obj.label(0), ErrDumpInterrupted)
	}

	var own error // not an error of the connection
	reply := func(_ int, m Message) error {
		moved := m.Subsys == SubsysNFTables && begun && m.ResID != gen
		gen, begun = m.ResID, true
		if moved || m.Flags&FlagIntr != 0 {
			own = interrupted()
		}
		if own == nil {
			own = fn(m)
		}
		return own
	}

	ended := func(_ int, v verdict) error {
		switch c.dumpSeq = 0; {
		case v.errno != 0:
			own = messageError(req, 0, v)
		case v.torn:
			own = interrupted()
		}

		return own
	}

	err = c.work(ctx, "dump", "dump", req, func() (error, error) {
		for try := 1; ; try++ {
			own = nil
			r := request{b: req, end: 1, flags: FlagDump, reply: reply, ended: ended}
			err := c.exchange(ctx, &r)
			switch {
			case own == nil:
				return nil, err
			case begun || try == dumpTries || !errors.Is(own, syscall.EBUSY):
				return own, nil
			}

			c.dumpSeq = stalledDump
			if err := c.settle(ctx); err != nil {
				return nil, err
			}
		}
	})
	return torn, err
}

const (
	// dumpTries limits the attempts to send a dump if an earlier dump has stalled.
	dumpTries = 3
	// stalledDump stands for a stalled dump whose number is no longer known. No dump has this
	// number.
	stalledDump = 1<<32 - 1
)
