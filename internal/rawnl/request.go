package rawnl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"syscall"
	"time"

	"github.com/kernlb/kernlb/internal/logkey"
)

// request is a datagram of requests, with functions for the answers.
type request struct {
	b          *Batch
	begin, end int    // the messages of b
	first      uint32 // the sequence number of the first message
	flags      uint16 // more flags of the last message: FlagAck or FlagDump
	many       bool   // answers are short, so many are received at once

	// whole says that the messages are a transaction, for the generation genID unless genID is 0.
	// The number before first also belongs to the request.
	whole bool
	genID uint32

	// reply gets each reply, and ended gets each error, acknowledgement, or end of a dump. i is the
	// position of the request in b; -1 means the transaction as a whole. Replies are valid until
	// reply returns. An error ends the exchange. Both functions may be nil.
	reply func(i int, m Message) error
	ended func(i int, v verdict) error
}

// begin waits for its turn to use the connection. The caller calls end after each begin that
// succeeds.
func (c *Conn) begin(ctx context.Context) error {
	select {
	case <-c.turn:
	case <-ctx.Done():
		return ctx.Err()
	}

	err := c.proceed(ctx)
	if err == nil && c.dumpSeq != 0 {
		err = c.settle(ctx)
	}
	if err != nil {
		c.end()
	}
	return err
}

// work waits for its turn to use the connection, and then calls do. do sends the sealed messages of
// b. It returns the kernel's refusals or the error of a caller's function, and separately the error
// that ended the work. In the result, the latter error begins with op. An empty batch needs no
// work. what names the work in the log.
func (c *Conn) work(ctx context.Context, op, what string, b *Batch,
	do func() (refused, err error)) error {
	if b.Len() == 0 && b.err == nil {
		return nil
	}
	err := c.begin(ctx)
	if err == nil {
		defer c.end()
		err = b.seal()
	}

	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	start := time.Now()
	refused, err := do()
	switch {
	case err == nil:
		err = refused
	case refused == nil:
		err = fmt.Errorf("%s: %w", op, err)
	default:
		err = errors.Join(refused, fmt.Errorf("%s: %w", op, err))
	}

	if c.log == nil || !c.log.Enabled(ctx, slog.LevelDebug) {
		return err
	}
	attrs := []slog.Attr{
		slog.Int(logkey.Messages, b.Len()), slog.Int(logkey.Bytes, b.Size()),
		slog.Duration(logkey.Duration, time.Since(start)),
	}
	if err != nil {
		attrs = append(attrs, slog.Any(logkey.Error, err))
	}
	c.log.LogAttrs(ctx, slog.LevelDebug, "netlink "+what, attrs...)
	return err
}

// end lets the next request use the connection.
func (c *Conn) end() { c.turn <- struct{}{} }

// proceed returns an error if no further system call should be made.
func (c *Conn) proceed(ctx context.Context) error {
	if c.closed.Load() {
		return ErrClosed
	}
	return ctx.Err()
}

// settle reads the rest of an abandoned dump. The kernel refuses another dump until then. The next
// request does this, so that the caller of the abandoned dump need not wait.
func (c *Conn) settle(ctx context.Context) error {
	for c.dumpSeq != 0 {
		err := c.collect(ctx, &request{end: 1, first: c.dumpSeq})
		switch {
		case err == nil, err == ErrAnswersLost:
			c.dumpSeq = 0
		case !errors.Is(err, ErrMalformed):
			return err
		}
	}

	return nil
}

// exchange sends a datagram and collects the answers. The kernel sends errors in any case. The
// acknowledgement of the last message shows that the kernel has processed all messages. The last
// message has more flags while it is sent. So a batch has the same bytes before and after, except
// for the sequence numbers and, on a connection to generic netlink, the number of the family.
func (c *Conn) exchange(ctx context.Context, r *request) error {
	// No answer in the queue has one of these numbers. Notifications have the number 0.
	n, around := uint32(r.end-r.begin), uint32(0)
	if r.whole { // the messages that begin and end the transaction have numbers, too
		around = 1
	}
	if c.seq > math.MaxUint32-n-2*around {
		c.seq = 1
	}
	r.first = c.seq + around
	c.seq += n + 2*around

	wire := r.b.buf[r.b.msgs[r.begin].at:r.b.endOf(r.end-1)]
	if r.whole {
		wire = r.b.transaction(r.genID, r.first-1, r.first+n)
	}
	if len(wire) > c.limit {
		return &TooLargeError{Size: len(wire), Limit: c.limit}
	}

	var last []byte // the bytes from the last message on
	for i, m := range r.b.msgs[r.begin:r.end] {
		last = r.b.buf[m.at:]
		native.PutUint32(last[8:], r.first+uint32(i))
		if c.family != 0 {
			native.PutUint16(last[4:], c.family)
		}
	}

	flags := last[6:]
	old := native.Uint16(flags)
	native.PutUint16(flags, old|r.flags)
	err := c.sock.Send(wire)
	native.PutUint16(flags, old)
	if err != nil {
		return err
	}
	if r.flags == FlagDump {
		c.dumpSeq = r.first
	}
	return c.collect(ctx, r)
}

