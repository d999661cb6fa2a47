package nftables

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rendering"
	"github.com/kernlb/kernlb/internal/wait"
	"github.com/kernlb/kernlb/servicemodel"
)

// Name is the name of this backend.
const Name = "nftables"

// defaultTable is the name of the tables if [Config.Table] is empty.
const defaultTable = "kernlb"

// Config says where a backend works. A nil *Config is the zero Config.
type Config struct {
	// NetNS is a file descriptor of the network namespace to work in. NetNSPath is the path of one,
	// such as "/run/netns/blue" or "/proc/1234/ns/net". Set at most one of them. They are used only
	// while the backend is opened. Zero and empty mean the namespace of the calling thread.
	NetNS     int
	NetNSPath string
	// Table is the name of the tables in the families ip and ip6, and identifies the instance:
	// backends with different tables do not see each other. Empty means "kernlb". It starts
	// with a letter and has letters, digits, "_", "-" and "." only, at most 63 of them.
	Table string
	// TakeOver claims tables of that name even if they have none of the instance's marks. The next
	// commit replaces them and all their contents, and Cleanup deletes them. By default such tables
	// are left alone, and a method that needs them fails with a [dataplane.CollisionError].
	TakeOver bool
	// Priorities move the base chains among other programs' base chains. The zero value leaves them
	// at the usual places.
	Priorities Priorities
	// BeforeDispatch and BeforeMasquerade name chains of the user in the tables of the instance,
	// such as "user-first". nat-prerouting and nat-output jump to the first before they look for
	// services, and nat-postrouting to the second before it masquerades. Only new connections come
	// there. If the chain accepts a packet, the instance does not touch it in that hook. If the
	// chain returns, the packet goes on as usual. The names begin with "user-". Empty means no
	// jump.
	//
	// The instance makes the chains, empty, and writes nothing into them. So the rules there
	// outlive all commits, repairs, restarts and upgrades. They are lost with their table, which is
	// deleted if the node no longer serves the family, and by Cleanup. Other chains and named sets
	// of the user do not belong in the table. The rules should not refer to sets or chains of the
	// instance: if the backend must replace such an object, the kernel refuses, and the backend
	// deletes the table with all rules of the user.
	BeforeDispatch   string
	BeforeMasquerade string
	// Logger gets a debug record for each commit. Nil means silence.
	Logger *slog.Logger
}

func (c *Config) table() (string, error) {
	if c == nil || c.Table == "" {
		return defaultTable, nil
	}
	return c.Table, rendering.CheckTable(Name, c.Table)
}

func (c *Config) logger() *slog.Logger {
	if c == nil || c.Logger == nil {
		return slog.New(slog.DiscardHandler)
	}
	return c.Logger
}

var (
	_ dataplane.Backend = (*backend)(nil)
	_ dataplane.Settler = (*backend)(nil)
	_ dataplane.Locker  = (*backend)(nil)
	_ dataplane.Witness = (*backend)(nil)
)

// errNotObserved says that a caller broke the contract of [dataplane.Backend].
var errNotObserved = errors.New(
	"nftables: the kernel was not observed since the backend was opened or the last error")

// backend keeps the services of one instance in nf_tables. Its methods must not be called
// concurrently.
type backend struct {
	kernel // embedded: without Linux it has the methods that need the kernel
	log    *slog.Logger
	pl     planner
	// observed says that pl describes what the kernel holds.
	observed bool
	// crowded says that a set was full. The tables are then made anew, larger.
	crowded bool
	// doubted is the version at which a commit of parts failed: the kernel then had elements that
	// the reading did not find, or lacked some.
	doubted version
	// interrupted says that the last [steps] failed.
	interrupted bool
	// looks is the budget for checks for changes by hand.
	looks wait.Budget
	// sweep is the work left to Settle if the version is unswept.
	sweep *sweep
}

// New opens a backend. Its errors match [dataplane.ErrNoPermission], [dataplane.ErrMissingModule],
// [dataplane.ErrKernelTooOld], or errors.ErrUnsupported if the system is not Linux.
// The backend is also a [dataplane.Settler], a [dataplane.Locker], a [dataplane.Witness] and a
// [dataplane.PartReader]. It refuses what [Check] refuses, and a family whose tables the kernel
// cannot hold ([dataplane.FieldFamily]).
//
// The methods must not be called concurrently.
func New(cfg *Config) (dataplane.Backend, error) {
	b, err := openBackend(cfg)
	if err != nil {
		return nil, err
	}
	return b, nil
}

func openBackend(cfg *Config) (*backend, error) {
	table, err := cfg.table()
	if err != nil {
		return nil, err
	}
	b := &backend{log: cfg.logger(), pl: newPlanner(table, randomEpoch),
		looks: wait.NewBudget(8, 20)}
	if b.pl.place, err = cfg.place(); err != nil {
		return nil, err
	}
	b.kernel.place = b.pl.place
	if err := b.kernel.open(cfg); err != nil {
		return nil, fmt.Errorf("nftables: open: %w",
			nft.Explain(err, nil, nft.Running()))
	}
	return b, nil
}

