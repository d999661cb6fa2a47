package ipvsnl

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/kernlb/kernlb/internal/rawnl"
)

// dumpAttempts bounds how often an interrupted dump is repeated.
const dumpAttempts = 5

// Services returns all services of the network namespace, in the order of their keys.
//
// The kernel sends them in parts, and finds its place again by counting. So a change by another
// program between two parts may hide a service or show it twice, and the kernel does not flag that.
// A dump that shows a service twice, or that a kernel does flag, is repeated. If this happens again
// and again, Services returns [rawnl.ErrDumpInterrupted]. A hidden service cannot be noticed. One
// part holds about 50 services.
func (c *Client) Services(ctx context.Context) ([]ObservedService, error) {
	var req rawnl.Batch
	begin(&req, CommandGetService)
	list, err := dump(ctx, c, &req, parseServiceReply,
		func(a, b ObservedService) int { return a.Compare(b.ServiceKey) })
	return list, reading(err, "list services")
}

// Service returns the service k. It fails with [ErrNoService].
func (c *Client) Service(ctx context.Context, k ServiceKey) (s ObservedService, err error) {
	var req rawnl.Batch
	begin(&req, CommandGetService)
	putServiceKey(&req, k)
	return query(ctx, c, &req, CommandGetService, parseServiceReply)
}

// Destinations returns the destinations of the service k, in the order of their keys. It fails with
// [ErrNoService]. Changes by other programs have the same effect as in [Client.Services]; one part
// holds about 55 destinations.
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
	var req rawnl.Batch
	begin(&req, CommandGetDestination)
	putServiceKey(&req, k)
	list, err := dump(ctx, c, &req, func(attrs []byte) (ObservedDestination, error) {
		return parseDestinationReply(attrs, k.Family)
	}, func(a, b ObservedDestination) int { return a.Compare(b.DestinationKey) })
	return list, reading(err, "list destinations of %v", k)
}

// Timeouts returns the timeouts of the network namespace.
func (c *Client) Timeouts(ctx context.Context) (Timeouts, error) {
	var req rawnl.Batch
	begin(&req, CommandGetConfig)
	return query(ctx, c, &req, CommandGetConfig, ParseTimeouts)
}

// query sends a request for one object.
func query[T any](ctx context.Context, c *Client, req *rawnl.Batch, cmd Command,
	parse func(attrs []byte) (T, error)) (object T, err error) {
	replies, err := c.conn.Query(ctx, req)
	if err == nil && len(replies) != 1 {
		err = malformed("%d replies", len(replies))
	}
	if err == nil {
		object, err = parse(replies[0].Attrs)
	}
	return object, reading(err, "%v", cmd)
}

// reading adds to an error what was being read. It does not change a refusal by the kernel, which
// says so itself.
func reading(err error, format string, args ...any) error {
	if err == nil || rawnl.Refusals(err) != nil {
		return err
	}
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), err)
}

// dump sends a request to list objects and returns them in the order of compare, which compares
// keys. It starts again if the dump is interrupted, or shows an object twice.
func dump[T any](ctx context.Context, c *Client, req *rawnl.Batch,
	parse func(attrs []byte) (T, error), compare func(a, b T) int,
) ([]T, error) {
	for range dumpAttempts {
		var list []T
		err := c.conn.Dump(ctx, req, func(m rawnl.Message) error {
			object, err := parse(m.Attrs)
			list = append(list, object)
			return err
		})
		if err != nil && !errors.Is(err, rawnl.ErrDumpInterrupted) {
			return nil, err
		}
		slices.SortFunc(list, compare)
		n := len(list)
		list = slices.CompactFunc(list, func(a, b T) bool { return compare(a, b) == 0 })
		if err == nil && len(list) == n {
			return list, nil
		}
	}
	return nil, fmt.Errorf("%d attempts: %w", dumpAttempts, rawnl.ErrDumpInterrupted)
}
