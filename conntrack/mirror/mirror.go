package mirror

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/internal/rawnl"
)

// Config says what a mirror notes. A nil *Config is the zero Config, which is what most programs
// want.
type Config struct {
	// Protocols are those whose flows are noted, of TCP, UDP and SCTP; none means UDP alone. Each
	// flow that is noted costs memory, and the process time when it comes and goes. Stale flows of
	// other protocols are found by a pass over the table.
	Protocols []conntrack.Protocol
	// Buffer is the size in bytes of the queue in the kernel, see [conntrack.FollowOptions]. 0
	// means 32 MiB: 50,000 events.
	Buffer int
	// Logger gets a debug record for what the mirror does by itself. Nil means silence.
	Logger *slog.Logger
}

// Mirror notes where the flows of a [conntrack.Table] go: it is the [conntrack.Index] of one.
// Cleaning with it takes a time that depends on how many flows are stale. A pass has the kernel
// walk over all flows of the machine, in all namespaces, 0.1 to 0.4 µs for each, for the most part
// with softirqs off.
//
// It is for programs that run for long and whose tables are large. To note a flow takes 33 bytes
// over IPv4 and 45 over IPv6, if many go the same way, and up to 80 and 120 if each goes its own.
// It keeps the memory that it needed most. While somebody listens, the kernel makes a message for
// each flow that begins or ends, of whatever protocol, which takes it one or two µs; to note it
// takes another four or five.
//
// What is noted is no more than a hint: each flow is looked up in the kernel and classified by what
// that says. And unless all flows are known to be noted, because [Mirror.Run] is not running, has
// just begun, or has lost events, there is a pass over the table. The outcome is the same.
//
// What a mirror cannot see is that somebody keeps the kernel from making events of new flows, by
// rules (iptables' CT --ctevents, nft's ct event set) or by setting nf_conntrack_events to 0 and
// back within a minute. Such flows are not cleaned up.
//
// Its methods may be called by many goroutines.
type Mirror struct {
	table     *conntrack.Table
	protocols []conntrack.Protocol
	buffer    int
	log       *slog.Logger
	follow    func(conntrack.FollowOptions) (follower, error)
	times     times

	mu     sync.Mutex
	events follower // nil: Run is not running
	index  *index
	synced bool  // every flow that is there is noted, as soon as the events in the queue are
	broken error // why it can be so no more, until there is another list
	stats  Stats
}

var _ conntrack.Index = (*Mirror)(nil)

// follower is what a mirror needs of a [conntrack.Follower]. The tests put another one in its
// place.
type follower interface {
	Drain(each func(*conntrack.Event) error) error
	Close() error
}

// times say how often a mirror does something.
type times struct {
	read  time.Duration // how long events may wait: looking is cheaper than being woken up for each
	check time.Duration // between looks at whether it notes more than there is
	pause time.Duration // at least, before the table is listed again
}

const (
	defaultBuffer = 32 << 20
	// lookups is how many flows the kernel is asked for at once. Meanwhile, no events are worked
	// in.
	lookups = 512
)

// New returns a mirror of a table, which stays the caller's to close, after [Mirror.Run] has
// returned.
func New(t *conntrack.Table, cfg *Config) (*Mirror, error) {
	if cfg == nil {
		cfg = &Config{}
	}
	x := &Mirror{
		table: t, protocols: slices.Clone(cfg.Protocols), buffer: cfg.Buffer, log: cfg.Logger,
		times: times{read: 50 * time.Millisecond, check: time.Minute, pause: time.Second},
	}
	x.follow = func(o conntrack.FollowOptions) (follower, error) { return t.Follow(o) }
	for _, p := range x.protocols {
		if p != conntrack.TCP && p != conntrack.UDP && p != conntrack.SCTP {
			return nil,
				fmt.Errorf("mirror the conntrack table: Protocols: %s is not tcp, udp or sctp", p)
		}
	}
	if len(x.protocols) == 0 {
		x.protocols = []conntrack.Protocol{conntrack.UDP}
	}
	if x.buffer < 0 {
		return nil, fmt.Errorf("mirror the conntrack table: Buffer: %d bytes", x.buffer)
	} else if x.buffer == 0 {
		x.buffer = defaultBuffer
	}
	return x, nil
}

