package rawnl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"syscall"
)

// Commit sends b as one nf_tables transaction: the kernel applies all of it, or nothing. An empty
// batch is not sent. If genID is not 0, the kernel refuses the transaction with
// [ErrGenerationChanged] unless genID is still the generation of the ruleset (Linux 4.16). After a
// message has failed, the kernel still judges the others: the error is an [OpError] or, for
// several, [OpErrors].
//
// Commit asks the kernel to acknowledge the last message, and this acknowledgement tells success.
// Acknowledgements of the begin and end messages are no use: they came with Linux 6.10
// (bf2ac490d28c, "netfilter: nfnetlink: Handle ACK flags for batch messages"), and a failed
// transaction has none for its end. The kernel reports the errors of a transaction when it is over,
// in the order of the messages, and the acknowledgement last. An error of the commit itself comes
// before all of them. So if the acknowledgement is the first answer, the commit succeeded.
func (c *Conn) Commit(ctx context.Context, b *Batch, genID uint32) error {
	return c.work(ctx, "commit", "commit", b, func() error { return c.commit(b, genID, 0) })
}

// Check lets the kernel judge b as a transaction but never commits it. Check does not send the end
// message, so the kernel undoes its preparations (nfnetlink_rcv_batch in net/netfilter/nfnetlink.c;
// "nft --check" does so). It returns the same errors as [Conn.Commit]. Nothing stays except modules
// that the kernel loaded to judge; the generation stays the same. Check does not find errors that
// only the commit itself can cause.
func (c *Conn) Check(ctx context.Context, b *Batch) error {
	return c.work(ctx, "check", "check", b, func() error { return c.commit(b, 0, frameLen) })
}

// commit does the work of Commit and Check. The caller holds the connection. without is how many
// bytes at the end of the transaction are not sent.
func (c *Conn) commit(b *Batch, genID uint32, without int) error {
	n := len(b.msgs)
	begin := c.reserve(n + 2)
	first, last := begin+1, begin+uint32(n)
	c.number(b, 0, n, first)
	wire := b.transaction(genID, begin, last+1)
	if err := c.send(wire[:len(wire)-without], b.At(n-1), FlagAck); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	var errs OpErrors
	found, err := c.collect(context.Background(), begin, last, func(p packet) error {
		if p.typ != msgError {
			return nil
		}
		v, err := p.verdict()
		if err != nil || v.errno == 0 {
			return err
		}
		if whole(p.seq, first, v) {
			errs = append(errs, transactionError(b, v))
		} else {
			errs = append(errs, messageError(b, int(p.seq-first), v))
		}
		return nil
	})
	if err == nil && !found && len(errs) == 0 {
		err = ErrAnswersLost
	}
	return outcome("commit", errs, err)
}

// whole reports whether the kernel refused the whole transaction, not one message of it.
//
// An error of the transaction carries the number of its begin message. If memory runs out while the
// kernel judges or commits, the error is ENOMEM and may carry the number of the first message
// instead; in the former case the kernel also forgets the errors that it has collected
// (nfnetlink_rcv_batch in net/netfilter/nfnetlink.c: nlmsg_hdr(oskb) after skb_pull).
//
// ERESTART always concerns the whole transaction. It carries the number of the message that made
// the kernel load a module: the kernel then replays the batch and checks the generation again (the
// same function, nlh after replay).
func whole(seq, first uint32, v verdict) bool {
	return seq == first-1 || seq == first && v.errno == syscall.ENOMEM || v.errno == errRestart
}

// outcome joins the kernel's refusals and the error that ended the operation, if any.
func outcome(op string, errs OpErrors, err error) error {
	if err == nil {
		return errs.Err()
	}
	err = fmt.Errorf("%s: %w", op, err)
	if len(errs) == 0 {
		return err
	}
	return errors.Join(errs.Err(), err)
}

