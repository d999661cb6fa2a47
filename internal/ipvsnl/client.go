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

// window is how many bytes of commands one system call carries, some hundred commands, so that a
// context is looked at now and then. More in one call is hardly faster: see BenchmarkKernelSubmit.
const window = 32 << 10

// Client speaks to the IPVS of one network namespace. Its methods may be called by many goroutines;
// they take turns.
//
// A context is looked at before each system call and while waiting for a turn. What the kernel has
// begun cannot be taken back or hurried.
type Client struct{ conn *rawnl.Conn }

// Dial opens a client in the namespace of cfg. It returns [ErrNotSupported] if the kernel has no
// IPVS. A kernel that has it as a module loads that by itself when asked, and the modules of
// schedulers later: that takes no privilege from Linux 5.16 on ("ipvs: autoload ipvs on genl
// access") and CAP_SYS_MODULE before, and always modprobe in the initial mount namespace and
// kernel.modules_disabled = 0.
//
// Dial itself needs CAP_SYS_ADMIN to enter another network namespace. Every other request, reading
// too, needs CAP_NET_ADMIN in the initial user namespace (GENL_ADMIN_PERM): root of a user
// namespace is refused with EPERM.
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

// Close closes the client. A request in progress ends first, or with [rawnl.ErrClosed]. Nil is
// closed.
func (c *Client) Close() error {
	if c == nil {
		return nil
	}
	return c.conn.Close()
}

// Submit sends the commands of b, which the kernel carries out in their order. One that fails does
// not stop the others, for IPVS has no transactions: the error says which did, as that of
// [rawnl.Conn.SendAll] does, and how many were answered if not all were. An invalid batch is not
// sent at all. Commands are pipelined; ctx is looked at after every few hundred.
func (c *Client) Submit(ctx context.Context, b *Batch) error {
	if b.err != nil {
		return b.err
	}
	for _, m := range b.modules {
		if err := c.conn.LoadModule(ctx, m); err != nil {
			return err
		}
	}
	_, err := c.conn.SendAll(ctx, &b.wire)
	return err
}

// SetTimeouts sets those timeouts of t that are not zero. It applies to connections from their next
// packet on.
func (c *Client) SetTimeouts(ctx context.Context, t Timeouts) error {
	if err := t.Validate(); err != nil {
		return fmt.Errorf("%v: %w", CommandSetConfig, err)
	}
	var req rawnl.Batch
	begin(&req, CommandSetConfig)
	PutTimeouts(&req, t)
	_, err := c.conn.Query(ctx, &req)
	return err
}
