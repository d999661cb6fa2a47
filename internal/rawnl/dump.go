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
// Only fn can notice one kind of interruption. After a set grew or shrank much, the kernel rehashes
// it in the background (lib/rhashtable.c). A dump in progress then finds some elements twice and
// misses as many others, without a mark and without an error. fn should return ErrDumpInterrupted
// when it meets an element again. The kernel does not rehash a set that was made with a size
// (NFTA_SET_DESC_SIZE).
func (c *Conn) Dump(ctx context.Context, req *Batch, fn func(Message) error) error {
	return c.dump(ctx, &dump{req: req, fn: fn})
}

// DumpThrough is [Conn.Dump] that goes on to the end after an interruption. It reports whether
// there was one. If so, fn may have seen an object twice or not at all, unless nothing could change
// that object, and nothing was added or removed where it is stored.
func (c *Conn) DumpThrough(ctx context.Context, req *Batch, fn func(Message) error) (bool, error) {
	d := dump{req: req, fn: fn, through: true}
	err := c.dump(ctx, &d)
	return d.torn, err
}

// DumpOwn is [Conn.DumpThrough] for objects that do not change during the dump; the caller ensures
// this by other means. The kernel says that a dump was interrupted after any transaction in the
// network namespace, even one about other tables. Dumps of the elements of one set, and of the sets
// and the rules of one table, count only objects in that table (nf_tables_dump_set,
// nf_tables_dump_sets, nf_tables_dump_rules), so a transaction about another table cannot make them
// skip anything. Dumps of chains and of tables count the objects of all tables, so such a
// transaction can.
func (c *Conn) DumpOwn(ctx context.Context, req *Batch, fn func(Message) error) error {
	_, err := c.DumpThrough(ctx, req, fn)
	return err
}

// dump does the work of Dump and DumpThrough.
func (c *Conn) dump(ctx context.Context, d *dump) error {
	if err := d.req.single(); err != nil {
		return fmt.Errorf("dump: %w", err)
	}
	return c.work(ctx, "dump", "dump", d.req, func() error { return c.dumpInTurn(ctx, d) })
}

// dumpInTurn dumps again if an earlier dump has stalled. The caller holds the connection.
//
// If the kernel has no memory for a part of a dump, the dump stalls: the queue is empty, and the
// kernel refuses the next dump with EBUSY (netlink_dump and __netlink_dump_start in
// net/netlink/af_netlink.c). Reading that refusal makes the kernel continue the stalled dump (at
// the end of netlink_recvmsg). So dumpInTurn reads the stalled dump to its end and sends its own
// request again.
func (c *Conn) dumpInTurn(ctx context.Context, d *dump) error {
	err := c.dumpOnce(ctx, d)
	stalled := func() bool { return !d.any && errors.Is(err, syscall.EBUSY) }
	for try := 1; try < dumpTries && stalled(); try++ {
		c.dumpSeq = stalledDump
		if err := c.settle(ctx); err != nil {
			return fmt.Errorf("dump: %w", err)
		}
		err = c.dumpOnce(ctx, d)
	}
	return err
}

const (
	// dumpTries is how often a dump is sent if an earlier dump has stalled.
	dumpTries = 3
	// stalledDump stands for a stalled dump, whose number is not known any more. No dump has this
	// number.
	stalledDump = 1<<32 - 1
)

// dumpOnce sends the request and reads the answer. If it ends early, the next request reads the
// rest.
func (c *Conn) dumpOnce(ctx context.Context, d *dump) error {
	seq := c.reserve(1)
	c.number(d.req, 0, 1, seq)
	if err := c.send(d.req.buf[beginLen:], d.req.At(0), FlagDump); err != nil {
		return fmt.Errorf("dump: %w", err)
	}
	c.dumpSeq = seq
	found, err := c.collect(ctx, seq, seq, func(p packet) error {
		if p.typ == msgDone || p.typ == msgError {
			c.dumpSeq = 0
		}
		d.err = d.take(p)
		return d.err
	})
	switch {
	case d.err != nil:
		return d.err
	case err == nil && !found:
		c.dumpSeq, err = 0, ErrAnswersLost
	}
	if err != nil {
		return fmt.Errorf("dump: %w", err)
	}
	return nil
}

// dump is a dump in progress.
type dump struct {
	req *Batch
	fn  func(Message) error
	gen uint16 // of the messages so far, when started
	any bool   // there has been a message
	err error  // of the last message

	through bool // go on if interrupted
	torn    bool // it was
}

// take handles one message of the answer.
func (d *dump) take(p packet) error {
	if p.typ == msgDone || p.typ == msgError {
		v, err := p.verdict()
		switch {
		case err != nil:
			return fmt.Errorf("dump: %w", err)
		case v.errno != 0:
			return messageError(d.req, 0, v)
		case p.flags&FlagIntr != 0:
			return d.interrupted()
		}
		return nil
	}
	if p.typ < minType {
		return nil
	}
	m, err := p.message()
	if err != nil {
		return fmt.Errorf("dump: %w", err)
	}
	moved := m.Subsys == SubsysNFTables && d.any && m.ResID != d.gen
	if moved || p.flags&FlagIntr != 0 {
		if err := d.interrupted(); err != nil {
			return err
		}
	}
	d.gen, d.any = m.ResID, true
	return d.fn(m)
}

// interrupted returns ErrDumpInterrupted with the object that was dumped, unless the dump is to go
// on.
func (d *dump) interrupted() error {
	if d.torn = true; d.through {
		return nil
	}
	return fmt.Errorf("%s: %w", d.req.msgs[0].obj.label(0), ErrDumpInterrupted)
}