// Commit sends b as one nf_tables transaction: the kernel applies all of it, or nothing. An empty
// batch is not sent. If genID is not 0, the kernel refuses the transaction with
// [ErrGenerationChanged] unless genID is still the generation of the ruleset (Linux 4.16). After a
// message has failed, the kernel still checks the remaining messages: the error is an [OpError] or,
// for several messages, [OpErrors].
//
// Commit asks the kernel to acknowledge the last message, and this acknowledgement means success.
// Acknowledgements of the begin and end messages are no use: they came with Linux 6.10
// (bf2ac490d28c, "netfilter: nfnetlink: Handle ACK flags for batch messages"), and a failed
// transaction has no acknowledgement for its end. The kernel reports the errors of a transaction
// when it is over, in the order of the messages, and the acknowledgement last. An error of the
// commit itself comes before all other answers. So if the acknowledgement is the first answer, the
// commit succeeded.
func (c *Conn) Commit(ctx context.Context, b *Batch, genID uint32) error {
	var errs OpErrors
	ended := func(i int, v verdict) error {
		// An error of the transaction carries the number of its begin message. If memory runs out
		// while the kernel checks or commits, the error is ENOMEM and may carry the number of the
		// first message instead. If memory runs out during the check, the kernel also forgets the
		// errors that it has collected (nfnetlink_rcv_batch in net/netfilter/nfnetlink.c:
		// nlmsg_hdr(oskb) after skb_pull).
		//
		// ERESTART always concerns the whole transaction. It carries the number of the message that
		// made the kernel load a module: the kernel then replays the batch and checks the
		// generation again (the same function, nlh after replay).
		switch {
		case v.errno == 0:
		case i < 0, i == 0 && v.errno == syscall.ENOMEM, v.errno == errRestart:
			errs = append(errs, transactionError(b, v))
		default:
			errs = append(errs, messageError(b, i, v))
		}

		return nil
	}

	op := "commit"
	if b.checked {
		op = "check"
	}
	return c.work(ctx, op, op, b, func() (error, error) {
		err := c.exchange(context.Background(), &request{b: b, end: b.Len(), flags: FlagAck,
			whole: true, genID: genID, ended: ended})
		return errs.Err(), err
	})
}

// Check lets the kernel check b as a transaction but never commits it. Check does not send the end
// message, so the kernel undoes its preparations (nfnetlink_rcv_batch in net/netfilter/nfnetlink.c;
// "nft --check" works in the same way). It returns the same errors as [Conn.Commit]. Nothing stays
// except modules that the kernel loaded for the check; the generation stays the same. Check does
// not find errors that only the commit itself can cause.
func (c *Conn) Check(ctx context.Context, b *Batch) error {
	b.checked = true
	defer func() { b.checked = false }()
	return c.Commit(ctx, b, 0)
}

// SendAll sends the messages of b as independent requests: a failure does not stop the remaining
// requests. It returns the number of messages that the kernel has processed, and the failures as an
// [OpError] or [OpErrors]. Their Index is the position of the message in b. Each send is as large
// as the send buffer and the room for answers in the receive buffer allow. SendAll checks ctx
// between two sends.
//
// SendAll calls reply with each reply and the position of its request in b. A reply is valid until
// the function returns. The function must not use the connection. If it returns an error, SendAll
// stops. Replies must be small, like replies about one object. If reply is nil, replies are
// skipped.
func (c *Conn) SendAll(ctx context.Context, b *Batch, reply func(i int, m Message) error) (
	done int, err error) {
	op, what := "send", "requests"
	if reply != nil {
		op, what = "query", "queries"
	}
	var errs OpErrors
	ended := func(i int, v verdict) error {
		if v.errno != 0 {
			errs = append(errs, messageError(b, i, v))
		}
		return nil
	}

	err = c.work(ctx, op, what, b, func() (error, error) {
		for done < b.Len() {
			// at least one message, and at most as many as the queue can hold errors for
			end := done + 1
			for end < b.Len() && end-done < c.queue/ackSize &&
				b.endOf(end)-b.msgs[done].at <= c.limit {
				end++
			}

			err := c.proceed(ctx)
			if err == nil {
				err = c.exchange(context.Background(), &request{b: b, begin: done, end: end,
					flags: FlagAck, reply: reply, ended: ended})
			}

			if err != nil {
				return errs.Err(), fmt.Errorf("%d of %d messages were answered: %w", done, b.Len(),
					err)
			}

			done = end
		}

		return errs.Err(), nil
	})
	return done, err
}

// Query sends the one message of req and returns copies of the replies, if any. To ask for all
// objects of a kind, use [Conn.Dump].
func (c *Conn) Query(ctx context.Context, req *Batch) (replies []Message, err error) {
	if err := req.single(); err != nil {
		return nil, fmt.Errorf("query: %w", err)
	}
	_, err = c.SendAll(ctx, req, func(_ int, m Message) error {
		m.Attrs = bytes.Clone(m.Attrs)
		replies = append(replies, m)
		return nil
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
	// requesting thread. In a message to the multicast group NFNLGRP_NFTABLES, they describe the
	// thread that committed.
	ProcPID  uint32
	ProcName string
	Port     uint32 // of the socket that requested the generation, or that committed
}

// NextGenID returns the generation after id, which a successful Commit creates. A transaction that
// changes nothing, such as adding an element that exists, creates no new generation.
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
	_, err = c.SendAll(ctx, &c.genID, func(_ int, m Message) (err error) {
		g, _, err = m.Generation()
		return err
	})
	if err == nil && g.ID == 0 {
		err = fmt.Errorf("get generation of the ruleset: %w: no reply", ErrMalformed)
	}
	return g, err
}

// Generation decodes the answer to a request for the generation, or the message to NFNLGRP_NFTABLES
// that follows all changes of a transaction and contains its new generation. ok is false for other
// messages.
func (m Message) Generation() (g GenInfo, ok bool, err error) {
	if m.Subsys != SubsysNFTables || m.Type != msgNewGen {
		return GenInfo{}, false, nil
	}
	g.Port = m.Port
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

	if err = it.Err(); err == nil && g.ID == 0 {
		err = fmt.Errorf("%w: a generation without an id", ErrMalformed)
	}
	return g, true, err
}