// Stats say how a mirror fares.
type Stats struct {
	// Synced is whether cleaning can do without a pass over the table.
	Synced bool
	// Flows are noted. Some may be no more: those that were there before anybody listened end
	// without an event.
	Flows  int
	Events uint64 // events read since the last list
	Lists  int    // how often the table was listed: once, and again after each loss
	Losses int    // how often the kernel had more events than the queue had room for
}

// Stats returns how the mirror fares.
func (x *Mirror) Stats() Stats {
	x.mu.Lock()
	defer x.mu.Unlock()
	s := x.stats
	s.Synced = x.synced
	if x.index != nil {
		s.Flows, s.Events = x.index.len(), x.index.events
	}
	return s
}

// Find calls each with the flows of the protocols noted that m may find stale, as the kernel has
// them now. Where not all flows are known, or answers of the kernel were lost, it returns no
// protocols: a pass over the table finds the rest.
func (x *Mirror) Find(ctx context.Context, m *conntrack.Matcher,
	each func(*conntrack.Flow) error) (found conntrack.Found, err error) {
	index, suspects := x.suspects(m)
	if index == nil {
		return found, nil
	}
	for some := range slices.Chunk(suspects, lookups) {
		flows, asked, err := x.ask(ctx, index, some)
		found.Lookups += asked
		if errors.Is(err, rawnl.ErrAnswersLost) {
			return found, nil
		}
		for _, f := range flows {
			err = errors.Join(err, each(f))
		}
		if err != nil {
			return found, err
		}
	}
	found.Protocols = x.protocols
	return found, nil
}

func (x *Mirror) covers(p conntrack.Protocol) bool { return slices.Contains(x.protocols, p) }

// suspects returns the flows of the protocols covered that can be stale, in the index that they are
// of. It is nil if not all flows are known. Those that were made before the call are: their events
// are in the queue.
func (x *Mirror) suspects(m *conntrack.Matcher) (*index, []suspect) {
	err := x.table.CheckEvents()
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
func (x *Mirror) ask(ctx context.Context, index *index, some []suspect) (found []*conntrack.Flow,
	asked int, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	var flows []conntrack.Flow
	for _, s := range some {
		if f, ok := index.flow(s); ok {
			flows = append(flows, f)
		}
	}
	now, err := x.table.Lookup(ctx, flows)
	for i, f := range now {
		if f == nil && err != nil {
			continue // it is not known whether the kernel has it
		}
		if f == nil || f.ID != flows[i].ID {
			index.remove(&flows[i])
		}
		// One with another ID may be a suspect itself, or be where it may be.
		if f != nil && (f.ID == flows[i].ID || !index.has(f)) {
			found = append(found, f)
		}
	}
	return found, len(flows), err
}

// drain works in the events that have come. The lock is held.
func (x *Mirror) drain() error {
	err := x.events.Drain(func(e *conntrack.Event) error {
		if e.Type == conntrack.EventsLost {
			x.stats.Losses++
			return errEventsLost
		}
		x.index.apply(e)
		return nil
	})
	if err != nil {
		x.lose(err)
	}
	return err
}

// lose notes that the index does not count any more, and why. Run learns of it when it looks for
// events. The lock is held.
func (x *Mirror) lose(err error) { x.synced, x.broken = false, err }

// debug logs what a mirror does by itself.
func (x *Mirror) debug(ctx context.Context, what string, attrs ...slog.Attr) {
	if x.log != nil {
		x.log.LogAttrs(ctx, slog.LevelDebug, "conntrack mirror "+what, attrs...)
	}
}
