package nftables

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/kernelprobe"
	"github.com/kernlb/kernlb/internal/loopback"
	"github.com/kernlb/kernlb/internal/ration"
	"github.com/kernlb/kernlb/servicemodel"
)

// Name is the name of this backend.
const Name = "nftables"

// DefaultTable is the name of the tables if [Config.Table] is empty.
const DefaultTable = "kernlb"

// Config says where a Backend works. A nil *Config is the zero Config.
type Config struct {
	// NetNS is a file descriptor of the network namespace to work in, and NetNSPath its path, such
	// as "/run/netns/blue" or "/proc/1234/ns/net": either, used only while the backend is opened.
	// Zero and empty mean that of the calling thread.
	NetNS     int
	NetNSPath string
	// Table is the name of the tables in the families ip and ip6, and so the instance: backends
	// with different tables do not see each other. Empty means [DefaultTable]. It starts with a
	// letter and has letters, digits, "_", "-" and "." only, at most 63 of them.
	Table string
	// Logger gets a debug record for each commit. Nil means silence.
	Logger *slog.Logger
}

const (
	maxTableName = 63
	letters      = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
)

// isTableName reports whether nft takes a name without quotes. Its reserved words are longer than
// anybody's patience to list: a table called "drop" is refused by nft when it loads its own
// listing, and is the user's own doing. (A regular expression took a tenth of the time in which a
// process starts that imports this package.)
func isTableName(s string) bool {
	return s != "" && len(s) <= maxTableName && strings.Contains(letters, s[:1]) &&
		strings.Trim(s, letters+"0123456789_.-") == ""
}

func (c *Config) table() (string, error) {
	if c == nil || c.Table == "" {
		return DefaultTable, nil
	}
	if !isTableName(c.Table) {
		return "",
			fmt.Errorf(
				"nftables: table name %q: want a letter, then letters, digits, \"_\", \"-\" or "+
					"\".\", 63 in all at most", c.Table)
	}
	return c.Table, nil
}

func (c *Config) logger() *slog.Logger {
	if c == nil || c.Logger == nil {
		return slog.New(slog.DiscardHandler)
	}
	return c.Logger
}

var (
	_ dataplane.Backend = (*Backend)(nil)
	_ dataplane.Settler = (*Backend)(nil)
	_ dataplane.Locker  = (*Backend)(nil)
	_ dataplane.Witness = (*Backend)(nil)
)

// Backend keeps the services of one instance in nf_tables. Its methods must not be called at the
// same time.
type Backend struct {
	kernel kernel
	log    *slog.Logger
	pl     planner
	// rules are the node-wide rules that the kernel's program was made for.
	rules servicemodel.Rules
	// observed says that have, drift and rules are the kernel's.
	observed bool
	// localnetOff says that something answers at loopback addresses, and the sysctl route_localnet
	// was found off.
	localnetOff bool
	// crowded says that a set was full: the tables are to be made anew, larger.
	crowded bool
	// doubted is a version in which a commit about parts met elements that were not found.
	doubted version
	// looks rations the looks for changes by hand.
	looks ration.Ration
	// sweep is what is left to Settle if the version is unswept.
	sweep *sweep
}

// New opens a backend. Its errors match [dataplane.ErrNoPermission], [dataplane.ErrMissingModule],
// [dataplane.ErrKernelTooOld], or errors.ErrUnsupported if this is not Linux.
func New(cfg *Config) (*Backend, error) {
	table, err := cfg.table()
	if err != nil {
		return nil, err
	}
	b := &Backend{log: cfg.logger(), pl: planner{table: table, w: newWriter(), capacity: capacity,
		first: randomEpoch}, looks: ration.New(8, 20)}
	if err := b.kernel.open(cfg); err != nil {
		return nil, fmt.Errorf("nftables: open: %w",
			kernelprobe.Explain(err, nil, kernelprobe.Running()))
	}
	return b, nil
}

// Name returns "nftables".
func (b *Backend) Name() string { return Name }

// Check reports what nftables cannot express: schedulers other than random, forwarding other than
// NAT.
func (b *Backend) Check(c *servicemodel.ChangeSet) error { return check(c) }

