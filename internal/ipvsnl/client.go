package ipvsnl

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/kernlb/kernlb/internal/rawnl"
)

// familyName is the name of the generic netlink family of IPVS (IPVS_GENL_NAME).
const familyName = "IPVS"

// window is how many bytes of commands one system call carries. This is some hundred commands, so
// that Submit checks its context now and then. More in one call is hardly faster: see
// BenchmarkKernelSubmit.
const window = 32 << 10

// Client speaks to the IPVS of one network namespace. Its methods may be called by many goroutines;
// they take turns.
//
// A method checks its context before each system call and while it waits for its turn. A command
// that the kernel has begun cannot be taken back or hurried.
type Client struct{ conn *rawnl.Conn }

// Dial opens a client in the namespace of cfg. It returns [ErrNotSupported] if the kernel has no
// IPVS. If IPVS is a module, the kernel loads it on demand, and the modules of schedulers later.
// This needs modprobe in the initial mount namespace and kernel.modules_disabled = 0 and, before
// Linux 5.16 ("ipvs: autoload ipvs on genl access"), CAP_SYS_MODULE.
//
// Dial itself needs CAP_SYS_ADMIN to enter another network namespace. Every other request,
// including every read, needs CAP_NET_ADMIN in the initial user namespace (GENL_ADMIN_PERM): the
// kernel refuses root of a user namespace with EPERM.
func Dial(ctx context.Context, cfg *rawnl.Config) (*Client, error) {
	var c rawnl.Config
	if cfg != nil {
		c = *cfg
	}
	if c.Limit == 0 {
		c.Limit = window
	}
	conn, err := rawnl.DialGeneric(ctx, familyName, "ip_vs", &c)
	if errors.Is(err, syscall.ENOENT) {
		err = fmt.Errorf("%w: %w", ErrNotSupported, err)
	}
	if err != nil {
		return nil, fmt.Errorf("open an IPVS client: %w", err)
	}
	return &Client{conn}, nil
}

// Close closes the client. A request in progress ends first, or with [rawnl.ErrClosed]. Closing a
// nil client does nothing.
func (c *Client) Close() error {
	if c == nil {
		return nil
	}
	return c.conn.Close()
}

// Submit sends the commands of b. The kernel executes them in their order. IPVS has no
// transactions, so a failed command does not stop the others. The error says which commands failed,
// in the form of [rawnl.Conn.SendAll], and how many were answered if not all were. Commands are
// pipelined; Submit checks ctx after every few hundred.
func (c *Client) Submit(ctx context.Context, b *Batch) error {
	for _, m := range b.modules {
		if err := c.conn.LoadModule(ctx, m); err != nil {
			return err
		}
	}
	_, err := c.conn.SendAll(ctx, &b.wire)
	return err
}

// SetTimeouts sets those timeouts of t that are not zero. A connection gets the new timeout with
// its next packet.
func (c *Client) SetTimeouts(ctx context.Context, t Timeouts) error {
	var req rawnl.Batch
	begin(&req, CommandSetConfig)
	PutTimeouts(&req, t)
	_, err := c.conn.Query(ctx, &req)
	return err
}
