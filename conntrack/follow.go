package conntrack

import (
	"context"
	"fmt"
	"iter"
	"slices"

	"github.com/kernlb/kernlb/internal/rawnl"
)

// FollowOptions select the events. The zero value selects all events.
type FollowOptions struct {
	// Types are the types of events to report; none means all. EventsLost is always reported. The
	// kernel generates no events of other types unless another program listens for them.
	Types []EventType
	// Filter selects the flows to report. The kernel discards events about other protocols and
	// other status bits. This process compares the other fields.
	Filter Filter
	// Rate, if not 0, is the limit of events per second. When it is reached, the socket leaves the
	// kernel's multicast groups until there is room for more events, at random times some 50 ms
	// apart. Meanwhile the kernel generates no events, unless another program follows the table. A
	// burst may bring twice as many events as the limit within a second. Joining a group again
	// needs CAP_NET_ADMIN.
	Rate int
	// Buffer is the size in bytes of the kernel's queue; the kernel doubles it. Only waiting events
	// occupy memory, some 1,280 bytes each. 0 means 4 MiB: 6,000 events. Without CAP_NET_ADMIN in
	// the initial user namespace, the limit is net.core.rmem_max.
	Buffer int
}

const (
	followBuffer = 4 << 20
	// eventSize is more than any event needs.
	eventSize = 8 << 10
)

// Follow follows changes of the table until ctx ends, which is not an error. The sequence yields
// the events since Follow was called: they are queued until they are read. Only one goroutine at a
// time may read the sequence; a second loop may continue after the first. An error is the last
// thing that the sequence yields. To get the table and all later changes, follow first, and then
// list.
//
// If the sysctl nf_conntrack_events is 2, the default since Linux 5.19, the kernel generates events
// only for flows that started while a program on the machine was following. Older flows end without
// an event. If it is 0, the kernel generates no events. Following needs CAP_NET_ADMIN. It costs
// kernel time: two to four messages for each connection.
func (t *Table) Follow(ctx context.Context, opts FollowOptions) (iter.Seq2[Event, error], error) {
	listener, groups, err := t.listen(opts)
	if err != nil {
		return nil, fmt.Errorf("follow the conntrack table: %w", explain(err))
	}
	context.AfterFunc(ctx, func() { listener.Close() })
	buf := make([]byte, eventSize)
	limited := limiter{listener: listener, groups: groups}
	limited.tokens.rate = opts.Rate
	return func(yield func(Event, error) bool) {
		for ctx.Err() == nil {
			n, err := limited.receive(buf)
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

// listen opens the queue of events, and returns it with its multicast groups.
func (t *Table) listen(opts FollowOptions) (listener *rawnl.Listener, groups []uint32, err error) {
	if _, err := opts.Filter.family(); err != nil {
		return nil, nil, err
	}
	if opts.Buffer < 0 || opts.Rate < 0 {
		return nil, nil, fmt.Errorf("buffer of %d bytes, %d events a second", opts.Buffer,
			opts.Rate)
	} else if opts.Buffer == 0 {
		opts.Buffer = followBuffer
	}

	for typ, group := range eventGroups {
		if len(opts.Types) == 0 || slices.Contains(opts.Types, typ) {
			groups = append(groups, group)
		}
	}

	for _, typ := range opts.Types {
		if eventGroups[typ] == 0 && typ != EventsLost {
			return nil, nil, fmt.Errorf("there is no type %q", typ)
		}
	}

	err = t.ns.Do(func() (err error) {
		listener, err = rawnl.Listen(groups, opts.Buffer)
		return err
	})
	if _, mask := opts.Filter.status(); err == nil && (mask != 0 || opts.Filter.Protocol != 0) {
		err = listener.SetFilter(kernelFilter(opts.Filter))
	}
	return listener, groups, err
}

// eachEvent yields those events of a datagram that the filter selects.
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

// EventType is the kind of a change of a flow.
type EventType string

// The types of events.
const (
	FlowNew       EventType = "new"       // the flow was created
	FlowUpdated   EventType = "updated"   // its status, protocol state or mark changed
	FlowDestroyed EventType = "destroyed" // it ended or was deleted
	// EventsLost says that the socket's buffer was full: an unknown number of events is missing
	// here. A program that maintains a copy of the table must list the table again.
	EventsLost EventType = "lost"
)

// Event is one change in the table.
type Event struct {
	Type EventType
	// Flow is the flow at the time of the event, as far as the kernel reports it: older kernels
	// omit the status, the timeout and the protocol state from events about destroyed flows. In
	// EventsLost, the flow is zero.
	Flow Flow
}

// eventGroups are the multicast groups of the types (NFNLGRP_CONNTRACK_NEW, _UPDATE and _DESTROY,
// include/uapi/linux/netfilter/nfnetlink.h).
var eventGroups = map[EventType]uint32{FlowNew: 1, FlowUpdated: 2, FlowDestroyed: 3}

// parseEvent parses a message of the multicast groups into e. It returns errUnwanted if wants
// rejects the flow, see parseFlow.
func parseEvent(m rawnl.Message, e *Event, wants func(*Flow) bool) error {
	switch {
	case m.Subsys != rawnl.SubsysConntrack || m.Type != msgNew && m.Type != msgDelete:
		return fmt.Errorf("%w: an event of type %d of subsystem %d", rawnl.ErrMalformed, m.Type,
			m.Subsys)
	case m.Type == msgDelete:
		e.Type = FlowDestroyed
	case m.Flags&rawnl.FlagCreate != 0:
		e.Type = FlowNew
	default:
		e.Type = FlowUpdated
	}

	return parseFlow(m.Attrs, &e.Flow, wants)
}
