package conntrack

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/kernlb/kernlb/internal/nfnl"
)

// MirrorOptions say what a mirror notes. The zero value is what most programs want.
type MirrorOptions struct {
	// Protocols are those whose flows are noted; none means UDP alone. Each flow that is noted costs memory, and the process time when it
	// comes and goes. Claims of other protocols are cleaned by a pass over the table.
	Protocols []Protocol
	// Buffer is the size in bytes of the queue in the kernel, of which it takes no more than there are events. 0 means 16 MiB, some 25,000
	// events. Without CAP_NET_ADMIN in the initial user namespace it is net.core.rmem_max at most.
	Buffer int
}

// Mirror notes where the flows of a [Table] go, by the kernel's events, so that [Mirror.Clean] need not look for those that are stale: it
// takes as long as there are stale flows, however large the table is, while a walk of the kernel takes 0.1 to 0.4 µs for each flow on the
// machine. It is for programs that run for long and whose tables are large: noting flows costs some 35 bytes for each, and the kernel and
// the process some time for each that comes or goes.
//
// What is noted is never more than a hint. Each flow is looked up in the kernel before it is judged. And unless all is known to be noted,
// because [Mirror.Run] is not running, has just begun, or has lost events, Clean does what [Table.Clean] does. The outcome is the same.
//
// One thing a mirror cannot see: rules that keep events from being made (iptables' CT --ctevents, ctnetlink's event masks) must leave those of new
// flows, and nf_conntrack_events must not be turned off and on again while it runs. Flows that such settings hide are not cleaned up.
type Mirror struct {
	table     *Table
	protocols []Protocol
	buffer    int
	open      func(eventOptions) (eventSource, error)
	times     mirrorTimes

	mu     sync.Mutex
	events eventSource // nil: Run is not running
	index  *flowIndex
	synced bool  // every flow that is there is noted, as soon as the events in the queue are
	broken error // why it can be so no more, until there is another list
	stats  MirrorStats
	buf    [eventSize]byte
}

// mirrorTimes say how often a mirror does something.
type mirrorTimes struct {
	read  time.Duration // how long events may wait: looking is cheaper than being woken up for each
	check time.Duration // between looks at whether it notes more than there is
	pause time.Duration // at least, before the table is listed again
}

const (
	mirrorBuffer = 16 << 20
	// pauseShare is how many times as long as it took to list the table a mirror waits before it lists it again.
	pauseShare = 10
	// deadFlows is how many flows that are no more a mirror may note, beside a quarter of those that are.
	deadFlows = 10_000
)

// NewMirror returns a mirror of a table, which stays the caller's to close, after [Mirror.Run] has returned.
func NewMirror(t *Table, o MirrorOptions) (*Mirror, error) {
	x := &Mirror{
		table: t, protocols: slices.Clone(o.Protocols), buffer: o.Buffer,
		times: mirrorTimes{read: 50 * time.Millisecond, check: time.Minute, pause: time.Second},
	}
	x.open = func(o eventOptions) (source eventSource, err error) {
		err = t.ns.do(func() (err error) {
			source, err = openEvents(o)
			return err
		})
		return source, err
	}
	for _, p := range x.protocols {
		if p != TCP && p != UDP && p != SCTP {
			return nil, fmt.Errorf("mirror the conntrack table: Protocols: %s is not tcp, udp or sctp", p)
		}
	}
	if len(x.protocols) == 0 {
		x.protocols = []Protocol{UDP}
	}
	if x.buffer < 0 {
		return nil, fmt.Errorf("mirror the conntrack table: Buffer: %d bytes", x.buffer)
	} else if x.buffer == 0 {
		x.buffer = mirrorBuffer
	}
	return x, nil
}

// MirrorStats say how a mirror fares.
type MirrorStats struct {
	// Synced is whether Clean can do without a pass over the table.
	Synced bool
	// Flows are noted. Some may be no more: those that were there before anybody listened end without an event.
	Flows  int
	Events uint64 // events read since the last list
	Lists  int    // how often the table was listed: once, and again after each loss
	Losses int    // how often the kernel had more events than the queue had room for
}

