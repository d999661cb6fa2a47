package netnstest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kernlb/kernlb/servicemodel"
)

// maxReportedErrors bounds ConnsReport.Errors.
const maxReportedErrors = 10

// Conns keeps TCP connections open, to show which connections survive a change. Its methods must
// not be called concurrently.
type Conns struct {
	ns      *NS
	living  []*conn
	opened  []io.Closer
	servers map[string]int
	rounds  int
}

type conn struct {
	stream interface {
		io.ReadWriteCloser
		SetDeadline(time.Time) error
	}
	local netip.AddrPort
}

// ConnsReport sums up rounds of [Conns.Ping].
type ConnsReport struct {
	// Rounds is the number of rounds.
	Rounds int
	// Answered counts the pings that were echoed.
	Answered int
	// Reset counts connections that were reset, Closed connections that the server closed, and
	// Silent connections that did not get the expected answer in time. Each is counted once,
	// because a dead connection is not tried again.
	Reset, Closed, Silent int
	// Errors are the first few errors, one for each connection that died.
	Errors []error
}

// Lost returns the number of connections that died.
func (r ConnsReport) Lost() int { return r.Reset + r.Closed + r.Silent }

// OpenConns opens count connections from a host to this package's servers behind an address, and
// waits for the greeting of each. If a connection cannot be opened, it closes all connections and
// returns an error. Each connection uses two file descriptors of this process, one for each end.
func OpenConns(ctx context.Context, from *Host, to netip.AddrPort, count int) (*Conns, error) {
	// The timeout allows the kernel to send a lost SYN again, after a second.
	p := Probe{From: from, Proto: servicemodel.TCP, To: to, Timeout: 5 * time.Second}
	if err := p.check(); err != nil {
		return nil, fmt.Errorf("netnstest: open connections: %w", err)
	}
	c := &Conns{ns: from.NS, servers: map[string]int{}}
	if err := c.ns.own(c); err != nil {
		return nil, fmt.Errorf("netnstest: %s: open connections: %w", from.NS.name, err)
	}
	conns, outcomes := make([]*conn, count), make([]Outcome, count)
	inParallel(count, func(i int) { conns[i], outcomes[i] = p.dial(ctx) })
	var errs []error
	for i, o := range outcomes {
		if o.Kind == Answered {
			c.living, c.opened = append(c.living, conns[i]), append(c.opened, conns[i].stream)
			c.servers[o.Server]++
		} else if len(errs) < maxReportedErrors {
			errs = append(errs, fmt.Errorf("netnstest: open connection %d of %d from %s to %s: %s",
				i+1, count, from.Name, to, o))
		}
	}

	if len(errs) > 0 {
		return nil, errors.Join(append(errs, c.Close())...)
	}
	return c, nil
}

// Servers returns the number of connections to each server, by name.
func (c *Conns) Servers() map[string]int { return c.servers }

// Ping sends a line on every living connection, and waits until each line is echoed or the timeout
// has passed.
func (c *Conns) Ping(timeout time.Duration) ConnsReport {
	c.rounds++
	r := ConnsReport{Rounds: 1}
	deadline := time.Now().Add(timeout)
	asked, errs := make([][]byte, len(c.living)), make([]error, len(c.living))
	for i, conn := range c.living {
		asked[i] = fmt.Appendf(nil, "ping %d of %s\n", c.rounds, conn.local)
		if errs[i] = conn.stream.SetDeadline(deadline); errs[i] == nil {
			_, errs[i] = conn.stream.Write(asked[i])
		}
	}

	living := c.living[:0]
	for i, conn := range c.living {
		if errs[i] == nil {
			errs[i] = conn.hear(asked[i])
		}
		if errs[i] == nil {
			r.Answered++
			living = append(living, conn)
			continue
		}

		r.count(fmt.Errorf("connection from %s: %w", conn.local, errs[i]))
	}

	c.living = living
	return r
}

// hear reads the echo of the line asked.
func (c *conn) hear(asked []byte) error {
	heard := make([]byte, len(asked))
	if _, err := io.ReadFull(c.stream, heard); err != nil {
		return err
	}
	if !bytes.Equal(heard, asked) {
		return fmt.Errorf("asked %q, heard %q", asked, heard)
	}
	return nil
}

func (r *ConnsReport) count(err error) {
	switch {
	case isReset(err):
		r.Reset++
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, os.ErrClosed):
		r.Closed++
	default:
		r.Silent++
	}

	if len(r.Errors) < maxReportedErrors {
		r.Errors = append(r.Errors, err)
	}
}

// Watch pings all connections at the interval until ctx ends, at least once, and returns the sum of
// the reports. The timeout applies to each ping.
func (c *Conns) Watch(ctx context.Context, interval, timeout time.Duration) ConnsReport {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	var total ConnsReport
	for {
		r := c.Ping(timeout)
		total.Rounds += r.Rounds
		total.Answered += r.Answered
		total.Reset += r.Reset
		total.Closed += r.Closed
		total.Silent += r.Silent
		total.Errors = append(total.Errors,
			r.Errors[:min(len(r.Errors), maxReportedErrors-len(total.Errors))]...)
		select {
		case <-ctx.Done():
			return total
		case <-ticker.C:
		}
	}
}

// Close resets the connections.
func (c *Conns) Close() error {
	c.ns.disown(c)
	var errs []error
	for _, o := range c.opened {
		errs = append(errs, o.Close())
	}
	c.opened, c.living = nil, nil
	return errors.Join(errs...)
}

// inParallel calls f for 0 to n-1, a limited number at a time.
func inParallel(n int, f func(i int)) {
	var begun atomic.Int64
	var workers sync.WaitGroup
	for range min(probesAtOnce, n) {
		workers.Go(func() {
			for i := int(begun.Add(1)); i <= n; i = int(begun.Add(1)) {
				f(i - 1)
			}
		})
	}

	workers.Wait()
}