// SendAll sends the messages of b as independent requests: a failure does not stop the others. It
// returns the number of messages that the kernel has worked on, and the failures as an [OpError] or
// [OpErrors]. Their Index is the position of the message in b. SendAll skips replies other than
// errors. Each send is as large as the send buffer and the room for answers in the receive buffer
// allow. SendAll checks ctx between two sends.
func (c *Conn) SendAll(ctx context.Context, b *Batch) (done int, err error) {
	err = c.work(ctx, "send", "requests", b, func() (err error) {
		done, err = c.sendAll(ctx, b, func(int, Message) error { return nil })
		return err
	})
	return done, err
}

// sendAll does the work of SendAll and QueryAll. The caller holds the connection.
func (c *Conn) sendAll(ctx context.Context, b *Batch, reply func(i int, m Message) error) (done int,
	err error) {
	var errs OpErrors
	for done < b.Len() {
		end := c.chunk(b, done)
		err := c.proceed(ctx)
		if err == nil {
			err = c.exchange(b, done, end, &errs, reply)
		}
		if err != nil {
			err = fmt.Errorf("%d of %d messages were answered: %w", done, b.Len(), err)
			return done, outcome("send", errs, err)
		}
		done = end
	}
	return done, errs.Err()
}

// chunk returns the end of the messages that go into one datagram with message begin. The datagram
// has at least one message, and at most as many as the receive queue can hold errors for.
func (c *Conn) chunk(b *Batch, begin int) int {
	end := begin + 1
	for end < b.Len() && end-begin < c.queue/ackSize && b.endOf(end)-b.msgs[begin].at <= c.limit {
		end++
	}
	return end
}

// exchange sends the messages from begin to end and collects their errors. The kernel sends errors
// unasked. The acknowledgement of the last message shows that the kernel has worked on all of them.
// Replies go to reply, and are valid until it returns.
func (c *Conn) exchange(b *Batch, begin, end int, errs *OpErrors,
	reply func(i int, m Message) error) error {
	first := c.reserve(end - begin)
	c.number(b, begin, end, first)
	if err := c.send(b.buf[b.msgs[begin].at:b.endOf(end-1)], b.At(end-1), FlagAck); err != nil {
		return err
	}
	last := first + uint32(end-begin-1)
	found, err := c.collect(context.Background(), first, last, func(p packet) error {
		i := begin + int(p.seq-first)
		switch {
		case p.typ == msgError || p.typ == msgDone:
			v, err := p.verdict()
			if err == nil && v.errno != 0 {
				*errs = append(*errs, messageError(b, i, v))
			}
			return err
		case p.typ < minType:
			return nil
		}
		m, err := p.message()
		if err != nil {
			return err
		}
		return reply(i, m)
	})
	if err == nil && !found {
		return ErrAnswersLost
	}
	return err
}

// QueryAll sends the messages of b as independent requests, many at a time, and calls fn with each
// reply and the position of its request in b. A reply is valid until fn returns. fn must not use
// the connection, and its error ends the work. QueryAll reports refused requests as [Conn.SendAll]
// does. Replies must be small, like replies about one object.
func (c *Conn) QueryAll(ctx context.Context, b *Batch, fn func(i int, m Message) error) error {
	return c.work(ctx, "query", "queries", b, func() error {
		_, err := c.sendAll(ctx, b, fn)
		return err
	})
}

// Query sends the one message of req and returns copies of the replies; there may be none. To ask
// for all objects of a kind, use [Conn.Dump].
func (c *Conn) Query(ctx context.Context, req *Batch) (replies []Message, err error) {
	if err := req.single(); err != nil {
		return nil, fmt.Errorf("query: %w", err)
	}
	err = c.work(ctx, "query", "query", req, func() error {
		var errs OpErrors
		err := c.exchange(req, 0, 1, &errs, func(_ int, m Message) error {
			m.Attrs = bytes.Clone(m.Attrs)
			replies = append(replies, m)
			return nil
		})
		return outcome("query", errs, err)
	})
	if err != nil {
		return nil, err
	}
	return replies, nil
}

