package flows

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/internal/logkey"
	"github.com/kernlb/kernlb/internal/wait"
	"github.com/kernlb/kernlb/servicemodel"
)

// Table has the methods of a [conntrack.Table] that a [Keeper] uses.
type Table interface {
	Clean(ctx context.Context, m *conntrack.Matcher, o conntrack.CleanOptions) (
		conntrack.CleanResult, error)
	NodeAddrs(ranges []netip.Prefix) ([]netip.Addr, error)
	Flows(ctx context.Context, f conntrack.Filter) iter.Seq2[conntrack.Flow, error]
}

var _ Table = (*conntrack.Table)(nil)

// Config tunes a [Keeper]. A nil *Config is the zero Config.
type Config struct {
	// Connections is the policy for services without a policy of their own. The zero value lets
	// connections continue.
	Connections servicemodel.ConnectionPolicy
	// Zone is the conntrack zone in which services are translated; 0 is the default zone, which all
	// backends use.
	Zone uint16
	// Logger gets a record for each cleanup that found something. Nil disables logging.
	Logger *slog.Logger
}

// Keeper keeps the flows of one conntrack table in sync with services. It implements
// [dataplane.Flows], for an engine that works in the same network namespace. It opens no kernel
// resources itself.
//
// [dataplane.Flows]: https://pkg.go.dev/github.com/kernlb/kernlb/dataplane#Flows
type Keeper struct {
	table Table
	cfg   Config
	log   *slog.Logger

	mu     sync.Mutex
	totals conntrack.CleanResult

	services *servicemodel.Table // the kernel's table; nil before the first change
	state    servicemodel.State  // the state from which services was resolved
	// rules are the rules of services or, after the removal of the instance, the last rules.
	rules servicemodel.Rules
	// before is the previous state, which contains the policies of removed services.
	before servicemodel.State

	departed map[servicemodel.FrontendKey]departures
	due      map[servicemodel.FrontendKey]*search
	// echoes are the times of further searches for flows that late answers created, by frontend.
	echoes map[servicemodel.FrontendKey][]time.Time
	// unknown are the protocols for which the keeper has not yet searched for draining connections
	// from before its start.
	unknown []servicemodel.Protocol
	// said are the events that Settle emits when it returns. drained are those that wait until the
	// connections of their frontends have been cut.
	said    []backends.Notice
	drained []backends.Drained
	// former are ranges that used to take node ports. The next pass includes them.
	former []netip.Prefix
	// formerLocalhost: 127.0.0.1 used to take node ports, too.
	formerLocalhost bool
}

// search describes the flows of a frontend that the next pass looks for.
type search struct {
	// all: search for flows to any endpoint that the frontend does not have; otherwise, only for
	// flows to the endpoints in gone.
	all  bool
	gone []netip.AddrPort
	// fresh: the frontend has its first endpoints, and another program may have answered at its
	// address before. echo: the frontend is searched again. Both also search for flows that late
	// answers created.
	fresh, echo bool
	// service is the port that has or had the frontend.
	service servicemodel.PortName
	// first and last are the times of the first commit since the last pass and of the last commit.
	// A packet from before a commit may still create a stale flow. passed is the number of
	// endpoints of gone that the last pass has searched for.
	first, last time.Time
	passed      int
}

// echoTimes are the delays of further searches, because a late answer can undo the deletion of an
// untranslated flow ([conntrack.Frontend.Backwards]): one soon, and, if the pass found such flows,
// one more when no answer can be in flight.
var echoTimes = []time.Duration{100 * time.Millisecond, time.Second}

// New returns a keeper for a table. The caller closes the table. A nil table or invalid
// [Config.Connections] is an error.
func New(t Table, cfg *Config) (*Keeper, error) {
	if none, ok := t.(*conntrack.Table); t == nil || ok && none == nil {
		return nil, errors.New("keep flows: no conntrack table")
	}
	k := &Keeper{
		table: t, cfg: *cmp.Or(cfg, &Config{}), log: slog.New(slog.DiscardHandler),
		departed: map[servicemodel.FrontendKey]departures{},
		due:      map[servicemodel.FrontendKey]*search{},
		echoes:   map[servicemodel.FrontendKey][]time.Time{},
	}
	if k.cfg.Logger != nil {
		k.log = k.cfg.Logger
	}
	if err := k.cfg.Connections.Validate(); err != nil {
		return nil, fmt.Errorf("keep flows: %w", err)
	}
	return k, nil
}

