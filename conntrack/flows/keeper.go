package flows

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/internal/logkey"
	"github.com/kernlb/kernlb/servicemodel"
)

// Table is what a [Keeper] needs of a [conntrack.Table].
type Table interface {
	Clean(ctx context.Context, m *conntrack.Matcher, o conntrack.CleanOptions) (
		conntrack.CleanResult, error)
	NodeAddrs(ranges []netip.Prefix) ([]netip.Addr, error)
	Flows(ctx context.Context, f conntrack.Filter) iter.Seq2[conntrack.Flow, error]
}

var _ Table = (*conntrack.Table)(nil)

// Config says what to do with flows. A nil *Config is the zero Config.
type Config struct {
	// Connections is the policy of services that have none of their own. The zero value leaves
	// connections alone.
	Connections servicemodel.ConnectionPolicy
	// Zone is the conntrack zone in which services are translated; 0 is the default zone, which all
	// backends use.
	Zone uint16
	// Clean says how the table is searched.
	Clean conntrack.CleanOptions
	// Logger gets a record for each cleaning that found something. Nil means silence.
	Logger *slog.Logger
}

// Keeper keeps the flows of one conntrack table in step with services. It is the [dataplane.Flows]
// of an engine that works in the same network namespace. It holds no kernel resources of its own.
//
// [dataplane.Flows]: https://pkg.go.dev/github.com/kernlb/kernlb/dataplane#Flows
type Keeper struct {
	table Table
	cfg   Config
	log   *slog.Logger

	mu     sync.Mutex
	totals conntrack.CleanResult

	begun    bool
	services *servicemodel.Table // what the kernel holds
	state    servicemodel.State  // of which that is the meaning
	// the state before: it knows the policies of services that are gone
	before servicemodel.State

	departed map[servicemodel.FrontendKey]departures
	due      map[servicemodel.FrontendKey]*search
	// when to look again for flows that late answers made
	echoes map[servicemodel.FrontendKey][]time.Time
	// unknown are the protocols of which it is not known which connections were to be drained
	// before the keeper began.
	unknown []servicemodel.Protocol
	// former are ranges in which node ports used to answer, to be looked at in the next pass.
	former []netip.Prefix
}

// search is what the next pass looks for among the flows of a frontend.
type search struct {
	// all: every endpoint that may not have them. Otherwise only those that are gone.
	all  bool
	gone []netip.AddrPort
	// fresh: the frontend has its first endpoints; somebody may have answered at its address before
	// it was there. echo: it is looked at again. Both look also for flows that late answers made.
	fresh, echo bool
}

// echoTimes say when to look again, since a late answer can undo the deletion of an untranslated
// flow ([conntrack.Frontend.Backwards]): soon, and, if there were such flows, once more when no
// answer is under way any more.
var echoTimes = []time.Duration{100 * time.Millisecond, time.Second}

// New returns a keeper of a table. Closing the table stays with the caller.
func New(t Table, cfg *Config) (*Keeper, error) {
	k := &Keeper{
		table: t, log: slog.New(slog.DiscardHandler),
		departed: map[servicemodel.FrontendKey]departures{},
		due:      map[servicemodel.FrontendKey]*search{},
		echoes:   map[servicemodel.FrontendKey][]time.Time{},
	}
	if cfg != nil {
		k.cfg = *cfg
	}
	if k.cfg.Logger != nil {
		k.log = k.cfg.Logger
	}
	if err := k.cfg.Connections.Validate(); err != nil {
		return nil, fmt.Errorf("keep flows: %w", err)
	}
	return k, nil
}

// Totals returns what all cleanings together found and did.
func (k *Keeper) Totals() conntrack.CleanResult {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.totals
}

// Changed notes what a change can have left stale. It looks at what changed only, except the first
// time.
func (k *Keeper) Changed(s servicemodel.State, c *servicemodel.ChangeSet) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	moved := !s.Same(k.state)
	if moved {
		k.before = k.state
	}
	k.services, k.state = c.New, s
	m := mover{Keeper: k, change: c, now: now, compared: map[poolsKey]comparison{},
		lingering: lingering{}}
	if !k.begun {
		k.begun = true
		m.checkAll()
	}
	m.moveAll()
	if moved {
		m.review()
	}
	m.nodePortsMoved()
}

