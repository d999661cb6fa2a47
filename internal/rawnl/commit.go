package rawnl

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"
)

// Commit sends b as one nf_tables transaction: all of it takes effect, or none. An empty batch is
// not sent. If genID is not 0, the kernel refuses the transaction with [ErrGenerationChanged]
// unless genID is still the generation of the ruleset (Linux 4.16). The kernel judges every message
// also after one has failed: the error is an [OpError] or, for several, [OpErrors].
//
// Success is known from an acknowledgement of the last message, asked for by Commit.
// Acknowledgements of the begin and end messages are no use: they came with Linux 6.10
// (bf2ac490d28c, "netfilter: nfnetlink: Handle ACK flags for batch messages"), and a failed
// transaction has none for its end. The kernel tells the errors of a transaction when it is over,
// in the order of the messages, and last the acknowledgement; an error of the commit itself comes
// before all of them. So if the first answer is that acknowledgement, all went well.
func (c *Conn) Commit(ctx context.Context, b *Batch, genID uint32) error {
	if err := b.seal(); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	if b.Len() == 0 {
		return nil
	}
	if err := c.begin(ctx); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	defer c.end()
	start := time.Now()
	err := c.commit(b, genID, 0)
	c.debug(ctx, "commit", b, start, err)
	return err
}

// Check lets the kernel judge b as a transaction, which does not take place: its end message is not
// sent, upon which the kernel undoes what it has prepared (nfnetlink_rcv_batch in
// net/netfilter/nfnetlink.c; "nft --check" does so). Errors are those of [Conn.Commit]. Nothing is
// left but modules that the kernel loaded to judge; the generation stays the same. What only a
// commit finds out, Check does not.
func (c *Conn) Check(ctx context.Context, b *Batch) error {
	if err := b.seal(); err != nil {
		return fmt.Errorf("check: %w", err)
	}
	if b.Len() == 0 {
		return nil
	}
	if err := c.begin(ctx); err != nil {
		return fmt.Errorf("check: %w", err)
	}
	defer c.end()
	start := time.Now()
	err := c.commit(b, 0, frameLen)
	c.debug(ctx, "check", b, start, err)
	return err
}

// commit is Commit when it is its turn, without the last bytes of the transaction.
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

// whole reports whether the kernel refused the transaction rather than a message of it. It says so
// with the number of the begin message or, where it has lost sight of that, of the first message:
// when memory runs out, which makes it forget what else it had to say, and when the commit itself
// fails, for the same reason (nfnetlink_rcv_batch in net/netfilter/nfnetlink.c: nlmsg_hdr(oskb)
// after skb_pull). That another generation has come it says with the number of any message: it is
// the one that made it load a module, after which it begins again, and asks for the generation
// again (the same function, nlh after replay). No message has that error for itself.
func whole(seq, first uint32, v verdict) bool {
	return seq == first-1 || seq == first && v.errno == syscall.ENOMEM || v.errno == errRestart
}

// outcome joins what the kernel refused and what else went wrong.
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
