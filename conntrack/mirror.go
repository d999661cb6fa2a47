package conntrack

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// MirrorOptions say what a mirror notes. The zero value is what most programs want.
type MirrorOptions struct {
	// Protocols are those whose flows are noted; none means UDP alone. Each flow that is noted
	// costs memory, and the process time when it comes and goes. Those of other protocols are
	// found by a pass over the table.
	Protocols []Protocol
	// Buffer is the size in bytes of the queue in the kernel. Memory is taken for events that wait
	// only; the kernel doubles the size, and counts some 1,280 bytes for an event. 0 means 32 MiB:
	// 50,000 events. Without CAP_NET_ADMIN in the initial user namespace it is net.core.rmem_max at
	// most.
	Buffer int
}

// Mirror notes where the flows of a [Table] go, by the kernel's events, so that [Mirror.Clean] need
// not look for those that are stale: its time depends on how many these are. A pass has the kernel
// walk over all flows of the machine, in all namespaces, 0.1 to 0.4 µs for each, for the most part
// with softirqs off.
//
// It is for programs that run for long and whose tables are large. To note a flow takes 33 bytes
// over IPv4 and 45 over IPv6, if many go the same way, and up to 80 and 120 if each goes its own.
// It keeps the memory that it needed most. While somebody listens, the kernel makes a message for
// each flow that begins or ends, of whatever protocol, which takes it one or two µs; to note it
// takes another four or five.
//
// What is noted is no more than a hint: each flow is looked up in the kernel and classified by
// what that says. And unless all flows are known to be noted, because [Mirror.Run] is not running, has
// just begun, or has lost events, Clean makes a pass as [Table.Clean] does. The outcome is the
// same.
//
// What a mirror cannot see is that somebody keeps the kernel from making events of new flows, by
// rules (iptables' CT --ctevents, nft's ct event set) or by setting nf_conntrack_events to 0 and
// back within a minute. Such flows are not cleaned up.
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
	mirrorBuffer = 32 << 20
	// eventSpace is less than what the kernel counts for any event that waits.
	eventSpace = 512
	// pauseShare is how many times as long as it took to list the table a mirror waits before it
	// lists it again.
	pauseShare = 10
	// deadFlows is how many flows that are no more a mirror may note, beside a quarter of those
	// that are.
	deadFlows = 10_000
)

// NewMirror returns a mirror of a table, which stays the caller's to close, after [Mirror.Run] has
// returned.
func NewMirror(t *Table, o MirrorOptions) (*Mirror, error) {
	x := &Mirror{
		table: t, protocols: slices.Clone(o.Protocols), buffer: o.Buffer,
		times: mirrorTimes{read: 50 * time.Millisecond, check: time.Minute, pause: time.Second},
	}
	x.open = func(o eventOptions) (source eventSource, err error) {
		err = t.ns.Do(func() (err error) {
			source, err = openEvents(o)
			return err
		})
		return source, err
	}
	for _, p := range x.protocols {
		if p != TCP && p != UDP && p != SCTP {
			return nil,
				fmt.Errorf("mirror the conntrack table: Protocols: %s is not tcp, udp or sctp", p)
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
	// Flows are noted. Some may be no more: those that were there before anybody listened end
	// without an event.
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

// Clean does what [Table.Clean] does. Flows of the protocols that are noted it finds by what is
// noted; [CleanOptions.Scan] is about the others.
func (x *Mirror) Clean(ctx context.Context, m *Matcher, opts CleanOptions) (CleanResult, error) {
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

// suspects returns the flows of the protocols covered that can be stale, in the index that they are
// of. It is nil if not all flows are known. Those that were made before the call are: their events
// are in the queue.
func (x *Mirror) suspects(m *Matcher) (*flowIndex, []suspect) {
	err := x.table.checkEvents()
	x.mu.Lock()
	defer x.mu.Unlock()
	if err != nil && x.synced {
		x.lose(err)
	}
	if !x.synced || x.drain() != nil {
		return nil, nil
	}
	return x.index, x.index.suspects(m, x.covers)
}

// ask returns those of some suspects that the kernel has, and how many it was asked for. No events
// are worked in meanwhile: a flow that the kernel does not have is forgotten, and it must not be
// one that was made just now.
func (x *Mirror) ask(ctx context.Context, index *flowIndex, some []suspect) (found []Flow,
	asked int, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	var flows []Flow
	for _, s := range some {
		if f, ok := index.flow(s); ok {
			flows = append(flows, f)
		}
	}
	now, err := x.table.lookup(ctx, flows)
	for i, f := range now {
		switch {
		case f == nil && err == nil:
			index.remove(&flows[i])
		case f == nil:
		case f.ID != flows[i].ID:
			index.remove(&flows[i])
			if index.has(f) {
				continue // it is a suspect itself, or may be where it is
			}
			fallthrough
		default:
			found = append(found, *f)
		}
	}
	return found, len(flows), err
}

// drain works in the events that have come. The lock is held.
func (x *Mirror) drain() error {
	// What came after the beginning need not be waited for, and more than the queue holds cannot
	// have been there before.
	for range max(mirrorBuffer, 2*x.buffer) / eventSpace {
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
			x.lose(err)
			return err
		}
	}
	return nil
}

// lose notes that the index does not count any more, and why. Run learns of it when it looks for
// events. The lock is held.
func (x *Mirror) lose(err error) { x.synced, x.broken = false, err }

// debug logs what a mirror does by itself.
func (x *Mirror) debug(ctx context.Context, what string, attrs ...slog.Attr) {
	if x.table.log != nil {
		x.table.log.LogAttrs(ctx, slog.LevelDebug, "conntrack mirror "+what, attrs...)
	}
}
