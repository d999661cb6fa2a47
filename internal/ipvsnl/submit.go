package ipvsnl

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"
)

// Submit sends the commands of b, which the kernel carries out in their order. One that fails does
// not stop the others: the error is a [BatchError] that says which did. An invalid batch is not
// sent at all.
//
// Commands are pipelined: as many as the receive queue could hold errors about go to the kernel in
// one system call, up to a window of some hundreds. ctx is looked at between windows.
func (c *Client) Submit(ctx context.Context, b *Batch) error {
	if b.err != nil {
		return b.err
	}
	if b.Len() == 0 {
		return nil
	}
	result := &BatchError{Total: b.Len()}
	start := time.Now()
	if result.Cause = c.begin(ctx); result.Cause == nil {
		result.Cause = c.submit(ctx, b, result)
		c.end()
	}
	err := result.err()
	c.debug(ctx, "submit", start, err, slog.Int("commands", b.Len()), slog.Int("bytes", len(b.buf)))
	return err
}

// err returns e if there is something to say.
func (e *BatchError) err() error {
	if e.Cause == nil && len(e.Failed) == 0 {
		return nil
	}
	return e
}

// submit is Submit when it is its turn.
func (c *Client) submit(ctx context.Context, b *Batch, result *BatchError) error {
	for _, m := range b.modules {
		if !slices.Contains(c.loaded, m) {
			c.transport.LoadModule(m)
			c.loaded = append(c.loaded, m)
		}
	}
	for result.Answered < b.Len() {
		if err := c.proceed(ctx); err != nil {
			return err
		}
		end := c.windowEnd(b, result.Answered)
		if err := c.submitWindow(b, result.Answered, end, result); err != nil {
			return err
		}
		result.Answered = end
	}
	return nil
}

// windowEnd returns where the commands that go into one request with command begin end: at least
// one.
func (c *Client) windowEnd(b *Batch, begin int) int {
	bytes, _ := c.transport.Limits()
	end := begin + 1
	for end < b.Len() && end-begin < c.window && b.endOf(end)-b.at[begin] <= bytes {
		end++
	}
	return end
}

// submitWindow sends the commands from begin to end in one request and matches the answers to them
// by their sequence numbers. Only the last command asks for an acknowledgement. Failures are told
// unasked, in the order of the commands, so when that acknowledgement comes, those without an
// answer have succeeded (netlink_rcv_skb in net/netlink/af_netlink.c); and if an answer could not
// be queued, the socket says so.
func (c *Client) submitWindow(b *Batch, begin, end int, result *BatchError) error {
	first := c.reserve(end - begin)
	last := first + uint32(end-begin-1)
	for i := begin; i < end; i++ {
		stamp(b.buf[b.at[i]:], c.family, first+uint32(i-begin))
	}
	flags := b.buf[b.at[end-1]+6:]
	native.PutUint16(flags, ackFlags)
	defer native.PutUint16(flags, flagRequest)

	return c.transport.RoundTrip(b.buf[b.at[begin]:b.endOf(end-1)],
		func(data []byte) (done bool, err error) {
			for len(data) > 0 {
				var m message
				if m, data, err = nextMessage(data); err != nil {
					return false, err
				}
				if m.typ != typeError || m.seq-first > last-first {
					continue
				}
				v, err := m.verdict()
				if err != nil {
					return false, err
				}
				if v.errno != 0 {
					result.Failed = append(result.Failed, b.failure(begin+int(m.seq-first), v))
				}
				done = done || m.seq == last
			}
			return done, nil
		})
}

// Flush removes all services of the network namespace, whoever made them.
func (c *Client) Flush(ctx context.Context) error {
	return c.do(ctx, CommandFlush, nil)
}

// Zero sets the statistics of all services and destinations to zero, and those of the namespace.
func (c *Client) Zero(ctx context.Context) error {
	return c.do(ctx, CommandZero, nil)
}

// ZeroService sets the statistics of the service k and of its destinations to zero. It fails with
// [ErrNoService].
func (c *Client) ZeroService(ctx context.Context, k ServiceKey) error {
	if err := k.encodable(); err != nil {
		return fmt.Errorf("%v: %w", CommandZero, err)
	}
	return c.do(ctx, CommandZero, func(b []byte) []byte { return appendServiceKey(b, k) })
}

// SetTimeouts sets those timeouts of t that are not zero. It applies to connections from their next
// packet on.
func (c *Client) SetTimeouts(ctx context.Context, t Timeouts) error {
	if err := t.Validate(); err != nil {
		return fmt.Errorf("%v: %w", CommandSetConfig, err)
	}
	return c.do(ctx, CommandSetConfig, func(b []byte) []byte { return appendTimeouts(b, t) })
}

// do sends one command that is answered by an acknowledgement. A nil attributes means none.
func (c *Client) do(ctx context.Context, cmd Command, attributes func([]byte) []byte) error {
	return c.query(ctx, cmd, flagAck, attributes, func(uint8, []byte) error { return nil })
}

// query sends one command and gives each reply to take.
func (c *Client) query(ctx context.Context, cmd Command, flags uint16,
	attributes func([]byte) []byte,
	take func(cmd uint8, data []byte) error,
) error {
	if err := c.begin(ctx); err != nil {
		return fmt.Errorf("%v: %w", cmd, err)
	}
	defer c.end()
	start := time.Now()
	err := c.ask(ctx, cmd, flags, attributes, take)
	c.debug(ctx, cmd.String(), start, err)
	return err
}

// ask is query when it is its turn.
func (c *Client) ask(ctx context.Context, cmd Command, flags uint16, attributes func([]byte) []byte,
	take func(cmd uint8, data []byte) error,
) error {
	c.request = appendFrame(c.request[:0], flagRequest|flags, uint8(cmd))
	if attributes != nil {
		c.request = attributes(c.request)
	}
	c.request = endMessage(c.request, 0)
	err := c.exchange(ctx, c.family, c.request, take)
	// nolint:errorlint // exchange does not wrap it
	if _, refused := err.(*CommandError); err != nil && !refused {
		return fmt.Errorf("%v: %w", cmd, err)
	}
	return err
}
