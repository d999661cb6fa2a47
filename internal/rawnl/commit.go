package rawnl

import (
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
	begin := c.reserve(b.Len() + 2)
	first, last := begin+1, begin+uint32(b.Len())
	b.number(0, b.Len(), first)
	flags := b.setFlags(b.Len()-1, FlagAck)
	wire := b.transaction(genID, begin, last+1)
	err := c.send(wire[:len(wire)-without])
	b.restoreFlags(b.Len()-1, flags)
	if err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	var errs OpErrors
	found, err := c.collect(begin, last, func(p packet) error {
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