// single seals a batch that must have exactly one message.
func (b *Batch) single() error {
	if err := b.seal(); err != nil {
		return err
	}
	if b.Len() != 1 {
		return fmt.Errorf("%w: it has %d messages, want 1", ErrBadBatch, b.Len())
	}
	return nil
}

// GenInfo describes the current generation of the nf_tables ruleset in a network namespace.
type GenInfo struct {
	ID uint32 // never 0
	// ProcPID and ProcName are the thread id, in the initial pid namespace, and the name of the
	// thread that asks. In a message to GroupNFTables, they describe the thread that committed.
	ProcPID  uint32
	ProcName string
	Port     uint32 // of the socket that asked, or that committed
}

// NextGenID returns the generation that follows id: the one that a successful Commit makes. A
// transaction that changes nothing, such as adding an element that exists, makes no new generation.
func NextGenID(id uint32) uint32 { return max(id+1, 1) }

// Message and attributes of a generation (include/uapi/linux/netfilter/nf_tables.h).
const (
	msgNewGen uint8 = 15 // NFT_MSG_NEWGEN
	msgGetGen uint8 = 16 // NFT_MSG_GETGEN

	attrGenID       uint16 = 1 // NFTA_GEN_ID
	attrGenProcPID  uint16 = 2 // NFTA_GEN_PROC_PID
	attrGenProcName uint16 = 3 // NFTA_GEN_PROC_NAME
)

// GenID asks for the generation of the nf_tables ruleset (NFT_MSG_GETGEN).
func (c *Conn) GenID(ctx context.Context) (g GenInfo, err error) {
	if err := c.begin(ctx); err != nil {
		return GenInfo{}, fmt.Errorf("query: %w", err)
	}
	defer c.end()
	c.own.Reset()
	c.own.Message(SubsysNFTables, msgGetGen, 0, 0, 0,
		Object{Verb: "get", Kind: "generation of the ruleset"})
	if err := c.own.seal(); err != nil {
		return GenInfo{}, fmt.Errorf("query: %w", err)
	}
	var errs OpErrors
	var parseErr error
	err = c.exchange(&c.own, 0, 1, &errs, func(_ int, m Message) error {
		if g.ID == 0 && parseErr == nil && m.Subsys == SubsysNFTables && m.Type == msgNewGen {
			g, parseErr = parseGen(m)
		}
		return nil
	})
	switch err = outcome("query", errs, err); {
	case err != nil:
		return GenInfo{}, err
	case parseErr != nil:
		return GenInfo{}, parseErr
	case g.ID == 0:
		return GenInfo{}, fmt.Errorf("get generation of the ruleset: %w: no reply", ErrMalformed)
	}
	return g, nil
}

// Generation decodes the message to GroupNFTables that follows all changes of a transaction and
// names the generation that it made. ok is false for other messages.
func (m Message) Generation() (g GenInfo, ok bool, err error) {
	if m.Subsys != SubsysNFTables || m.Type != msgNewGen {
		return GenInfo{}, false, nil
	}
	g, err = parseGen(m)
	return g, true, err
}

// parseGen parses NFT_MSG_NEWGEN.
func parseGen(m Message) (GenInfo, error) {
	g := GenInfo{Port: m.Port}
	it := Attrs(m.Attrs)
	for it.Next() {
		switch it.Type() {
		case attrGenID:
			g.ID = it.U32()
		case attrGenProcPID:
			g.ProcPID = it.U32()
		case attrGenProcName:
			g.ProcName = it.Text()
		}
	}
	if err := it.Err(); err != nil {
		return GenInfo{}, fmt.Errorf("parse generation of the ruleset: %w", err)
	}
	if g.ID == 0 {
		return GenInfo{}, fmt.Errorf("parse generation of the ruleset: %w: no id", ErrMalformed)
	}
	return g, nil
}
