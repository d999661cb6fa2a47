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

// Config selects the flows of a mirror. A nil *Config is the zero Config, which most programs want.
type Config struct {
	// Protocols are the protocols whose flows are noted: TCP, UDP, SCTP; none means UDP alone. Each
	// noted flow costs memory, and process time when it comes and goes. A pass over the table finds
	// stale flows of other protocols.
	Protocols []conntrack.Protocol
	// Buffer is the size in bytes of the queue in the kernel, see [conntrack.FollowOptions]. 0
	// means 32 MiB: 50,000 events.
	Buffer int
	// Logger gets a debug record for each step that the mirror makes by itself. Nil means silence.
	Logger *slog.Logger
}

// Mirror notes where the flows of a [conntrack.Table] go. It is a [conntrack.Index] of the table.
// With a mirror, the time of cleaning depends on the number of stale flows. Without it, the kernel
// walks over all flows of the machine, in all namespaces, which takes 0.1 to 0.4 µs for each,
// mostly with softirqs off.
//
// It is for long-running programs with large tables. A noted flow needs 33 bytes over IPv4 and 45
// over IPv6 if many flows go the same way, and up to 80 and 120 if each goes its own. The mirror
// keeps the most memory that it ever needed. While any program listens, the kernel makes a message
// for each flow that begins or ends, of any protocol, which costs one or two µs; noting the flow
// costs another four or five.
//
// The notes are only a hint: Clean looks up each flow in the kernel and classifies it by the
// kernel's answer. It makes a pass over the table unless all flows are known to be noted. They are
// not while [Mirror.Run] does not run, has just begun, or has lost events. The outcome is the same.
//
// A mirror cannot see that another program keeps the kernel from making events of new flows, by
// rules (iptables' CT --ctevents, nft's ct event set) or by setting nf_conntrack_events to 0 and
// back within a minute. Such flows are not cleaned up.
//
// Many goroutines may call its methods.
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
	broken error // why the index is useless until the next list
	stats  Stats
}

var _ conntrack.Index = (*Mirror)(nil)

// follower is the part of [conntrack.Follower] that a mirror needs. Tests replace it.
type follower interface {
	Drain(each func(*conntrack.Event) error) error
	Close() error
}

// times say how often a mirror does something.
type times struct {
	// how long events may wait: reading many at once is cheaper than a wake-up for each
	read  time.Duration
	check time.Duration // between two counts of noted flows that have ended
	pause time.Duration // at least, before the table is listed again
}

const (
	defaultBuffer = 32 << 20
	// lookups is how many flows the mirror looks up at once. During a lookup, it works on no
	// events.
	lookups = 512
)

// New returns a mirror of a table. The caller still owns the table, and closes it after
// [Mirror.Run] has returned.
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
	if t == nil {
		return nil, errors.New("mirror the conntrack table: no table")
	}
	return x, nil
}

// Stats say how a mirror fares.
type Stats struct {
	// Synced says whether cleaning needs no pass over the table.
	Synced bool
	// Flows is the number of noted flows. Some may have ended: a flow that is older than the
	// listener may end without an event.
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

// Find calls each with the flows of the noted protocols that m may find stale, in the kernel's
// present form. If not all flows are known, or answers of the kernel were lost, it returns no
// protocols: a pass over the table then finds the rest.
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

// suspects returns the flows of the covered protocols that may be stale, and their index. The index
// is nil if not all flows are known. Flows that were made before the call are known, because their
// events are in the queue.
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

// ask returns the suspects that the kernel has, and how many it asked for. It forgets flows that
// the kernel does not have. It works on no events meanwhile, because it must not forget a flow that
// an event has just added.
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
		// A flow with another ID may be stale, too. If the index has it, it may be a suspect of its
		// own.
		if f != nil && (f.ID == flows[i].ID || !index.has(f)) {
			found = append(found, f)
		}
	}
	return found, len(flows), err
}

// drain brings the index up to date with the waiting events. The caller holds the lock.
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

// lose notes that the index is useless, and why. Run learns of it when it reads events. The caller
// holds the lock.
func (x *Mirror) lose(err error) { x.synced, x.broken = false, err }

// debug logs what a mirror does by itself.
func (x *Mirror) debug(ctx context.Context, what string, attrs ...slog.Attr) {
	if x.log != nil {
		x.log.LogAttrs(ctx, slog.LevelDebug, "conntrack mirror "+what, attrs...)
	}
}
