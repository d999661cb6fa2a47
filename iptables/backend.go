package iptables

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/netns"
	"github.com/kernlb/kernlb/internal/rendering"
	"github.com/kernlb/kernlb/servicemodel"
)

// Name is the name of this backend.
const Name = "iptables"

// defaultPrefix is kube-proxy's prefix. It begins the names of chains if [Config.Prefix] is empty.
const defaultPrefix = "KUBE"

// Config configures a backend. A nil *Config is the zero Config.
type Config struct {
	// NetNS names the network namespace of the services.
	NetNS netns.Namespace
	// Prefix is the start of chain names, before a "-", and identifies the instance: backends with
	// different prefixes do not see each other. Empty means "KUBE". It starts with a letter and
	// consists of capital letters, digits and "_", at most 7 characters.
	Prefix string
	// TakeOver claims chains with the prefix even if no instance of kernlb created them: a commit
	// replaces the contents of chains whose names this backend uses. By default, such chains are
	// not touched, and each state is refused with a [backends.CollisionError]. Chains of
	// kube-proxy, with the prefix "KUBE", are always taken over.
	TakeOver bool
	// Logger gets a debug record for each commit, and an info record if the sysctl route_localnet
	// is not restored because other programs rely on it. Nil disables logging.
	Logger *slog.Logger
}

// maxPrefix leaves room for "-SVC-" and 16 characters in the 28 characters of a chain name.
const maxPrefix = 7

// withDefaults checks the configuration and fills in defaults.
func (c *Config) withDefaults() (r Config, err error) {
	if c != nil {
		r = *c
	}
	r.Prefix = cmp.Or(r.Prefix, defaultPrefix)
	r.Logger = cmp.Or(r.Logger, slog.New(slog.DiscardHandler))
	if !rendering.IsName(r.Prefix, maxPrefix, rendering.Capitals,
		rendering.Capitals+rendering.Digits+"_") {
		err = fmt.Errorf("iptables: prefix %q: must be capital letters, digits or \"_\", begin "+
			"with a letter, and have at most 7 characters", r.Prefix)
	}

	return r, err
}

var (
	_ backends.Backend = (*backend)(nil)
	_ backends.Locker  = (*backend)(nil)
	_ backends.Blamer  = (*backend)(nil)
)

// errNotObserved says that a caller broke the contract of backends.Backend.
var errNotObserved = errors.New(
	"iptables: the kernel was not observed since the backend was opened or a commit failed")

// backend keeps the services of one instance in the tables nat and filter of iptables. Its methods
// are not safe for concurrent use.
type backend struct {
	kernel // embedded: without Linux it has the methods that need the kernel
	log    *slog.Logger
	l      *layout
	// takeOver is [Config.TakeOver].
	takeOver bool
	// state is our own share of the kernel's contents, and found is the rest. Both are valid only
	// if observed is set.
	state    *state
	found    kernelState
	observed bool
	// written is the table of the last commit, nil before the first.
	written *servicemodel.Table
}

// New opens a backend. Its errors match [kernelerr.ErrNoPermission], [kernelerr.ErrMissingModule],
// [kernelerr.ErrKernelTooOld], or errors.ErrUnsupported if the system is not Linux. The backend is
// also a [backends.Locker] and a [backends.Blamer].
//
// The methods are not safe for concurrent use.
func New(cfg *Config) (backends.Backend, error) {
	b, err := openBackend(cfg)
	if err != nil {
		return nil, err
	}
	return b, nil
}

func openBackend(cfg *Config) (*backend, error) {
	c, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	b := &backend{log: c.Logger, l: newLayout(c.Prefix), takeOver: c.TakeOver}
	if err := b.kernel.open(&c); err != nil {
		return nil, fmt.Errorf("iptables: open: %w", err)
	}
	return b, nil
}

// Name returns "iptables".
func (b *backend) Name() string { return Name }

// Check returns the errors of the function [Check]. It also refuses session affinity if the kernel
// lacks xt_recent, SCTP if it lacks xt_sctp, and IPv6 addresses if it lacks anything that IPv6
// chains need. Chains of other programs with the instance's names are a [backends.CollisionError]
// unless [Config.TakeOver] is set.
func (b *backend) Check(c *servicemodel.ChangeSet) error {
	return errors.Join(b.collision(), check(c, &b.kernel.lacks))
}

// collision returns an error if another program has a chain with one of the instance's names.
func (b *backend) collision() error {
	if b.observed && b.found.inTheWay != "" {
		return &backends.CollisionError{Backend: Name, Object: b.found.inTheWay}
	}
	return nil
}

// Plan renders the transaction of Commit in the language of iptables-restore.
func (b *backend) Plan(c *servicemodel.ChangeSet) (backends.Plan, error) {
	if !b.observed {
		return nil, errNotObserved
	}
	return b.plan(c), b.collision()
}

func (b *backend) plan(c *servicemodel.ChangeSet) *plan {
	next, ch := b.l.step(b.state, c, &b.found)
	return b.l.plan(&b.found, next, ch)
}

// committed records the contents of the kernel after a plan.
func (b *backend) committed(p *plan) {
	b.state, b.written = p.next, p.next.table
	for t, made := range p.tables {
		b.found.tables[t] = (b.found.tables[t] || made) && !p.gone[t]
	}
	if p.version != nil {
		b.found.versions, b.found.nextVersion = nil, newVersion()
		b.found.unversioned = false
		if p.version.made {
			b.found.versions = []chainID{p.version.next}
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

	for _, id := range p.base {
		delete(b.found.shared, id)
	}
	b.found.drift = nil
	b.found.sysctls.Committed(p.sysctls)
}

// sharedAfter returns the rules of a shared chain after a change. The position of other programs'
// rules among ours does not matter.
func (l *layout) sharedAfter(x *chainChange, all []rule) []rule {
	want, rules := x.ruleset(), slices.Clone(x.after)
	for i := range all {
		if !l.own(x.id, &all[i], want) {
			rules = append(rules, all[i])
		}
	}

	return rules
}
