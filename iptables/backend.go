package iptables

import (
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

// Name is the name of this backend.
const Name = "iptables"

// DefaultPrefix is what the names of chains begin with if [Config.Prefix] is empty: that of
// kube-proxy.
const DefaultPrefix = "KUBE"

// Config says where a Backend works. A nil *Config is the zero Config.
type Config struct {
	// NetNS is a file descriptor of the network namespace to work in, and NetNSPath its path, such
	// as "/run/netns/blue" or "/proc/1234/ns/net": either, used only while the backend is opened.
	// Zero and empty mean that of the calling thread.
	NetNS     int
	NetNSPath string
	// Prefix is what the names of chains begin with, followed by "-", and so the instance: backends
	// with different prefixes do not see each other. Empty means [DefaultPrefix]. It has capital
	// letters, digits and "_" only, at most 7 of them, and starts with a letter.
	Prefix string
	// Logger gets a debug record for each commit. Nil means silence.
	Logger *slog.Logger
}

// validPrefix leaves room for "-SVC-" and 16 characters in the 28 that a chain name has.
var validPrefix = regexp.MustCompile(`^[A-Z][A-Z0-9_]{0,6}$`)

func (c *Config) prefix() (string, error) {
	if c == nil || c.Prefix == "" {
		return DefaultPrefix, nil
	}
	if !validPrefix.MatchString(c.Prefix) {
		return "",
			fmt.Errorf(
				"iptables: prefix %q: want a capital letter, then capital letters, digits or "+
					"\"_\", 7 in all at most", c.Prefix)
	}
	return c.Prefix, nil
}

func (c *Config) logger() *slog.Logger {
	if c == nil || c.Logger == nil {
		return slog.New(slog.DiscardHandler)
	}
	return c.Logger
}

var (
	_ dataplane.Backend = (*Backend)(nil)
	_ dataplane.Locker  = (*Backend)(nil)
	_ dataplane.Witness = (*Backend)(nil)
)

// errNotObserved says that the engine's contract was broken: nothing is known of the kernel.
var errNotObserved = errors.New(
	"iptables: the kernel was not observed since the backend was opened or a commit failed")

// Backend keeps the services of one instance in the tables nat and filter of iptables. Its methods
// must not be called at the same time.
type Backend struct {
	kernel kernel
	log    *slog.Logger
	l      *layout
	// state is what the kernel holds of ours, and found what else it holds; valid only if observed.
	state    *state
	found    kernelState
	observed bool
}

// New opens a backend. Its errors match [dataplane.ErrNoPermission], [dataplane.ErrMissingModule],
// [dataplane.ErrKernelTooOld], or errors.ErrUnsupported if this is not Linux.
func New(cfg *Config) (*Backend, error) {
	prefix, err := cfg.prefix()
	if err != nil {
		return nil, err
	}
	b := &Backend{log: cfg.logger(), l: newLayout(prefix)}
	if err := b.kernel.open(cfg); err != nil {
		return nil, fmt.Errorf("iptables: open: %w", explain(err))
	}
	return b, nil
}

// Name returns "iptables".
func (b *Backend) Name() string { return Name }

// Check reports what iptables cannot express: schedulers other than random and round robin,
// forwarding other than NAT, names that do not fit into a comment; and session affinity where the
// kernel lacks xt_recent.
func (b *Backend) Check(c *servicemodel.ChangeSet) error { return check(c, &b.kernel.lacks) }

// Plan renders what Commit would send, in the language of iptables-restore.
func (b *Backend) Plan(c *servicemodel.ChangeSet) (dataplane.Plan, error) {
	if !b.observed {
		return nil, errNotObserved
	}
	return b.plan(c), nil
}

func (b *Backend) plan(c *servicemodel.ChangeSet) *plan {
	next, ch := b.l.step(b.state, c, b.found.localnet.before)
	return b.l.plan(&b.found, b.state, next, ch)
}

// adopt makes a reading what is known of the kernel.
func (b *Backend) adopt(r *raw) (*dataplane.Observation, error) {
	o, err := b.l.interpret(r)
	if err != nil {
		return nil, fmt.Errorf("iptables: %w", err)
	}
	b.state, b.found, b.observed = o.state, o.kernel, true
	return &dataplane.Observation{Table: o.state.table, Drift: o.summary(),
		OtherLayout: o.otherLayout}, nil
}

// committed makes what a plan leads to what is known of the kernel.
func (b *Backend) committed(p *plan) {
	b.state = p.next
	for i := range nft.Families {
		for _, t := range tables {
			b.found.tables[i][t] = b.found.tables[i][t] || p.tables[i][t]
		}
	}
	if p.version != nil {
		b.found.versions, b.found.nextVersion = nil, newVersion()
		b.found.unversioned = false
		if p.version.made {
			b.found.versions = []uint32{p.version.next}
		}
	}
	for _, x := range p.chains {
		b.found.uses.change(b.l, x, p.needed[x.id])
		switch {
		case x.shared && x.removes():
			delete(b.found.shared, x.id)
		case x.shared:
			b.found.shared[x.id] = b.l.sharedAfter(x, b.found.shared[x.id])
		}
	}
	b.found.drift = nil
	if p.localnet != sysctlKeep {
		b.found.localnet.on = p.localnet == sysctlOn
	}
}

// sharedAfter returns the rules of a shared chain after a change: where those of others are among
// ours does not matter.
func (l *layout) sharedAfter(x *chainChange, all []rule) []rule {
	want, rules := x.ruleset(), slices.Clone(x.after)
	for i := range all {
		if !l.own(x.id, &all[i], want) {
			rules = append(rules, all[i])
		}
	}
	return rules
}