// Settle cleans up what is due, in one pass over the table; without anything due it does not look
// at it. It returns how long until something becomes due: connections that are drained, or a second
// look. After an error, what was due stays due.
func (k *Keeper) Settle(ctx context.Context) (next time.Duration, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.findDeparted(ctx); err != nil {
		return 0, fmt.Errorf("find the connections to be drained: %w", err)
	}
	next = k.expire(time.Now())
	if len(k.due) == 0 {
		return next, nil
	}
	if err := k.clean(ctx); err != nil {
		return next, fmt.Errorf("clean up the flows of %d frontends: %w", len(k.due), err)
	}
	clear(k.due)
	k.former = nil
	if next = k.expire(time.Now()); len(k.due) > 0 {
		next = time.Millisecond // time went by
	}
	return next, nil
}

// clean deletes the flows that are due.
func (k *Keeper) clean(ctx context.Context) error {
	change, err := k.change()
	if err != nil {
		return err
	}
	matcher, err := conntrack.NewMatcher(change)
	if err != nil {
		return err
	}
	cleaned, err := k.table.Clean(ctx, matcher, k.cfg.Clean)
	k.add(ctx, cleaned)
	k.listen(change, cleaned.Untranslated > 0)
	return err
}

// listen makes the keeper look again at the frontends of a pass, if that found untranslated flows
// or a frontend is new.
func (k *Keeper) listen(c conntrack.Change, found bool) {
	now := time.Now()
	for _, f := range c.Frontends {
		if !f.Untranslated || f.Key.Addr.IsUnspecified() {
			continue
		}
		key := servicemodel.FrontendKey{Addr: f.Key.Addr, Protocol: servicemodel.UDP,
			Port: f.Key.Port}
		times := echoTimes
		if !found {
			if s := k.due[key]; s == nil || !s.fresh {
				continue
			}
			times = times[:1]
		}
		k.echoes[key] = nil
		for _, d := range times {
			k.echoes[key] = append(k.echoes[key], now.Add(d))
		}
	}
}

// add adds to the totals what a cleaning did.
func (k *Keeper) add(ctx context.Context, c conntrack.CleanResult) {
	t := &k.totals
	t.Dumps += c.Dumps
	t.Seen += c.Seen
	t.Lookups += c.Lookups
	t.Misdirected += c.Misdirected
	t.Untranslated += c.Untranslated
	t.Deleted += c.Deleted
	t.Missing += c.Missing
	t.Reset += c.Reset
	t.Duration += c.Duration
	if c.Deleted > 0 {
		k.log.InfoContext(ctx, "deleted stale flows", logkey.Frontends, len(k.due),
			logkey.Misdirected, c.Misdirected, logkey.Untranslated, c.Untranslated,
			logkey.Deleted, c.Deleted, logkey.Reset, c.Reset, logkey.Seen, c.Seen,
			logkey.Lookups, c.Lookups, logkey.Duration, c.Duration)
	}
}

// find returns what the next pass looks for at a frontend, to be added to.
func (k *Keeper) find(key servicemodel.FrontendKey) *search {
	s := k.due[key]
	if s == nil {
		s = &search{}
		k.due[key] = s
	}
	return s
}

// policy returns the policy of a service, which may be gone since the last change.
func (k *Keeper) policy(n servicemodel.Name) servicemodel.ConnectionPolicy {
	svc := k.state.Service(n)
	if svc == nil {
		svc = k.before.Service(n)
	}
	if svc == nil || svc.Connections.Mode == servicemodel.ConnectionsDefault {
		return k.cfg.Connections
	}
	return svc.Connections
}

// Draining returns how many endpoints are given nothing new and keep the flows that they have, for
// some time or as long as they serve, see [servicemodel.ConnectionPolicy].
func (k *Keeper) Draining() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	all := map[netip.AddrPort]struct{}{}
	for _, endpoints := range k.departed {
		for e := range endpoints {
			all[e] = struct{}{}
		}
	}
	return len(all)
}
