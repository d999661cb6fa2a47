package rawnl

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"
)

// Dump sends the one message of req as a dump and calls fn for every message of the answer. It
// returns [ErrDumpInterrupted] if what is being dumped changed meanwhile: what fn has seen is then
// worth nothing. If fn returns an error, that is returned and the rest of the dump is thrown away.
// fn must not use the connection.
//
// The kernel marks an interrupted dump with NLM_F_DUMP_INTR, but not in every dump of every
// version. nf_tables also writes the generation into each message: here, a dump that spans two
// generations is interrupted.
//
// One interruption nobody but fn can see. After a set grew or shrank much, the kernel rehashes it
// in the background (lib/rhashtable.c), and a dump that is on its way finds some elements twice and
// as many others not at all, without a mark and without an error. fn should return
// ErrDumpInterrupted when it meets an element again. A set that was made with a size
// (NFTA_SET_DESC_SIZE) is not rehashed.
func (c *Conn) Dump(ctx context.Context, req *Batch, fn func(Message) error) error {
	if err := req.single(); err != nil {
		return fmt.Errorf("dump: %w", err)
	}
	if err := c.begin(ctx); err != nil {
		return fmt.Errorf("dump: %w", err)
	}
	defer c.end()
	start := time.Now()
	err := c.dump(ctx, &dump{req: req, fn: fn})
	c.debug(ctx, "dump", req, start, err)
	return err
}

// DumpThrough is [Conn.Dump] that goes on to the end where that is interrupted. It reports
// whether it was: then objects may have been seen twice or not at all, but for those that nobody
// could change and that lie where nothing came or went.
func (c *Conn) DumpThrough(ctx context.Context, req *Batch, fn func(Message) error) (bool, error) {
	if err := req.single(); err != nil {
		return false, fmt.Errorf("dump: %w", err)
	}
	if err := c.begin(ctx); err != nil {
		return false, fmt.Errorf("dump: %w", err)
	}
	defer c.end()
	start := time.Now()
	d := dump{req: req, fn: fn, through: true}
	err := c.dump(ctx, &d)
	c.debug(ctx, "dump", req, start, err)
	return d.torn, err
}

// DumpOwn is [Conn.DumpThrough] for objects that nobody changes meanwhile, as the caller makes sure
// of by other means. The kernel says of any transaction in the network namespace that it
// interrupted a dump, also of one about other tables. Dumps of the elements of one set, and of the
// sets and the rules of one table, count what is in that table only (nf_tables_dump_set,
// nf_tables_dump_sets, nf_tables_dump_rules), so that such a transaction cannot make them skip
// anything; dumps of chains and of tables count all of them.
func (c *Conn) DumpOwn(ctx context.Context, req *Batch, fn func(Message) error) error {
	_, err := c.DumpThrough(ctx, req, fn)
	return err
}

// dump is Dump when it is its turn. If the kernel has no memory for a part of a dump, that stalls:
// the queue is empty, and the next dump is refused with EBUSY (netlink_dump and
// __netlink_dump_start in net/netlink/af_netlink.c). To read that refusal makes it go on with the
// first one (at the end of netlink_recvmsg), so that is read to its end, and the second one is sent
// again.
func (c *Conn) dump(ctx context.Context, d *dump) error {
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
	// dumpTries is how often a dump is sent where an earlier one has stalled.
	dumpTries = 3
	// stalledDump stands for a dump whose number nobody knows any more; no dump has it.
	stalledDump = 1<<32 - 1
)

// dumpOnce sends the request and reads the answer.
func (c *Conn) dumpOnce(ctx context.Context, d *dump) error {
	req := d.req
	d.seq = c.number(req, 0, 1)
	flags := req.setFlags(0, FlagDump)
	err := c.send(req.buf[beginLen:])
	req.restoreFlags(0, flags)
	if err != nil {
		return fmt.Errorf("dump: %w", err)
	}
	for c.dumpSeq = d.seq; c.dumpSeq != 0; {
		if err := c.proceed(ctx); err != nil {
			return fmt.Errorf("dump: %w", err)
		}
		data, err := c.receive()
		if err == errEmpty {
			c.dumpSeq = 0
			return fmt.Errorf("dump: %w", ErrAnswersLost)
		}
		if err == errOverrun {
			return fmt.Errorf("dump: %w", ErrAnswersLost)
		}
		if err != nil {
			return fmt.Errorf("dump: %w", err)
		}
		done, err := d.take(data)
		if done {
			c.dumpSeq = 0
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// dump is a dump in progress.
type dump struct {
	req *Batch
	fn  func(Message) error
	seq uint32
	gen uint16 // of the messages so far, when started
	any bool   // there has been a message

	through bool // go on if interrupted
	torn    bool // it was
}

// take works on one datagram. It reports whether the dump is over.
func (d *dump) take(data []byte) (done bool, err error) {
	for len(data) > 0 {
		var p packet
		if p, data, err = nextPacket(data); err != nil {
			return false, fmt.Errorf("dump: %w", err)
		}
		if p.seq != d.seq {
			continue
		}
		if p.typ == msgDone || p.typ == msgError {
			return true, d.last(p)
		}
		if p.typ < minType {
			continue
		}
		if err := d.part(p); err != nil {
			return false, err
		}
	}
	return false, nil
}

// part works on one message of the answer.
func (d *dump) part(p packet) error {
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

// last works on the end of the answer.
func (d *dump) last(p packet) error {
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

// interrupted returns ErrDumpInterrupted and what was being dumped, unless the dump goes on.
func (d *dump) interrupted() error {
	if d.torn = true; d.through {
		return nil
	}
	return fmt.Errorf("%s: %w", d.req.msgs[0].obj.label(0), ErrDumpInterrupted)
}
