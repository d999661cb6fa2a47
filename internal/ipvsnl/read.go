package ipvsnl

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/kernlb/kernlb/internal/rawnl"
)

// dumpAttempts is how often a dump is tried that is interrupted each time.
const dumpAttempts = 5

// Services returns all services of the network namespace, in the order of their keys.
//
// The kernel hands them out in parts, and counts them to know where it was, so a change by somebody
// else between two parts may hide a service or show it twice. It does not flag that. A dump that
// shows a service twice, or that a kernel flags after all, is repeated, and in the end
// [rawnl.ErrDumpInterrupted] returned; what is hidden cannot be noticed. One part holds about 50
// services.
func (c *Client) Services(ctx context.Context) ([]ObservedService, error) {
	var req rawnl.Batch
	begin(&req, CommandGetService)
	list, err := dump(ctx, c, &req, parseServiceReply,
		func(a, b ObservedService) int { return a.Compare(b.ServiceKey) })
	return list, reading(err, "list services")
}

// Service returns the service k. It fails with [ErrNoService].
func (c *Client) Service(ctx context.Context, k ServiceKey) (s ObservedService, err error) {
	if err := k.encodable(); err != nil {
		return ObservedService{}, fmt.Errorf("%v: %w", CommandGetService, err)
	}
	var req rawnl.Batch
	begin(&req, CommandGetService)
	putServiceKey(&req, k)
	return query(ctx, c, &req, CommandGetService, parseServiceReply)
}

// Destinations returns the destinations of the service k, in the order of their keys. It fails with
// [ErrNoService]. As for changes by others, see [Client.Services]; one part holds about 55
// destinations.
func (c *Client) Destinations(ctx context.Context, k ServiceKey) ([]ObservedDestination, error) {
	lists, err := c.AllDestinations(ctx, []ServiceKey{k})
	if err != nil {
		return nil, err
	}
	if len(lists[0]) == 0 {
		// The kernel shows the destinations of no service as an empty list (ip_vs_genl_dump_dests).
		_, err = c.Service(ctx, k)
	}
	return lists[0], err
}

// AllDestinations returns the destinations of each of the services: the list at i is that of
// services[i], in the order of keys. It is empty for a service that does not exist. A socket can
// have one dump at a time, and a dump is of one service, so this takes three system calls for each.
func (c *Client) AllDestinations(ctx context.Context, services []ServiceKey) (
	[][]ObservedDestination, error) {
	for _, k := range services {
		if err := k.encodable(); err != nil {
			return nil, fmt.Errorf("list destinations: %w", err)
		}
	}
	lists := make([][]ObservedDestination, len(services))
	var req rawnl.Batch
	for i, k := range services {
		req.Reset()
		begin(&req, CommandGetDestination)
		putServiceKey(&req, k)
		var err error
		lists[i], err = dump(ctx, c, &req,
			func(attrs []byte) (ObservedDestination, error) {
				return parseDestinationReply(attrs, k.Family)
			},
			func(a, b ObservedDestination) int { return a.Compare(b.DestinationKey) })
		if err != nil {
			return nil, reading(err, "list destinations of %v", k)
		}
	}
	return lists, nil
}

// Info returns what the kernel says of its IPVS.
func (c *Client) Info(ctx context.Context) (Info, error) {
	var req rawnl.Batch
	begin(&req, CommandGetInfo)
	return query(ctx, c, &req, CommandGetInfo, parseInfo)
}

// Timeouts returns the timeouts of the network namespace.
func (c *Client) Timeouts(ctx context.Context) (Timeouts, error) {
	var req rawnl.Batch
	begin(&req, CommandGetConfig)
	return query(ctx, c, &req, CommandGetConfig, ParseTimeouts)
}

// query sends a request that is answered by one object.
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

// reading puts what was being read before an error, unless the kernel refused it: that error says
// so itself.
func reading(err error, format string, args ...any) error {
	if err == nil || rawnl.Refusals(err) != nil {
		return err
	}
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), err)
}

// dump sends a request to list objects and returns them in the order of compare, which is that of
// their keys. It starts again while the dump is interrupted, or shows an object twice.
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
		if err == nil && !repeats(list, compare) {
			return list, nil
		}
	}
	return nil, fmt.Errorf("%d attempts: %w", dumpAttempts, rawnl.ErrDumpInterrupted)
}

// repeats reports whether two neighbours in list are equal.
func repeats[T any](list []T, compare func(a, b T) int) bool {
	for i := 1; i < len(list); i++ {
		if compare(list[i-1], list[i]) == 0 {
			return true
		}
	}
	return false
}
