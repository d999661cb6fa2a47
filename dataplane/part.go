package dataplane

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/kernlb/kernlb/servicemodel"
)

// PartsConfig tunes [Parts]. A nil *PartsConfig is the zero PartsConfig.
type PartsConfig struct {
	// Logger gets a record for each change. Nil means silence.
	Logger *slog.Logger
	// Flows is notified of each change and deletes the flows that the change leaves stale. Nil
	// means that stale flows stay.
	Flows Flows
}

// Parts lets many programs share one instance: each declares the services of owners of its own, and
// leaves the rest as it is. It knows nothing but what the kernel holds, so that a program can run
// once for each change and needs neither a file nor a daemon, as the plugins of CNI do.
//
// An owner is a namespace: what it holds, its part, is what the services with that
// [servicemodel.Name.Namespace] are in the kernel. An owner has what it holds until it is given
// something else or removed, by whatever program. Name owners so that they tell whose they are and
// do not meet those of others; "network,container,interface" fits for an attachment of CNI: the
// characters of a name are those of [servicemodel.Name], and namespace, service and port have 191
// bytes together.
//
// What is decided once for the node ([servicemodel.Rules]) belongs to the instance. The first part
// brings the settings of its node, later ones adopt them: see [servicemodel.Node.Adopt]. They stay
// until an owner brings others while nobody else holds anything.
//
// [Engine.Apply] makes an instance hold exactly one state, and so removes the parts: an instance
// has either one engine or parts. Backends with different tables, chains or marks are instances
// beside each other.
//
// The methods of Parts may be called by several goroutines at a time; they run one after the other,
// and stop waiting when their context ends. Programs that change one instance take turns
// ([Locker]). What they cost depends on the owner's part if the backend is a [PartReader], and else
// on all that the instance holds.
type Parts struct {
	backend   Backend
	flows     Flows
	observers observers
	turn      turn // who has it has what follows

	phase stopwatch
	// told is what the flows were told that the kernel holds, as far as it was seen here, and state
	// the state that goes with it.
	told  *servicemodel.Table
	state servicemodel.State
}

// NewParts returns the parts of the instance of a backend, which must not be used by others at the
// same time. Closing the backend stays with the caller.
func NewParts(b Backend, cfg *PartsConfig) *Parts {
	p := &Parts{backend: b, turn: newTurn()}
	if cfg == nil {
		return p
	}
	p.flows = cfg.Flows
	if cfg.Logger != nil {
		p.Subscribe(logTo(cfg.Logger))
	}
	return p
}

// Subscribe adds an observer of what is done to parts from now on. Each Apply, Remove and Keep ends
// with one of these: [Applied], [PartRefused] or [Failed], which say whose parts, in which phase,
// and how long each took. [ClaimConflict] and [Repaired] come before Applied; Failed comes after it
// if the kernel holds the part and work is left ([ErrUnsettled]). A call of Settle ends with
// [Settled] or Failed. Before all of them may come a [WriteConflict] for each time that the kernel
// was read again. Calling unsubscribe ends that, except for a call that is under way.
func (p *Parts) Subscribe(o Observer) (unsubscribe func()) { return p.observers.add(o) }

// Apply makes an owner hold exactly the services of a state, all of which are in the namespace of
// its name. It returns when the kernel has them. If nothing differs, nothing is written.
//
// A part is refused as a whole ([ErrRefused]), and the kernel not touched, if anything is wrong
// with it. The error joins a *[servicemodel.FieldError] for what is invalid or contradicts the
// instance's settings, a *[servicemodel.TakenError] for each frontend that another owner holds, and
// an *[UnsupportedError] or *[CollisionError] for what the backend refuses.
//
// [ErrUnsettled] is the one error that comes with a result: the kernel holds the part then. All
// errors but that of a context that ended before it was Apply's turn are *[PhaseError] values.
// [Result.Settle] is how long until there is something to look at again, such as late packets of a
// UDP port that is new: a program that is about to end may ignore it.
func (p *Parts) Apply(ctx context.Context, owner string, s servicemodel.State) (*Result, error) {
	return p.change(ctx, task{"apply the part", []string{owner}, s, func() (*partChange, error) {
		return p.compare(ctx, owner, s)
	}})
}

// Plan returns what Apply would do, and touches nothing. It fails as Apply would.
func (p *Parts) Plan(ctx context.Context, owner string, s servicemodel.State) (*Preview, error) {
	t := task{doing: "plan the part", owners: []string{owner}}
	if err := p.turn.take(ctx); err != nil {
		return nil, t.error(err)
	}
	defer p.turn.give()
	p.phase.begin(PhaseResolve)
	var c *partChange
	err := p.observers.retry(ctx, "read", func() (err error) {
		c, err = p.compare(ctx, owner, s)
		return err
	})
	if err != nil {
		return nil, p.phase.fail(t.error(err))
	}
	p.phase.enter(PhaseCommit)
	plan, err := p.backend.Plan(c.changes)
	if err != nil {
		return nil, p.phase.fail(t.error(err))
	}
	return &Preview{Changes: c.changes, Drift: c.drift, Plan: plan, Conflicts: c.conflicts}, nil
}

// Remove removes what owners hold. Owners that hold nothing are no error.
func (p *Parts) Remove(ctx context.Context, owners ...string) (*Result, error) {
	return p.change(ctx, task{doing: "remove the parts", owners: slices.Clone(owners),
		compare: func() (*partChange, error) { return p.without(ctx, owners) }})
}

// Keep removes what those owners hold of whom keep is false: garbage collection in one call. Keep
// tells by the name which owners are a program's own to judge: those of others it keeps.
func (p *Parts) Keep(ctx context.Context, keep func(owner string) bool) (*Result, error) {
	return p.change(ctx, task{doing: "keep parts", compare: func() (*partChange, error) {
		p.phase.enter(PhaseObserve)
		owners, err := p.owners(ctx)
		if err != nil {
			return nil, err
		}
		return p.without(ctx, slices.DeleteFunc(owners, keep))
	}})
}

// Settle does the work that earlier changes left to a later time and that is due, see
// [Engine.Settle]. Each Apply, Remove and Keep does it as well.
func (p *Parts) Settle(ctx context.Context) (next time.Duration, err error) {
	r, err := p.change(ctx, task{doing: doingSettleParts, compare: func() (*partChange, error) {
		_, err := p.observe(ctx, nil, nil)
		return noChange(), err
	}})
	if r == nil {
		return 0, err
	}
	return r.Settle, err
}

// Owners returns the owners that hold anything, sorted.
func (p *Parts) Owners(ctx context.Context) ([]string, error) {
	var owners []string
	err := p.turn.take(ctx)
	if err == nil {
		defer p.turn.give()
		err = p.observers.retry(ctx, "read", func() (err error) {
			owners, err = p.owners(ctx)
			return err
		})
	}
	if err != nil {
		return nil, fmt.Errorf("list the owners of parts: %w", err)
	}
	return owners, nil
}
