package nftables

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/wait"
	"github.com/kernlb/kernlb/nftables/internal/form"
	"github.com/kernlb/kernlb/nftables/internal/plan"
	"github.com/kernlb/kernlb/servicemodel"
)

var (
	_ backends.Backend = (*backend)(nil)
	_ backends.Settler = (*backend)(nil)
	_ backends.Locker  = (*backend)(nil)
	_ backends.Blamer  = (*backend)(nil)
)

// errNotObserved means that a caller broke the contract of [backends.Backend].
var errNotObserved = errors.New(
	"nftables: the kernel was not observed since the backend was opened or the last error")

// backend programs the services of one instance in nf_tables. Its methods are not safe for
// concurrent use.
type backend struct {
	kernel // embedded: it has the methods that need the kernel, with stubs for other systems
	log    *slog.Logger
	pl     plan.Planner
	// observed says that pl describes the state of the kernel.
	observed bool
	// crowded says that a set was full. The tables are then replaced by larger ones.
	crowded bool
	// doubted is the version at which a commit of parts failed: at that version the kernel had
	// elements that the reading did not find, or lacked elements that it found.
	doubted form.Version
	// interrupted says that the last steps failed.
	interrupted bool
	// looks is the budget for checks for manual edits.
	looks wait.Budget
	// lacking is the result of the last probe for the table of each family.
	lacking [len(nft.Families)]lack
	// sweep is the work left to Settle if the version is unswept.
	sweep *plan.Sweep
}

// lack is the result of a probe of the kernel for a table: an error that names the missing feature,
// or nil.
type lack struct {
	err    error
	probed time.Time
}

// New opens a backend. Its errors match [kernelerr.ErrNoPermission], [kernelerr.ErrMissingModule],
// [kernelerr.ErrKernelTooOld], or errors.ErrUnsupported if the system is not Linux. The backend is
// also a [backends.Settler], a [backends.Locker], a [backends.Blamer] and a [backends.PartReader].
// It refuses the same change sets as [Check], and families whose tables the kernel does not support
// ([backends.FieldFamily]).
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
	table, err := cfg.table()
	if err != nil {
		return nil, err
	}
	b := &backend{log: cfg.logger(), pl: plan.NewPlanner(table, form.RandomEpoch),
		looks: wait.NewBudget(8, 20)}
	if b.pl.Hooks, err = cfg.hooks(); err != nil {
		return nil, err
	}
	if err := b.kernel.open(cfg, b.pl.Hooks); err != nil {
		return nil, fmt.Errorf("nftables: open: %w",
			nft.Explain(err, nil, nft.Running()))
	}

	return b, nil
}

// Name returns "nftables".
func (b *backend) Name() string { return Name }

// anew returns the changes from an empty table to c.New if a set was full. The commit then replaces
// the tables, possibly in several transactions.
func (b *backend) anew(c *servicemodel.ChangeSet) *servicemodel.ChangeSet {
	if !b.crowded || b.pl.Owning != nil {
		return c
	}
	return servicemodel.Diff(nil, c.New)
}

// committed records the state of the kernel after a plan. A plan that only ends a sweep has no
// change set.
func (b *backend) committed(p *plan.Plan) {
	if p.Changes != nil {
		b.crowded, b.interrupted = false, false
	}
	b.pl.Committed(p)
	switch {
	case p.Empty(): // nothing was sent
	case p.Next.Unswept:
		b.sweep = b.sweep.After(p, time.Now())
	default:
		b.sweep = nil
	}
}