// Totals returns the sum of the results of all cleanups.
func (k *Keeper) Totals() conntrack.CleanResult {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.totals
}

// Changed records which flows a change may have made stale. Except for the first call, it reads
// only the objects that changed.
func (k *Keeper) Changed(s servicemodel.State, c *servicemodel.ChangeSet) {
	k.mu.Lock()
	defer k.mu.Unlock()
	first := k.services == nil
	if !s.Same(k.state) {
		k.before = k.state
	}
	k.services, k.state = c.New, s
	if r := c.New.Rules(); r.MasqueradeMark != 0 {
		k.rules = r
	} else if first {
		k.rules = c.Old.Rules()
	}

	in := inspection{Keeper: k, change: c, now: time.Now(), left: map[[2]pools][]netip.AddrPort{},
		lingering: map[servicemodel.Name]lingering{}}
	in.pending = k.dueRanges()
	if first {
		in.checkAll()
	}
	in.inspectAll()
	in.review()
	in.nodePortsMoved()

	// An endpoint that is back keeps its connections.
	k.drained = slices.DeleteFunc(k.drained, func(d backends.Drained) bool {
		back := poolsOf(k.services, k.services.Frontend(d.Frontend)).endpoints()
		return slices.Contains(back, d.Endpoint)
	})
}

// Settle does all cleanups that are due, in one pass over the table. If nothing is due, it does not
// read the table. It returns the time until draining connections or a second search are due. After
// an error, all of this work remains due, except for frontends that the matcher refused
// ([conntrack.ErrBadChange]). For these, a retry would fail again; they do not delay other
// frontends.
//
// It emits [backends.Cleaned] and [backends.Drained].
func (k *Keeper) Settle(ctx context.Context) (next time.Duration, err error) {
	k.mu.Lock()
	next, err = k.settle(ctx)
	said := k.said
	k.said, k.drained = nil, slices.DeleteFunc(k.drained, func(d backends.Drained) bool {
		over := k.due[d.Frontend] == nil
		if over {
			said = append(said, d)
		}
		return over
	})
	k.mu.Unlock()
	for _, ev := range said {
		backends.Notify(ctx, ev)
	}
	return next, err
}

// settle is Settle. It collects the events in said.
func (k *Keeper) settle(ctx context.Context) (next time.Duration, err error) {
	if err := k.findDeparted(ctx); err != nil {
		return 0, fmt.Errorf("find the connections to be drained: %w", err)
	}
	next = k.expire(time.Now())
	if len(k.due) == 0 {
		return next, nil
	}
	packets := wait.PacketsOf(ctx)
	if !packets.Over(k.firstDue()) {
		return sooner(next, wait.Grace), nil
	}
	due := len(k.due)
	bad, err := k.clean(ctx)
	if err == nil {
		left := k.passed(packets)
		next = k.expire(time.Now())
		if len(k.due) > left {
			next = time.Millisecond // time has passed since then
		} else if left > 0 {
			packets.Over(k.firstDue())
			next = sooner(next, wait.Grace)
		}
	}

	if err := errors.Join(err, bad); err != nil {
		return next, fmt.Errorf("clean up the flows of %d frontends: %w", due, err)
	}
	return next, nil
}

// sooner returns the earlier of two times until there is work. 0 means no work.
func sooner(next, d time.Duration) time.Duration {
	if next == 0 {
		return d
	}
	return min(next, d)
}

// firstDue returns the time of the earliest commit that no pass has covered: the next pass must
// wait for all packets from before it.
func (k *Keeper) firstDue() (at time.Time) {
	for _, s := range k.due {
		if at.IsZero() || s.first.Before(at) {
			at = s.first
		}
	}

	return at
}

