package read

import (
	"context"
	"fmt"

	"github.com/kernlb/kernlb/servicemodel"
)

// Run reads the owners' parts, or everything if the index turns out to be wrong.
func (p *Parts) Run(ctx context.Context, crowded bool) (*servicemodel.Table, error) {
	t, err := p.read(ctx, crowded)
	if err == nil && !p.OtherLayout() && !p.Whole && p.Damaged(t) {
		p.damage = true
		t, err = p.read(ctx, false)
	}

	return t, err
}

// read reads the tables without their elements, and then the elements that this reading needs.
func (p *Parts) read(ctx context.Context, crowded bool) (*servicemodel.Table, error) {
	var err error
	if p.Snapshot, err = p.reader.Tables(ctx, p.table, crowded); err != nil {
		return nil, err
	}
	var c servicemodel.Contents
	if !p.OtherLayout() {
		c.Rules = p.Rules
	}
	p.Whole = !p.sound(crowded)
	for _, r := range p.Tables {
		switch {
		case p.OtherLayout():
			err = p.readOther(ctx, r, &c)
		case p.Version.Unfinished: // no packet meets these tables
		case r.Exists && p.Whole: // the whole objects of a broken table are moved to the new table
			err = p.reader.Elements(ctx, r, nil)
			r.countUsers()
			r.Interpret(&c)
		case r.Exists:
			err = p.readParts(ctx, r, &c)
		}

		if err != nil {
			return nil, err
		}
		p.Text = append(p.Text, r.Text...)
	}

	if c.Rules.MasqueradeMark == 0 && p.want == nil && !p.OtherLayout() && p.exists() {
		// without a wanted table nothing sets other rules, and an empty state is valid
		empty, _ := servicemodel.Resolve(nil, servicemodel.State{})
		c.Rules = empty.Rules()
	}

	if err := p.reader.RequireVersion(ctx, p.table, p.Version); err != nil {
		return nil, err
	}
	t, err := servicemodel.NewTable(c)
	if err != nil {
		return nil, fmt.Errorf("contents of the kernel: %w", err)
	}
	return t, nil
}
