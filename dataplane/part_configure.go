package dataplane

import (
	"context"

	"github.com/kernlb/kernlb/internal/nocopy"
	"github.com/kernlb/kernlb/servicemodel"
)

// Get returns the part of an owner, with the settings of the instance. The table is empty if the
// owner holds nothing.
func (p *Parts) Get(ctx context.Context, owner string) (*servicemodel.Table, error) {
	t := task{doing: "get the part", owners: []string{owner}}
	if err := p.turn.take(ctx); err != nil {
		return nil, t.error(err)
	}
	defer p.turn.give()
	var o *Observation
	err := p.observers.retry(ctx, "read", func() (err error) {
		o, err = p.whole(ctx, t.owners)
		return err
	})
	if err != nil {
		return nil, t.error(err)
	}
	return nocopy.Of(o.Table).Part(owner), nil
}

// whole reads the parts of owners in an instance that this version made.
func (p *Parts) whole(ctx context.Context, owners []string) (*Observation, error) {
	o, err := p.observe(ctx, owners, nil)
	if err == nil && o.OtherLayout {
		err = otherLayout(o)
	}
	return o, err
}

// Configure gives the instance the settings of a node in one commit, whatever owners hold something
// there. A new version of a program changes a setting this way. Parts stay, and packets for them
// are treated by the new settings. Later parts adopt them. If no owner
// holds anything, Configure writes nothing, because the first part brings its own settings.
func (p *Parts) Configure(ctx context.Context, n servicemodel.Node) (*Result, error) {
	return p.change(ctx, task{doing: "configure parts", compare: func() (*partChange, error) {
		p.phase.enter(PhaseResolve)
		t, err := servicemodel.Resolve(nil, servicemodel.State{}.WithNode(n))
		if err != nil {
			return nil, refusedState{err}
		}
		o, err := p.whole(ctx, nil)
		if err != nil {
			return nil, err
		}
		p.phase.enter(PhaseCheck)
		held, rules := o.Table.Rules(), t.Rules()
		if held.MasqueradeMark == 0 || held.Equal(rules) {
			return noChange(), nil
		}
		next := o.Table.Apply(&servicemodel.ChangeSet{
			Rules: &servicemodel.Change[servicemodel.Rules]{Old: &held, New: &rules}})
		c := &partChange{changes: servicemodel.Diff(o.Table, next), drift: o.Drift}
		if err := p.backend.Check(c.changes); err != nil {
			return nil, refusedState{err}
		}
		return c, nil
	}})
}
