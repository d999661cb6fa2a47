package conntrack

import (
	"context"
	"fmt"
	"iter"

	"github.com/kernlb/kernlb/internal/rawnl"
)

// FollowOptions say which events are wanted. The zero value means all.
type FollowOptions struct {
	// Types are the wanted types; none means all. EventsLost always comes.
	Types []EventType
	// Filter is compared with events in this process: the kernel sends them all.
	Filter Filter
	// Buffer is the size in bytes of the queue in the kernel, which doubles it. Only waiting events
	// take memory, some 1,280 bytes each. 0 means 4 MiB: 6,000 events. Without CAP_NET_ADMIN in the
	// initial user namespace it is net.core.rmem_max at most.
	Buffer int
}

const (
	followBuffer = 4 << 20
	// eventSize is more than any event needs.
	eventSize = 8 << 10
)

// Follow follows the table until ctx ends, which is not an error. The sequence yields the events
// since Follow was called: they wait in a queue until they are read. One goroutine at a time may
// read it, and one loop can go on after another. An error is the last thing that it yields. To know
// the table and all its later changes, first follow, then list.
//
// With the sysctl nf_conntrack_events at 2, its default since Linux 5.19, the kernel makes events
// only for flows that began while a program on the machine followed. Older flows end without an
// event. At 0, it makes none. Following needs CAP_NET_ADMIN. While it lasts, it slows the kernel
// down: two to four messages for each connection.
func (t *Table) Follow(ctx context.Context, opts FollowOptions) (iter.Seq2[Event, error], error) {
	listener, err := t.listen(opts)
	if err != nil {
		return nil, fmt.Errorf("follow the conntrack table: %w", explain(err))
	}
	context.AfterFunc(ctx, func() { listener.Close() })
	buf := make([]byte, eventSize)
	return func(yield func(Event, error) bool) {
		for ctx.Err() == nil {
			n, err := listener.Receive(buf)
			if err == rawnl.ErrOverflow {
				if !yield(Event{Type: EventsLost}, nil) {
					return
				}
				continue
			}
			if err == nil {
				err = eachEvent(buf[:n], opts.Filter, yield)
			}
			switch {
			case err == errStop || ctx.Err() != nil:
				return
			case err != nil:
				yield(Event{}, fmt.Errorf("follow the conntrack table: %w", explain(err)))
				return
			}
		}
	}, nil
}

// listen opens the queue of events.
func (t *Table) listen(opts FollowOptions) (listener *rawnl.Listener, err error) {
	if _, err := opts.Filter.family(); err != nil {
		return nil, err
	}
	if opts.Buffer < 0 {
		return nil, fmt.Errorf("buffer of %d bytes", opts.Buffer)
	} else if opts.Buffer == 0 {
		opts.Buffer = followBuffer
	}
	groups, err := eventGroups(opts.Types)
	if err != nil {
		return nil, err
	}
	err = t.ns.Do(func() (err error) {
		listener, err = rawnl.Listen(groups, opts.Buffer)
		return err
	})
	return listener, err
}

// eachEvent yields the events of a datagram that the filter wants.
func eachEvent(datagram []byte, filter Filter, yield func(Event, error) bool) error {
	var e Event
	return rawnl.Messages(datagram, func(m rawnl.Message) error {
		err := parseEvent(m, &e, filter.matchOriginal)
		switch {
		case err == errUnwanted || err == nil && !filter.Match(&e.Flow):
			return nil
		case err == nil && !yield(e, nil):
			return errStop
		}
		return err
	})
}