// Stats returns how the mirror fares.
func (x *Mirror) Stats() MirrorStats {
	x.mu.Lock()
	defer x.mu.Unlock()
	s := x.stats
	s.Synced = x.synced
	if x.index != nil {
		s.Flows, s.Events = x.index.len(), x.index.events
	}
	return s
}

// Clean does what [Table.Clean] does. Flows of the protocols that are noted it finds by what is noted; [CleanOptions.Scan] is about the others.
func (x *Mirror) Clean(ctx context.Context, m *Matcher, opts CleanOptions) (Cleaned, error) {
	return x.table.clean(ctx, m, opts, x)
}

// NodeAddrs is [Table.NodeAddrs].
func (x *Mirror) NodeAddrs(ranges []netip.Prefix) ([]netip.Addr, error) {
	return x.table.NodeAddrs(ranges)
}

// Flows is [Table.Flows]: the kernel lists its table.
func (x *Mirror) Flows(ctx context.Context, f Filter) iter.Seq2[Flow, error] {
	return x.table.Flows(ctx, f)
}

func (x *Mirror) covers(p Protocol) bool { return slices.Contains(x.protocols, p) }

func (x *Mirror) wants(f *Flow) bool { return x.covers(f.Protocol) }

// suspects returns the flows of the protocols covered that can be stale, in the index that they are of. It is nil if not all flows are known.
// Those that were made before the call are: their events are in the queue.
func (x *Mirror) suspects(m *Matcher) (*flowIndex, []suspect) {
	if x.table.checkEvents() != nil {
		return nil, nil
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.synced || x.drain() != nil {
		return nil, nil
	}
	return x.index, x.index.suspects(m, x.covers)
}

// ask returns those of some suspects that the kernel has, and how many it was asked for. No events are worked in meanwhile: a flow that the
// kernel does not have is forgotten, and it must not be one that was made just now.
func (x *Mirror) ask(ctx context.Context, index *flowIndex, some []suspect) (found []Flow, asked int, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	var b nfnl.Batch
	var flows []Flow
	for _, s := range some {
		if f, ok := index.flow(s); ok {
			appendGet(&b, &f)
			flows = append(flows, f)
		}
	}
	err = x.table.conn.QueryAll(ctx, &b, func(i int, m nfnl.Message) error {
		var f Flow
		if err := parseFlow(m.Attrs, &f, func(*Flow) bool { return true }); err != nil {
			return err
		}
		if f.ID != flows[i].ID {
			index.remove(&flows[i])
			if index.has(&f) {
				return nil // it is a suspect itself, or may be where it is
			}
		}
		found = append(found, f)
		return nil
	})
	missing, err := refusals(err)
	for _, e := range missing {
		if e.Errno != syscall.ENOENT {
			return found, len(flows), fmt.Errorf("%s: %w", flows[e.Index], e)
		}
		index.remove(&flows[e.Index])
	}
	return found, len(flows), err
}

// drain works in the events that have come. The lock is held.
func (x *Mirror) drain() error {
	// More than the queue holds cannot have been there when it began: it is twice what was asked for, and no event takes less than 512 bytes.
	for range 2 * x.buffer / 512 {
		n, err := x.events.receive(x.buf[:])
		switch {
		case err == errNoEvent:
			return nil
		case err == errEventsLost:
			x.stats.Losses++
		case err == nil:
			err = x.index.apply(x.buf[:n], x.wants)
		}
		if err != nil {
			x.synced, x.broken = false, err
			return err
		}
	}
	return nil
}

// debug logs what a mirror does by itself.
func (x *Mirror) debug(ctx context.Context, what string, attrs ...slog.Attr) {
	if x.table.log != nil {
		x.table.log.LogAttrs(ctx, slog.LevelDebug, "conntrack mirror "+what, attrs...)
	}
}
