package ipvsnl

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"

	"github.com/kernlb/kernlb/internal/rawnl"
)

// familyName is the name of the generic netlink family of IPVS (IPVS_GENL_NAME).
const familyName = "IPVS"

// window is the number of bytes of commands in one system call. This is some hundred commands, so
// that Submit checks its context now and then. A larger window is hardly faster: see
// BenchmarkKernelSubmit.
const window = 32 << 10

// Client talks to the IPVS of one network namespace. Its methods may be called by many goroutines;
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

// Submit sends commands. The kernel executes them in their order. IPVS has no transactions, so a
// failed command does not stop the others. The error names the failed commands, in the form of
// [rawnl.Conn.SendAll], and the number of answered commands if not all were answered. Commands are
// pipelined; Submit checks ctx after every few hundred commands.
func (c *Client) Submit(ctx context.Context, ops ...Op) error {
	var b rawnl.Batch
	for i := range ops {
		if m := ops[i].module(); m != "" {
			if err := c.conn.LoadModule(ctx, m); err != nil {
				return err
			}
		}

		ops[i].put(&b)
	}

	_, err := c.conn.SendAll(ctx, &b, nil)
	return err
}

// SetTimeouts sets the timeouts of t that are not zero. A connection gets the new timeout with its
// next packet.
func (c *Client) SetTimeouts(ctx context.Context, t Timeouts) error {
	req := request(CommandSetConfig, ServiceKey{})
	PutTimeouts(req, t)
	_, err := c.conn.Query(ctx, req)
	return err
}

// request returns a message about a service, or about no service if the key is zero.
func request(cmd Command, k ServiceKey) *rawnl.Batch {
	o, b := on(cmd, k, Destination{}), &rawnl.Batch{}
	o.put(b)
	return b
}

// dumpAttempts limits the number of attempts at a dump that is interrupted.
const dumpAttempts = 5

// Services returns all services of the network namespace, in the order of their keys.
//
// The kernel sends services in parts, and finds its place again by counting. Kernels with one table
// of services count the services of all network namespaces (ip_vs_genl_dump_services). So a service
// that is removed between two parts, here or in another namespace, can hide services that stay, and
// the kernel does not flag that. Services therefore lists until two lists in a row have the same
// services, at most dumpAttempts times, and asks for each service that only an earlier list has. It
// cannot notice a service that all lists miss.
func (c *Client) Services(ctx context.Context) ([]ObservedService, error) {
	list, err := c.services(ctx)
	return list, reading(err, "list services")
}

func (c *Client) services(ctx context.Context) (list []ObservedService, err error) {
	req := request(CommandGetService, ServiceKey{})
	compare := func(a, b ObservedService) int { return a.Compare(b.ServiceKey) }
	same := func(a, b ObservedService) bool { return compare(a, b) == 0 }
	missing := map[ServiceKey]bool{} // from the last list
	for i := range dumpAttempts {
		before := list
		if list, _, err = dump(ctx, c, req, parseServiceReply, compare); err != nil {
			return nil, err
		}
		for _, s := range before {
			missing[s.ServiceKey] = true
		}
		for _, s := range list {
			delete(missing, s.ServiceKey)
		}
		if i > 0 && slices.EqualFunc(before, list, same) {
			break
		}
	}

	for k := range missing {
		s, err := c.Service(ctx, k)
		if errors.Is(err, ErrNoService) {
			continue
		}
		if err != nil {
			return nil, err
		}
		list = append(list, s)
	}

	slices.SortFunc(list, compare)
	return list, nil
}

// Service returns the service k. It fails with [ErrNoService].
func (c *Client) Service(ctx context.Context, k ServiceKey) (s ObservedService, err error) {
	return query(ctx, c, CommandGetService, k, parseServiceReply)
}

// Destinations returns the destinations of the service k, in the order of their keys. It fails with
// [ErrNoService].
//
// The kernel sends destinations in parts of about 55. If another program changes the service
// between two parts, the dump may hide a destination or show it twice, and the kernel does not flag
// that. A list that shows a destination twice, or that the kernel flags, is read again. If this
// happens again and again, Destinations returns [rawnl.ErrDumpInterrupted]. A hidden destination
// cannot be noticed.
func (c *Client) Destinations(ctx context.Context, k ServiceKey) ([]ObservedDestination, error) {
	list, err := c.DestinationsIf(ctx, k)
	if err == nil && len(list) == 0 {
		// For a service that does not exist, the kernel returns an empty list
		// (ip_vs_genl_dump_dests).
		_, err = c.Service(ctx, k)
	}

	return list, err
}

// DestinationsIf is [Client.Destinations], but returns an empty list if the service does not exist.
// This takes three system calls, because a dump covers one service, and a socket can have only one
// dump at a time.
func (c *Client) DestinationsIf(ctx context.Context, k ServiceKey) ([]ObservedDestination, error) {
	parse := func(attrs []byte) (ObservedDestination, error) {
		return parseDestinationReply(attrs, k.Family)
	}
	compare := func(a, b ObservedDestination) int { return a.Compare(b.DestinationKey) }
	for range dumpAttempts {
		list, twice, err := dump(ctx, c, request(CommandGetDestination, k), parse, compare)
		if err != nil || !twice {
			return list, reading(err, "list destinations of %v", k)
		}
	}

	return nil, reading(errInterrupted, "list destinations of %v", k)
}

// Timeouts returns the timeouts of the network namespace.
func (c *Client) Timeouts(ctx context.Context) (Timeouts, error) {
	return query(ctx, c, CommandGetConfig, ServiceKey{}, ParseTimeouts)
}

// query sends a request for one object.
func query[T any](ctx context.Context, c *Client, cmd Command, k ServiceKey,
	parse func(attrs []byte) (T, error)) (object T, err error) {
	replies, err := c.conn.Query(ctx, request(cmd, k))
	if err == nil && len(replies) != 1 {
		err = malformed("%d replies", len(replies))
	}
	if err == nil {
		object, err = parse(replies[0].Attrs)
	}
	return object, reading(err, "%v", cmd)
}

// reading adds the object of a reading to an error. It does not change a refusal by the kernel,
// which already names the object.
func reading(err error, format string, args ...any) error {
	if err == nil || rawnl.Refusals(err) != nil {
		return err
	}
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), err)
}

// errInterrupted ends the attempts to read a list.
var errInterrupted = fmt.Errorf("%d attempts: %w", dumpAttempts, rawnl.ErrDumpInterrupted)

// dump sends a request to list objects and returns them in the order of compare, which compares
// keys, each once. It starts again if the dump is interrupted. twice reports whether the dump
// showed an object twice.
func dump[T any](ctx context.Context, c *Client, req *rawnl.Batch,
	parse func(attrs []byte) (T, error), compare func(a, b T) int,
) (list []T, twice bool, err error) {
	for range dumpAttempts {
		list = nil
		err := c.conn.Dump(ctx, req, func(m rawnl.Message) error {
			object, err := parse(m.Attrs)
			list = append(list, object)
			return err
		})
		if errors.Is(err, rawnl.ErrDumpInterrupted) {
			continue
		}
		if err != nil {
			return nil, false, err
		}
		slices.SortFunc(list, compare)
		n := len(list)
		list = slices.CompactFunc(list, func(a, b T) bool { return compare(a, b) == 0 })
		return list, len(list) < n, nil
	}

	return nil, false, errInterrupted
}
