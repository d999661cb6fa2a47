package rawnl

import (
	"bytes"
	"context"
	"fmt"
)

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
			err = c.sendChunk(b, done, end, &errs, reply)
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
	size := c.sendLimit()
	_, queue := c.sock.Limits()
	end := begin + 1
	for end < b.Len() && end-begin < queue/ackSize && b.endOf(end)-b.msgs[begin].at <= size {
		end++
	}
	return end
}

// sendChunk sends the messages from begin to end and collects their errors. The kernel sends errors
// unasked. The acknowledgement of the last message shows that the kernel has worked on all of them.
// Replies go to reply.
func (c *Conn) sendChunk(b *Batch, begin, end int, errs *OpErrors,
	reply func(i int, m Message) error) error {
	first := c.number(b, begin, end)
	last := first + uint32(end-begin-1)
	flags := b.setFlags(end-1, FlagAck)
	err := c.send(b.buf[b.msgs[begin].at:b.endOf(end-1)])
	b.restoreFlags(end-1, flags)
	if err != nil {
		return err
	}
	found, err := c.collect(first, last, func(p packet) error {
		i := begin + int(p.seq-first)
		if p.typ >= minType {
			m, err := p.message()
			if err != nil {
				return err
			}
			return reply(i, m)
		}
		if p.typ != msgError {
			return nil
		}
		v, err := p.verdict()
		if err == nil && v.errno != 0 {
			*errs = append(*errs, messageError(b, i, v))
		}
		return err
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
	err = c.work(ctx, "query", "query", req, func() (err error) {
		replies, err = c.query(req)
		return err
	})
	return replies, err
}

// query does the work of Query. The caller holds the connection.
func (c *Conn) query(req *Batch) ([]Message, error) {
	seq := c.number(req, 0, 1)
	flags := req.setFlags(0, FlagAck)
	err := c.send(req.buf[beginLen:])
	req.restoreFlags(0, flags)
	if err != nil {
		return nil, fmt.Errorf("query: %w", err)
	}
	var errs OpErrors
	var replies []Message
	found, err := c.collect(seq, seq, func(p packet) error {
		switch {
		case p.typ == msgError || p.typ == msgDone:
			v, err := p.verdict()
			if err == nil && v.errno != 0 {
				errs = append(errs, messageError(req, 0, v))
			}
			return err
		case p.typ < minType:
			return nil
		}
		m, err := p.message()
		m.Attrs = bytes.Clone(m.Attrs)
		replies = append(replies, m)
		return err
	})
	if err == nil && !found {
		err = ErrAnswersLost
	}
	if err := outcome("query", errs, err); err != nil {
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
func (c *Conn) GenID(ctx context.Context) (GenInfo, error) {
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
	replies, err := c.query(&c.own)
	if err != nil {
		return GenInfo{}, err
	}
	for _, m := range replies {
		if m.Subsys == SubsysNFTables && m.Type == msgNewGen {
			return parseGen(m)
		}
	}
	return GenInfo{}, fmt.Errorf("get generation of the ruleset: %w: no reply", ErrMalformed)
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