// passed records a pass. A frontend remains due if the kernel may still be processing a packet from
// before its last commit. passed returns the number of such frontends. If p is nil, the pass has
// waited for the packets.
func (k *Keeper) passed(p *wait.Packets) (left int) {
	now := time.Now()
	maps.DeleteFunc(k.due, func(_ servicemodel.FrontendKey, s *search) bool {
		s.first, s.gone = now, s.gone[s.passed:]
		s.passed = len(s.gone)
		return p == nil || !p.Done.Before(s.last)
	})

	if len(k.due) == 0 {
		k.former, k.formerLocalhost = nil, false
	}
	return len(k.due)
}

// clean deletes the flows that are due. bad lists the items of the change that the matcher left
// out.
func (k *Keeper) clean(ctx context.Context) (bad, err error) {
	change, err := k.change()
	if err != nil {
		return nil, err
	}
	matcher, bad := conntrack.NewMatcher(change)
	found := map[servicemodel.PortName]int{}
	cleaned, err := k.table.Clean(ctx, matcher, conntrack.CleanOptions{
		Stale: func(f *conntrack.Flow) { found[k.serviceOf(f)]++ }})
	k.add(ctx, cleaned)
	for _, n := range slices.SortedFunc(maps.Keys(found), servicemodel.PortName.Compare) {
		k.said = append(k.said, backends.Cleaned{Service: n, Flows: found[n]})
	}
	k.listen(change, cleaned.Untranslated > 0)
	return bad, err
}

// serviceOf returns the service port to which a stale flow was sent. If a late answer created the
// flow, it returns the service port of the answer.
func (k *Keeper) serviceOf(f *conntrack.Flow) servicemodel.PortName {
	for _, at := range [...]netip.AddrPort{f.Original.Dst, f.Original.Src} {
		key := keyOf(at, f.Protocol)
		for _, key := range [...]servicemodel.FrontendKey{key, anywhere(key)} {
			if s := k.due[key]; s != nil {
				return s.service
			}
		}

		for key, s := range k.due {
			here := key.Addr == at.Addr() || key.Addr == anywhere(keyOf(at, f.Protocol)).Addr
			if key.EndPort != 0 && here && key.Contains(at.Port()) &&
				key.Protocol == servicemodel.Protocol(f.Protocol) {
				return s.service
			}
		}
	}

	return servicemodel.PortName{}
}

// listen schedules another search for the frontends of a pass, if the pass found untranslated flows
// or if a frontend is new.
func (k *Keeper) listen(c conntrack.Change, found bool) {
	now := time.Now()
	for _, f := range c.Frontends {
		if !f.Untranslated || f.Key.Addr.IsUnspecified() {
			continue
		}
		key := keyOf(netip.AddrPortFrom(f.Key.Addr, f.Key.Port), f.Key.Protocol)
		key.EndPort = f.Key.EndPort
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

// add adds the result of a cleanup to the totals.
func (k *Keeper) add(ctx context.Context, c conntrack.CleanResult) {
	t := &k.totals
	t.Dumps += c.Dumps
	t.Seen += c.Seen
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
			logkey.Duration, c.Duration)
	}
}

// find returns the search of the next pass for a frontend, which the service port n has or had. The
// caller adds endpoints to the search.
func (k *Keeper) find(key servicemodel.FrontendKey, n servicemodel.PortName) *search {
	now := time.Now()
	s := k.due[key]
	if s == nil {
		s = &search{first: now}
		k.due[key] = s
	}

	s.last = now
	if f := k.services.Frontend(key); f != nil {
		s.service = f.Service
	}
	s.service = cmp.Or(s.service, n)
	return s
}

// policy returns the policy of a service, even if the last change removed the service.
func (k *Keeper) policy(n servicemodel.Name) servicemodel.ConnectionPolicy {
	svc, _ := k.state.Peek(n)
	if svc == nil {
		svc, _ = k.before.Peek(n)
	}
	if svc == nil || svc.Connections.Mode == servicemodel.ConnectionsDefault {
		return k.cfg.Connections
	}
	return svc.Connections
}

// Draining returns the number of endpoints that get no new flows but keep their existing flows, for
// some time or as long as they serve (see [servicemodel.ConnectionPolicy]).
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