// Plan renders what Commit would send, in nft's language.
func (b *Backend) Plan(c *servicemodel.ChangeSet) (dataplane.Plan, error) {
	if !b.observed {
		return nil, errNotObserved
	}
	p := b.pl.plan(c)
	r := c.New.Rules()
	switch was, want := loopback.Wanted(&b.rules), loopback.Wanted(&r); {
	case want && (!was || b.localnetOff):
		p.sysctl = loopback.Name + "=1"
	case was && !want && !b.pl.localnet:
		p.sysctl = loopback.Name + "=0"
	}
	return p, nil
}

// merge makes one observation of what was read of both tables, and remembers it as what the kernel
// holds. Tables without a version are made anew, both of them: without it, what another writer does
// in one of them would not be noticed.
func (b *Backend) merge(read [2]*observed, v version, want *servicemodel.Table) (
	*dataplane.Observation, error) {
	var c servicemodel.Contents
	obs := &dataplane.Observation{OtherLayout: slices.ContainsFunc(read[:],
		func(o *observed) bool { return o.otherLayout })}
	anew := b.crowded
	b.pl.localnet = read[0].localnet
	if b.crowded {
		obs.Drift = append(obs.Drift, "a set is full")
	}
	if v.number == 0 && (read[0].exists || read[1].exists) {
		anew = true
		obs.Drift = append(obs.Drift, "the tables have no version")
	}
	for i, o := range read {
		if anew {
			read[i] = &observed{skeleton: skeleton{exists: o.exists, broken: true}}
			continue
		}
		if o.exists && !o.broken {
			if c.Rules.MasqueradeMark != 0 && !c.Rules.Equal(o.rules) {
				read[i] = &observed{skeleton: skeleton{exists: true, broken: true}}
				obs.Drift = append(obs.Drift,
					"the tables ip and ip6 were made for different settings")
				continue
			}
			c.Rules = o.rules
		}
		obs.Drift = append(obs.Drift, o.driftText...)
		obs.Unread = obs.Unread || o.unread
		c.Frontends = append(c.Frontends, o.contents.Frontends...)
		c.Pools = append(c.Pools, o.contents.Pools...)
		c.ClusterIPs = append(c.ClusterIPs, o.contents.ClusterIPs...)
		c.Hairpins = append(c.Hairpins, o.contents.Hairpins...)
	}
	t, err := assemble(want, [2]*part{read[0].part, read[1].part}, c)
	if err != nil {
		return nil, fmt.Errorf("nftables: what the kernel holds: %w", err)
	}
	for i, o := range read {
		b.pl.have[i], b.pl.drift[i] = o.skeleton, o.drift
	}
	b.rules, b.observed = c.Rules, true
	b.pl.version, b.sweep, b.pl.owning = v, nil, nil
	if v.unswept {
		b.sweep = sweepAll(t)
	}
	obs.Table = t
	return obs, nil
}

// count brings the numbers of elements to what they are after a plan.
func (sk *skeleton) count(fp *familyPlan) {
	for _, s := range fp.goneSets {
		delete(sk.counts, s.Name)
	}
	if sk.counts == nil {
		return
	}
	for _, s := range fp.flushed {
		sk.counts[s.Name] = 0
	}
	for name, ops := range fp.ops {
		sk.counts[name] += ops.add.Len - ops.del.Len
	}
	for _, s := range fp.newSets {
		if !isAffinityMap(s.Name) {
			sk.counts[s.Name] += 0
		}
	}
}

// advance remembers the version after a plan that was committed.
func (b *Backend) advance(p *plan) {
	b.pl.version = p.next
	counts := b.pl.have[0].counts
	if counts == nil {
		return
	}
	if p.have.epoch != p.next.epoch {
		delete(counts, versionSet(p.have.epoch).Name)
	}
	counts[versionSet(p.next.epoch).Name] = int(p.next.number)
}

// committed remembers what the kernel holds after a plan.
func (b *Backend) committed(p *plan, c *servicemodel.ChangeSet) {
	for i := range p.families {
		fp := &p.families[i]
		b.pl.have[i] = fp.next
		b.pl.have[i].count(fp)
		b.pl.drift[i] = nil
	}
	if b.pl.owning != nil {
		b.pl.owning = &p.owning
	}
	b.rules, b.crowded = c.New.Rules(), false
	if p.empty() {
		return
	}
	b.advance(p)
	switch {
	case p.have.unswept: // by an earlier commit, or by this one as well
		b.sweep = sweepAll(c.New)
	case p.next.unswept:
		b.sweep = sweepAfter(p, c.New)
	}
}
