package conntrack

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"syscall"
	"time"

	"github.com/mdlayher/netlink"

	"github.com/kernlb/kernlb/internal/nfnl"
)

// EventType says what happened to a flow.
type EventType uint8

// The types of events.
const (
	FlowNew       EventType = iota // the flow was made
	FlowUpdated                    // its status, protocol state or mark changed
	FlowDestroyed                  // it ended or was deleted
	// EventsLost says that the kernel had more events than the buffer had room for: an unknown
	// number is missing here. Whoever keeps a picture of the table must list it anew.
	EventsLost
)

// String returns "new", "updated", "destroyed" or "lost".
func (t EventType) String() string {
	switch t {
	case FlowNew:
		return "new"
	case FlowUpdated:
		return "updated"
	case FlowDestroyed:
		return "destroyed"
	case EventsLost:
		return "lost"
	}
	return fmt.Sprintf("event %d", uint8(t))
}

// Event is one thing that happened in the table.
type Event struct {
	Type EventType
	// Flow is as it was then, as far as the kernel says: older kernels leave the status, the
	// timeout and the protocol state out of events about destroyed flows. It is zero in EventsLost.
	Flow Flow
}

// FollowOptions say which events are wanted. The zero value wants all.
type FollowOptions struct {
	// Types are the types wanted; none means all. EventsLost always comes.
	Types []EventType
	// Filter is compared with what events carry, here in the process: the kernel sends them all.
	Filter Filter
	// Buffer is the size in bytes of the queue in the kernel. 0 means 4 MiB, some 10,000 events.
	Buffer int
}

const (
	netlinkNetfilter = 12 // NETLINK_NETFILTER
	followBuffer     = 4 << 20
	// eventSize is larger than any event.
	eventSize = 8 << 10
)

// Follower receives events from the moment it was made. What happens before they are read waits in
// its buffer.
type Follower struct {
	conn   *netlink.Conn
	filter Filter
}

// Follow begins to follow the table. To know the table and all that happens to it afterwards, first
// follow, then list.
//
// The kernel makes events only for flows that began while somebody on the machine followed: with
// the sysctl nf_conntrack_events at 2, its default since Linux 5.19, older flows end without one.
// It needs CAP_NET_ADMIN, and slows the kernel down as long as it goes on: two to four messages for
// each connection.
func (t *Table) Follow(opts FollowOptions) (*Follower, error) {
	groups, err := eventGroups(opts.Types)
	if err != nil {
		return nil, fmt.Errorf("follow the conntrack table: %w", err)
	}
	if _, err := opts.Filter.family(); err != nil {
		return nil, fmt.Errorf("follow the conntrack table: %w", err)
	}
	var conn *netlink.Conn
	err = t.ns.Do(func() (err error) {
		conn, err = netlink.Dial(netlinkNetfilter, &netlink.Config{MessageBufferSize: eventSize})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("follow the conntrack table: %w", explain(err))
	}
	size := opts.Buffer
	if size == 0 {
		size = followBuffer
	}
	err = conn.SetReadBuffer(size)
	for _, g := range groups {
		err = errors.Join(err, conn.JoinGroup(g))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("follow the conntrack table: %w", explain(err)),
			conn.Close())
	}
	return &Follower{conn: conn, filter: opts.Filter}, nil
}

// eventGroups returns the multicast groups of the types (NFNLGRP_CONNTRACK_NEW, _UPDATE and
// _DESTROY, include/uapi/linux/netfilter/nfnetlink.h).
func eventGroups(types []EventType) ([]uint32, error) {
	if len(types) == 0 {
		types = []EventType{FlowNew, FlowUpdated, FlowDestroyed}
	}
	var groups []uint32
	for _, t := range types {
		switch t {
		case FlowNew, FlowUpdated, FlowDestroyed:
			groups = append(groups, uint32(t)+1)
		case EventsLost:
		default:
			return nil, fmt.Errorf("there is no type %s", t)
		}
	}
	return groups, nil
}

// Close ends the following. Sequences in use end with [ErrClosed].
func (f *Follower) Close() error { return f.conn.Close() }

// Events returns the events as they come, until ctx ends, which is not an error. An error is the
// last thing it yields. One sequence can be used after another, but only one at a time.
func (f *Follower) Events(ctx context.Context) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		if err := f.run(ctx, yield); err != nil && ctx.Err() == nil {
			yield(Event{}, fmt.Errorf("follow the conntrack table: %w", explain(err)))
		}
	}
}

func (f *Follower) run(ctx context.Context, yield func(Event, error) bool) error {
	if err := f.conn.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(done)
		// nolint:errcheck // fails only if the connection is closed
		f.conn.SetReadDeadline(time.Unix(1, 0))
	})
	defer func() {
		if !stop() {
			<-done // the deadline is set; the next sequence can take it away
		}
	}()
	for ctx.Err() == nil {
		messages, err := f.conn.Receive()
		switch {
		case errors.Is(err, syscall.ENOBUFS):
			if !yield(Event{Type: EventsLost}, nil) {
				return nil
			}
		case errors.Is(err, os.ErrClosed), errors.Is(err, syscall.EBADF):
			return ErrClosed
		case err != nil:
			return err
		}
		for _, m := range messages {
			e, err := parseEvent(m)
			if err != nil {
				return err
			}
			if f.filter.Match(&e.Flow) && !yield(e, nil) {
				return nil
			}
		}
	}
	return nil
}

// parseEvent parses a message of the multicast groups.
func parseEvent(m netlink.Message) (e Event, err error) {
	const nfgenmsg = 4 // sizeof(struct nfgenmsg)
	if len(m.Data) < nfgenmsg {
		return e, fmt.Errorf("%w: an event of %d bytes", nfnl.ErrMalformed, len(m.Data))
	}
	switch uint8(m.Header.Type) {
	case msgDelete:
		e.Type = FlowDestroyed
	case msgNew:
		e.Type = FlowUpdated
		if m.Header.Flags&netlink.Create != 0 {
			e.Type = FlowNew
		}
	default:
		return e, fmt.Errorf("%w: an event of type %d", nfnl.ErrMalformed, m.Header.Type)
	}
	err = parseFlow(m.Data[nfgenmsg:], &e.Flow, wantAll)
	return e, err
}
