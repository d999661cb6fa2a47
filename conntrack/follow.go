package conntrack

import (
	"context"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kernlb/kernlb/internal/rawnl"
)

// FollowOptions say which events are wanted. The zero value means all.
type FollowOptions struct {
	// Types are the wanted types; none means all. EventsLost always comes.
	Types []EventType
	// Protocols are the wanted protocols of flows; none means all. The kernel makes events of other
	// protocols, too, but drops them at the socket (SO_ATTACH_FILTER): they take no room in the
	// queue and no time of the process.
	Protocols []Protocol
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
	// eventSpace is less than the kernel accounts for any waiting event.
	eventSpace = 512
)

// Follower receives events from the moment of its creation. Events wait in its buffer until they
// are read. Only one goroutine at a time may use Events or Drain; Close may be called at any time.
type Follower struct {
	listener *rawnl.Listener
	opts     FollowOptions
	buf      [eventSize]byte
	event    Event // the event that Drain passes on
}

// Follow begins to follow the table. To know the table and all its later changes, first follow,
// then list.
//
// With the sysctl nf_conntrack_events at 2, its default since Linux 5.19, the kernel makes events
// only for flows that began while a program on the machine followed. Older flows end without an
// event. Following needs CAP_NET_ADMIN. While it lasts, it slows the kernel down: two to four
// messages for each connection.
func (t *Table) Follow(opts FollowOptions) (*Follower, error) {
	f, err := t.follow(opts)
	if err != nil {
		return nil, fmt.Errorf("follow the conntrack table: %w", explain(err))
	}
	return f, nil
}

func (t *Table) follow(opts FollowOptions) (*Follower, error) {
	if _, err := opts.Filter.family(); err != nil {
		return nil, err
	}
	if opts.Buffer < 0 {
		return nil, fmt.Errorf("buffer of %d bytes", opts.Buffer)
	} else if opts.Buffer == 0 {
		opts.Buffer = followBuffer
	}
	opts.Protocols = slices.Clone(opts.Protocols)
	groups, err := eventGroups(opts.Types)
	if err != nil {
		return nil, err
	}
	filter, err := eventFilter(opts.Protocols)
	if err != nil {
		return nil, err
	}
	f := &Follower{opts: opts}
	err = t.ns.Do(func() (err error) {
		f.listener, err = rawnl.Listen(rawnl.ListenConfig{Groups: groups, Filter: filter,
			Buffer: opts.Buffer})
		return err
	})
	return f, err
}

// Close closes the follower. Sequences in use end with [ErrClosed].
func (f *Follower) Close() error { return f.listener.Close() }

// Events yields the events as they come, until ctx ends, which is not an error. An error is the
// last thing that it yields. One sequence can be used after another.
func (f *Follower) Events(ctx context.Context) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		err := f.wait(ctx, func(e *Event) error {
			if !yield(*e, nil) {
				return errStop
			}
			return nil
		})
		if err != nil && err != errStop && ctx.Err() == nil {
			yield(Event{}, fmt.Errorf("follow the conntrack table: %w", explain(err)))
		}
	}
}

// wait passes events on until ctx ends.
func (f *Follower) wait(ctx context.Context, each func(*Event) error) error {
	if err := f.listener.SetDeadline(time.Time{}); err != nil {
		return err
	}
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(done)
		// nolint:errcheck // fails only if the listener is closed
		f.listener.SetDeadline(time.Unix(1, 0))
	})
	defer func() {
		if !stop() {
			<-done // the deadline is set, so the next sequence can clear it
		}
	}()
	for ctx.Err() == nil {
		n, err := f.listener.Wait(f.buf[:])
		if err := f.give(n, err, each); err != nil {
			return err
		}
	}
	return nil
}

// Drain calls each with the events that wait in the queue, and does not wait for more. A process
// whose followers are only drained now and then does not wake up for every event. The event is
// valid until each returns. An error of each ends Drain, which returns it.
func (f *Follower) Drain(each func(*Event) error) error {
	// All events that waited when Drain began fit into the queue. This bounds the loop.
	for range max(followBuffer, 2*f.opts.Buffer) / eventSpace {
		n, err := f.listener.Receive(f.buf[:])
		if err == rawnl.ErrEmpty {
			return nil
		}
		if err := f.give(n, err, each); err != nil {
			return err
		}
	}
	return nil
}

// give calls each with the events of one received datagram of n bytes.
func (f *Follower) give(n int, err error, each func(*Event) error) error {
	if err == rawnl.ErrOverflow {
		f.event = Event{Type: EventsLost}
		return each(&f.event)
	}
	if err != nil {
		return err
	}
	return rawnl.Messages(f.buf[:n], func(m rawnl.Message) error {
		err := parseEvent(m, &f.event, f.wants)
		if err == errUnwanted || err == nil && !f.opts.Filter.Match(&f.event.Flow) {
			return nil
		}
		if err != nil {
			return err
		}
		return each(&f.event)
	})
}

// wants decides about a flow by its protocol and its original tuple only.
func (f *Follower) wants(fl *Flow) bool {
	return (len(f.opts.Protocols) == 0 || slices.Contains(f.opts.Protocols, fl.Protocol)) &&
		f.opts.Filter.matchOriginal(fl)
}

// eventsSetting is the sysctl for events: 0 is never, 1 always, 2 (since Linux 5.19, and its
// default) only for flows that begin while a program listens.
const eventsSetting = "nf_conntrack_events"

// CheckEvents returns [ErrNoEvents] unless the kernel makes events for followers. The sysctl exists
// once the namespace has used conntrack.
func (t *Table) CheckEvents() error {
	return t.ns.Do(func() error {
		text, err := os.ReadFile(filepath.Join("/proc/sys/net/netfilter", eventsSetting))
		switch {
		case err != nil:
			return fmt.Errorf("%w: %w", ErrNoEvents, err)
		case strings.TrimSpace(string(text)) == "0":
			return fmt.Errorf("%w: %s is 0", ErrNoEvents, eventsSetting)
		}
		return nil
	})
}
