package ipvsnl

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"syscall"
	"time"
)

// maxWindow bounds how many commands one system call carries, so that a context is looked at now
// and then. More in one call is hardly faster: see BenchmarkKernelSubmit.
const maxWindow = 256

// Client speaks to the IPVS of one network namespace. Its methods may be called by many goroutines;
// they take turns.
//
// A context is looked at before each system call and while waiting for a turn. What the kernel has
// begun cannot be taken back or hurried.
type Client struct {
	transport Transport
	log       *slog.Logger
	family    uint16        // number of the generic netlink family
	window    int           // how many commands go into one request
	turn      chan struct{} // holds a token while nobody uses what follows
	closed    atomic.Bool

	seq     uint32   // the next sequence number
	loaded  []string // modules that the transport was asked to load
	request []byte   // for requests that the client makes itself
}

// Dial opens a client in the namespace of cfg. It returns [ErrNotSupported] if the kernel has no
// IPVS. A kernel that has it as a module loads that by itself when asked, and the modules of
// schedulers later: that takes no privilege from Linux 5.16 on and CAP_SYS_MODULE before, and
// always modprobe in the initial mount namespace and kernel.modules_disabled = 0.
//
// Dial itself needs CAP_SYS_ADMIN to enter another network namespace. Every other request, reading
// too, needs CAP_NET_ADMIN in the initial user namespace (GENL_ADMIN_PERM): root of a user
// namespace is refused with EPERM.
func Dial(ctx context.Context, cfg *Config) (*Client, error) {
	if cfg == nil {
		cfg = &Config{}
	}
	if cfg.NetNS < 0 {
		return nil, invalid("IPVS client", "NetNS", "%d is not a file descriptor", cfg.NetNS)
	}
	t, err := openTransport(cfg.NetNS)
	if err != nil {
		return nil, fmt.Errorf("open an IPVS client: %w", err)
	}
	return NewClient(ctx, t, cfg.Logger)
}

// NewClient returns a client over t, which it closes if it fails. A nil log means silence.
func NewClient(ctx context.Context, t Transport, log *slog.Logger) (*Client, error) {
	_, answers := t.Limits()
	c := &Client{transport: t, log: log, window: max(1, min(maxWindow, answers)),
		turn: make(chan struct{}, 1), seq: 1}
	c.turn <- struct{}{}
	err := c.findFamily(ctx)
	if errors.Is(err, ErrNotSupported) {
		// Before Linux 5.16 ip_vs does not say that it is the family ("ipvs: autoload ipvs on genl
		// access").
		t.LoadModule("ip_vs")
		err = c.findFamily(ctx)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open an IPVS client: %w", err), t.Close())
	}
	return c, nil
}

// Close closes the client. A request in progress ends first, or with [ErrClosed].
func (c *Client) Close() error {
	if c.closed.Swap(true) {
		return nil
	}
	<-c.turn
	defer c.end()
	return c.transport.Close()
}

// begin waits for its turn to use the connection. Each successful begin is followed by an end.
func (c *Client) begin(ctx context.Context) error {
	select {
	case <-c.turn:
	case <-ctx.Done():
		return ctx.Err()
	}
	err := c.proceed(ctx)
	if err != nil {
		c.end()
	}
	return err
}

// end lets the next one use the connection.
func (c *Client) end() { c.turn <- struct{}{} }

// proceed reports why the next system call should not be made.
func (c *Client) proceed(ctx context.Context) error {
	if c.closed.Load() {
		return ErrClosed
	}
	return ctx.Err()
}

// reserve returns the first of n consecutive sequence numbers.
func (c *Client) reserve(n int) uint32 {
	first := c.seq
	c.seq += uint32(n)
	return first
}

// findFamily asks the controller for the number of the IPVS family.
func (c *Client) findFamily(ctx context.Context) error {
	err := c.exchange(ctx, typeControl, appendGetFamily(nil), func(cmd uint8, data []byte) error {
		name, id, err := decodeFamily(data)
		if err != nil {
			return err
		}
		if cmd == ctrlNewFamily && name == familyName {
			c.family = id
		}
		return nil
	})
	var refusal *CommandError
	switch {
	case errors.As(err, &refusal) && refusal.Errno == syscall.ENOENT:
		return ErrNotSupported
	case errors.As(err, &refusal):
		return fmt.Errorf("find the generic netlink family %s: %w", familyName, refusal.Errno)
	case err != nil:
		return fmt.Errorf("find the generic netlink family %s: %w", familyName, err)
	case c.family <= typeControl:
		return fmt.Errorf("find the generic netlink family %s: %w: its number is %d", familyName,
			ErrMalformed, c.family)
	}
	return nil
}

// exchange sends a request of one message to the family typ and gives each reply to take, until the
// kernel has said all. It is for requests that are not part of a batch.
func (c *Client) exchange(ctx context.Context, typ uint16, request []byte,
	take func(cmd uint8, data []byte) error) error {
	if err := c.proceed(ctx); err != nil {
		return err
	}
	seq := c.reserve(1)
	stamp(request, typ, seq)
	flags := native.Uint16(request[6:])
	x := exchange{request: request, typ: typ, seq: seq, take: take}
	x.single = flags&(flagDump|flagAck) == 0
	return c.transport.RoundTrip(request, func(datagram []byte) (bool, error) {
		if x.dumping {
			if err := c.proceed(ctx); err != nil {
				return false, err
			}
		}
		return x.datagram(datagram)
	})
}

// exchange is a request of one message whose answer is being read.
type exchange struct {
	request []byte
	typ     uint16
	seq     uint32
	take    func(cmd uint8, data []byte) error
	single  bool // the answer is one message, without an acknowledgement
	dumping bool // there has been a part of a dump
}

// datagram works on one datagram of the answer and reports whether it was the last.
func (x *exchange) datagram(data []byte) (done bool, err error) {
	for len(data) > 0 && !done {
		var m message
		if m, data, err = nextMessage(data); err != nil {
			return false, err
		}
		if m.seq != x.seq {
			continue
		}
		if done, err = x.message(m); err != nil {
			return false, err
		}
	}
	return done, nil
}

// message works on one message of the answer and reports whether it was the last.
func (x *exchange) message(m message) (done bool, err error) {
	if m.flags&flagInterrupted != 0 && (m.typ == typeDone || m.typ == x.typ) {
		return false, ErrDumpInterrupted
	}
	switch m.typ {
	case typeError, typeDone:
		v, err := m.verdict()
		if err == nil && v.errno != 0 {
			e := &CommandError{Errno: v.errno, Text: v.text}
			e.Command, e.Service, e.Destination = describe(x.request)
			err = e
		}
		return true, err
	case x.typ:
		x.dumping = x.dumping || m.flags&flagMulti != 0
		cmd, data, err := m.command()
		if err == nil {
			err = x.take(cmd, data)
		}
		return x.single, err
	}
	return false, nil
}

// debug logs one request.
func (c *Client) debug(ctx context.Context, what string, start time.Time, err error,
	details ...slog.Attr) {
	if c.log == nil || !c.log.Enabled(ctx, slog.LevelDebug) {
		return
	}
	details = append(details, slog.Duration("took", time.Since(start)))
	if err != nil {
		details = append(details, slog.Any("error", err))
	}
	c.log.LogAttrs(ctx, slog.LevelDebug, "ipvs "+what, details...)
}