// Name returns "nftables".
func (b *backend) Name() string { return Name }

// Plan renders what Commit would send, in nft's language.
func (b *backend) Plan(c *servicemodel.ChangeSet) (dataplane.Plan, error) {
	if !b.observed {
		return nil, errNotObserved
	}
	if b.pl.owning != nil && b.pl.removes(c) {
		return b.pl.removal(c.New.Len()), nil
	}
	p := b.pl.plan(b.anew(c))
	b.pl.planLocalnet(p)
	return p, nil
}

// anew returns the changes that lead from nothing to the same table if a set was full. The tables
// are then made anew, maybe in parts.
func (b *backend) anew(c *servicemodel.ChangeSet) *servicemodel.ChangeSet {
	if !b.crowded || b.pl.owning != nil {
		return c
	}
	return servicemodel.Diff(nil, c.New)
}

// committed notes what the kernel holds after a plan. A plan that only ends a sweep has no change
// set.
func (b *backend) committed(p *plan) {
	if p.c != nil {
		if b.pl.owning != nil {
			b.pl.owning = &owning{owners: b.pl.ownersAfter(p.c)}
		}
		b.pl.rules, b.crowded, b.interrupted = p.c.New.Rules(), false, false
		b.pl.complete, b.pl.localnet.left, b.pl.refused = true, false, false
	}
	if p.empty() { // nothing was sent
		return
	}
	for _, t := range p.tables {
		t.have.committed(t)
	}
	b.pl.version = p.next
	for _, t := range b.pl.tables {
		if t.counts == nil {
			continue
		}
		if t.f == p.have.home && p.have.epoch != p.next.epoch {
			delete(t.counts, versionName(p.have.epoch))
		}
		if t.f == p.next.home {
			t.counts[versionName(p.next.epoch)] = int(p.next.number)
		}
	}
	if !p.next.unswept {
		b.sweep = nil
		return
	}
	b.sweep = b.sweep.after(p, time.Now())
}

// table is the backend's knowledge of its table in one family: the last reading, and the effects of
// the commits since. The table may not exist.
type table struct {
	f *nft.Family
	// lacks says what the kernel lacked for the table at the time asked. It is nil if nothing was
	// lacking.
	lacks error
	asked time.Time
	skeleton
	// sets are the sets of the shape, in their order. The first plan makes them.
	sets []*nft.Set
	// drift are the elements without a meaning, by set. The next commit deletes them.
	drift map[string]*nft.ElemList
	// index is the content of the index of owners, after an observation of parts.
	index ownership
	// ahead are the ways that the next plan prepares: see [planner.planAhead].
	ahead feature
}

// skeleton is everything about one table in the kernel except its elements.
type skeleton struct {
	exists bool
	shape  shape
	stale  bool // the rules do not fit the shape and the observed node-wide rules
	broken bool // sets or chains are missing or have another type: all must be written anew
	// held are the objects of a broken table. It is nil if the whole table must be deleted.
	held *heldObjects
	// counts is the known number of elements in each set, except sets that rules fill.
	counts map[string]int
	// leads is how many frontends lead to each leaf. It is nil until a plan needs it.
	leads map[string]int
}

// heldObjects are the chains and sets of a table that is not as it should be.
type heldObjects struct {
	chains  map[string]nft.Chain
	specs   map[string]nft.SetSpec
	sizes   map[string]uint32 // of sets that do not grow
	dormant bool
}

// compare compares the last known table (sk) with a check of it (now).
func (sk *skeleton) compare(now *skeleton) dataplane.Integrity {
	if now.exists != sk.exists || now.broken || now.stale || !now.shape.equal(&sk.shape) {
		return dataplane.Broken
	}
	result := dataplane.Intact
	for name, n := range sk.counts {
		got, told := now.counts[name]
		if told && got != n {
			return dataplane.Broken
		}
		if !told {
			result = dataplane.Touched
		}
	}
	return result
}

// committed updates the table after a plan.
func (t *table) committed(p *tablePlan) {
	t.skeleton, t.sets, t.drift, t.index = p.next, p.sets, nil, p.index
	for leaf, n := range p.leads {
		t.leads[leaf] += n
	}
	if t.counts == nil {
		return
	}
	for _, s := range p.flushed {
		t.counts[s.Name] = 0
	}
	for name, ops := range p.ops {
		t.counts[name] += ops.add.Len - ops.del.Len
	}
	for _, s := range p.goneSets {
		delete(t.counts, s.Name)
	}
	for _, s := range p.newSets {
		if !isAffinityMap(s.Name) {
			t.counts[s.Name] += 0
		}
	}
}
