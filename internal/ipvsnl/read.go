package ipvsnl

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"
)

// dumpAttempts is how often a dump is tried that is interrupted each time.
const dumpAttempts = 5

// Services returns all services of the network namespace, in the order of their keys.
//
// The kernel hands them out in parts, and counts them to know where it was, so a change by somebody
// else between two parts may hide a service or show it twice. It does not flag that. A dump that
// shows a service twice, or that a kernel flags after all, is repeated, and in the end
// [ErrDumpInterrupted] returned; what is hidden cannot be noticed. One part holds about 50
// services.
func (c *Client) Services(ctx context.Context) ([]ObservedService, error) {
	if err := c.begin(ctx); err != nil {
		return nil, fmt.Errorf("%v: %w", CommandGetService, err)
	}
	defer c.end()
	start := time.Now()
	list, err := dump(ctx, c, CommandGetService, nil, decodeServiceReply,
		func(a, b ObservedService) int { return a.Compare(b.ServiceKey) })
	c.debug(ctx, "dump of services", start, err, slog.Int("services", len(list)))
	return list, err
}

// Service returns the service k. It fails with [ErrNoService].
func (c *Client) Service(ctx context.Context, k ServiceKey) (s ObservedService, err error) {
	if err := k.encodable(); err != nil {
		return ObservedService{}, fmt.Errorf("%v: %w", CommandGetService, err)
	}
	err = c.query(ctx, CommandGetService, 0, func(b []byte) []byte {
		return appendServiceKey(b, k)
	},
		func(cmd uint8, data []byte) (err error) {
			s, err = decodeServiceReply(data)
			return err
		})
	if err != nil {
		return ObservedService{}, err
	}
	return s, nil
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

// Destination returns one destination of the service k. It fails with [ErrNoService] and
// [ErrNoDestination]. The kernel can only list all of them, so this is no cheaper.
func (c *Client) Destination(ctx context.Context, k ServiceKey, d DestinationKey) (
	ObservedDestination, error) {
	list, err := c.Destinations(ctx, k)
	if err != nil {
		return ObservedDestination{}, err
	}
	for _, o := range list {
		if o.DestinationKey == d {
			return o, nil
		}
	}
	return ObservedDestination{}, fmt.Errorf("%v %v of %v: %w", CommandGetDestination, d, k,
		ErrNoDestination)
}

// AllDestinations returns the destinations of each of the services: the list at i is that of
// services[i], in the order of keys. It is empty for a service that does not exist. A socket can
// have one dump at a time, and a dump is of one service, so this takes three system calls for each.
func (c *Client) AllDestinations(ctx context.Context, services []ServiceKey) (
	[][]ObservedDestination, error) {
	lists := make([][]ObservedDestination, len(services))
	for _, k := range services {
		if err := k.encodable(); err != nil {
			return nil, fmt.Errorf("%v: %w", CommandGetDestination, err)
		}
	}
	if err := c.begin(ctx); err != nil {
		return nil, fmt.Errorf("%v: %w", CommandGetDestination, err)
	}
	defer c.end()
	start := time.Now()
	for i, k := range services {
		var err error
		if lists[i], err = c.destinations(ctx, k); err != nil {
			c.debug(ctx, "dump of destinations", start, err, slog.Int("services", i))
			return nil, err
		}
	}
	c.debug(ctx, "dump of destinations", start, nil, slog.Int("services", len(services)))
	return lists, nil
}

// destinations returns the destinations of one service, when it is its turn.
func (c *Client) destinations(ctx context.Context, k ServiceKey) ([]ObservedDestination, error) {
	list, err := dump(ctx, c, CommandGetDestination, func(b []byte) []byte {
		return appendServiceKey(b, k)
	},
		func(data []byte) (ObservedDestination, error) {
			return decodeDestinationReply(data, k.Family)
		},
		func(a, b ObservedDestination) int { return a.Compare(b.DestinationKey) })
	if err != nil {
		return nil, fmt.Errorf("%v: %w", k, err)
	}
	return list, nil
}

// Info returns what the kernel says of its IPVS.
func (c *Client) Info(ctx context.Context) (i Info, err error) {
	err = c.query(ctx, CommandGetInfo, 0, nil, func(_ uint8, data []byte) (err error) {
		i, err = decodeInfo(data)
		return err
	})
	if err != nil {
		return Info{}, err
	}
	return i, nil
}

// Timeouts returns the timeouts of the network namespace.
func (c *Client) Timeouts(ctx context.Context) (t Timeouts, err error) {
	err = c.query(ctx, CommandGetConfig, 0, nil, func(_ uint8, data []byte) (err error) {
		t, err = decodeTimeouts(data)
		return err
	})
	if err != nil {
		return Timeouts{}, err
	}
	return t, nil
}

// dump sends a dump command when it is its turn and returns the objects of the answer in the order
// of compare, which is that of their keys. It starts again while the dump is interrupted, or shows
// an object twice.
func dump[T any](ctx context.Context, c *Client, cmd Command, attributes func([]byte) []byte,
	decode func(data []byte) (T, error), compare func(a, b T) int,
) ([]T, error) {
	for range dumpAttempts {
		var list []T
		err := c.ask(ctx, cmd, flagDump, attributes, func(_ uint8, data []byte) error {
			object, err := decode(data)
			list = append(list, object)
			return err
		})
		if err != nil && !errors.Is(err, ErrDumpInterrupted) {
			return nil, err
		}
		slices.SortFunc(list, compare)
		if err == nil && !repeats(list, compare) {
			return list, nil
		}
	}
	return nil, fmt.Errorf("%v: %d attempts: %w", cmd, dumpAttempts, ErrDumpInterrupted)
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

// decodeServiceReply decodes the attributes of IPVS_CMD_NEW_SERVICE.
func decodeServiceReply(data []byte) (ObservedService, error) {
	a := attrs{what: "reply", rest: data}
	for a.next() {
		if a.typ == cmdAttrService {
			w, err := decodeService(a.data)
			if err != nil {
				return ObservedService{}, err
			}
			return w.observed()
		}
	}
	if a.err == nil {
		a.err = fmt.Errorf("%w: a reply without service", ErrMalformed)
	}
	return ObservedService{}, a.err
}

// decodeDestinationReply decodes the attributes of IPVS_CMD_NEW_DEST about a service of the family
// f.
func decodeDestinationReply(data []byte, f Family) (ObservedDestination, error) {
	a := attrs{what: "reply", rest: data}
	for a.next() {
		if a.typ == cmdAttrDestination {
			w, err := decodeDestination(a.data)
			if err != nil {
				return ObservedDestination{}, err
			}
			return w.observed(f)
		}
	}
	if a.err == nil {
		a.err = fmt.Errorf("%w: a reply without destination", ErrMalformed)
	}
	return ObservedDestination{}, a.err
}
