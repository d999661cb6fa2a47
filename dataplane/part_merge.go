package dataplane

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/servicemodel"
)

// merge is the comparison of several owners' states with the kernel. [Parts.Apply] is a merge of
// one owner.
//
// A refused owner is left out as a whole and keeps its part, as if the call did not name the owner.
// Its part may collide with another owner of the call, so the merge then starts again without the
// refused owners. Afterwards, each refused owner is merged once more with the others. Therefore, an
// Apply of each owner that was refused in the end would be refused, too. Owners are merged in the
// order of their names: the first of two owners that claim the same address gets it, and the first
// owner with frontends of a new instance brings its settings. All parts of the call are removed
// from the table before the first is added. So an address can move between owners in one commit, in
// either direction.
type merge struct {
	states  map[string]servicemodel.State
	refused []Refusal
	// parts are the tables of the owners that are not refused, resolved with the settings of their
	// states, and adopted with the settings of the instance. base is the instance without them.
	parts, adopted map[string]*servicemodel.Table
	base           *servicemodel.Table
	// seen is the last observation, or nil if it is outdated. asked are the frontends whose owners
	// it includes. holders are all owners that have a part, or nil if they were not read since.
	seen    *backends.Observation
	asked   *servicemodel.Table
	holders []string
	// settled are the settings of the last merge that succeeded, if a merged owner has frontends.
	settled *servicemodel.Rules
}

// compare compares the states of owners with their parts. The result names the refused owners.
func (p *Parts) compare(ctx context.Context, states map[string]servicemodel.State) (*Result,
	error) {
	p.engine.enter(PhaseResolve)
	m := &merge{states: states, parts: map[string]*servicemodel.Table{}}
	for owner, s := range states {
		part, err := servicemodel.Resolve(nil, s)
		wrong := errors.Join(s.ValidatePart(owner), s.ValidateUnattended())
		if err = cmp.Or(wrong, err); err != nil {
			m.refused = append(m.refused, Refusal{Owner: owner, Err: err})
			continue
		}
		m.parts[owner] = part
	}

	m.ask(m.parts)
	r, all := p.noChange(), maps.Clone(m.parts)
	for len(m.parts) > 0 {
		next, refused, err := p.merge(ctx, m)
		if err != nil {
			return nil, err
		}
		if len(refused) == 0 {
			r = next
			break
		}

		for _, owner := range slices.Sorted(maps.Keys(refused)) {
			delete(m.parts, owner)
			m.refused = append(m.refused, Refusal{Owner: owner, Err: refused[owner]})
		}
	}

	held := r.Changes.New
	if len(m.parts) == 0 && m.seen != nil {
		held = m.seen.Table
	}
	for again := len(m.refused) > 1; again; {
		next, err := p.again(ctx, m, all, held)
		if err != nil {
			return nil, err
		}
		if again = next != nil; again {
			r, held = next, next.Changes.New
		}
	}
	r.Refused = m.refused
	slices.SortFunc(r.Refused, func(a, b Refusal) int { return cmp.Compare(a.Owner, b.Owner) })
	return r, nil
}

// again merges refused owners again if the owners that collided with them were refused later. It
// returns nil if there are none. next is the result of the last merge.
func (p *Parts) again(ctx context.Context, m *merge, all map[string]*servicemodel.Table,
	next *servicemodel.Table) (r *Result, err error) {
	var refused []Refusal
	for _, was := range m.refused {
		part := all[was.Owner]
		if part == nil || p.refuses(m, next, part, was.Owner) { // nil: invalid
			refused = append(refused, was)
			continue
		}
		m.parts[was.Owner] = part
		with, others, err := p.merge(ctx, m)
		switch {
		case err != nil:
			return nil, err
		case len(others) > 0:
			delete(m.parts, was.Owner)
			refused = append(refused, was)
		default:
			r, next = with, with.Changes.New
		}
	}

	m.refused = refused
	return r, nil
}

// refuses reports whether a merge of one more owner into t would certainly be refused. It costs
// little beside a merge, because it compares only that owner.
func (p *Parts) refuses(m *merge, t, part *servicemodel.Table, owner string) bool {
	if t.Len() == 0 || part.Len() == 0 { // the settings may change
		return false
	}
	s := m.states[owner]
	node, err := s.Adopt(t.Rules())
	if err != nil {
		return m.settled != nil || slices.ContainsFunc(m.holders, func(o string) bool {
			return o != owner && m.parts[o] == nil
		})
	}
	part, err = servicemodel.Resolve(nil, s.WithNode(node))
	if err != nil {
		return false
	}
	with, err := t.WithPart(owner, part)
	if err != nil {
		return true
	}
	return p.engine.backend.Check(servicemodel.Diff(t, with)) != nil
}

// compareOne compares the state of one owner. If the owner is refused, compareOne returns the
// refusal as an error.
func (p *Parts) compareOne(ctx context.Context, owner string, s servicemodel.State) (*Result,
	error) {
	r, err := p.compare(ctx, map[string]servicemodel.State{owner: s})
	if err == nil && len(r.Refused) > 0 {
		return nil, refusedState{r.Refused[0].Err}
	}
	return r, err
}

// merge returns the change for the owners that are not refused, or the owners that must be left out
// first, with the reasons.
func (p *Parts) merge(ctx context.Context, m *merge) (r *Result, refused map[string]error,
	err error) {
	owners := slices.Sorted(maps.Keys(m.parts))
	if m.seen == nil {
		all := slices.Sorted(maps.Keys(m.states))
		if m.seen, err = p.observe(ctx, all, m.asked); err != nil {
			return nil, nil, err
		}
	}

	p.engine.enter(PhaseCheck)
	m.base = m.seen.Table
	if m.seen.OtherLayout {
		if m.base = m.base.WithoutParts(owners...); m.base.Len() > 0 {
			return nil, nil, otherLayout(m.seen)
		}
	}

	refused, err = p.adopt(ctx, m, owners, m.settled)
	if err != nil || len(refused) > 0 {
		return nil, refused, err
	}
	if m.ask(m.adopted) { // other owners may hold that
		m.seen, m.holders, m.settled = nil, nil, nil
		return p.merge(ctx, m)
	}
	next, err := m.base.WithParts(m.adopted)
	if err != nil {
		refused, err = byOwner(err, owners)
		return nil, refused, err
	}
	r = p.changeTo(m.seen, next, owners...)
	for _, owner := range owners {
		r.Warnings = r.Warnings.With(m.adopted[owner].Warnings())
	}
	if err := p.engine.backend.Check(r.Changes); err != nil {
		refused, err = byOwner(err, owners)
		return nil, refused, err
	}
	if slices.ContainsFunc(owners, func(o string) bool { return m.adopted[o].Len() > 0 }) {
		rules := m.base.Rules()
		m.settled = &rules
	}
	return r, nil, nil
}

// ask adds frontends of parts to the frontends whose owners an observation must include. It reports
// whether any frontend was missing.
func (m *merge) ask(parts map[string]*servicemodel.Table) (more bool) {
	for _, owner := range slices.Sorted(maps.Keys(parts)) {
		switch part := parts[owner]; {
		case m.asked == nil:
			m.asked, more = part, true
		case claimsMore(part, m.asked):
			m.asked, more = over(m.asked, part), true
		}
	}

	return more
}

// claimsMore reports whether part contains a frontend that is not in the table than.
func claimsMore(part, than *servicemodel.Table) bool {
	for f := range part.Frontends() {
		if than.Frontend(f.Key) == nil {
			return true
		}
	}

	return false
}

// adopt resolves the states of owners with the settings of the instance. If only these owners hold
// anything, the instance gets the settings of the first owner with frontends instead, unless the
// settings are given. refused are the owners whose states contradict the settings. An owner without
// frontends needs no settings, so it neither brings nor contradicts them.
func (p *Parts) adopt(ctx context.Context, m *merge, owners []string,
	given *servicemodel.Rules) (refused map[string]error, err error) {
	rules, bound := m.base.Rules(), given != nil
	if bound {
		rules = *given
	}
	owners = slices.Clone(owners)
	has := func(owner string) int { return min(1, m.parts[owner].Len()) }
	slices.SortStableFunc(owners, func(a, b string) int { return has(b) - has(a) })
	m.adopted, refused = maps.Clone(m.parts), map[string]error{}
	for _, owner := range owners {
		own := m.parts[owner].Rules()
		if rules.MasqueradeMark == 0 {
			rules = own
		}
		if !rules.Equal(own) {
			node, differs := m.states[owner].Adopt(rules)
			if differs != nil && !bound {
				bound, err = p.othersHold(ctx, m)
			}
			if differs == nil {
				m.adopted[owner], err = servicemodel.Resolve(nil, m.states[owner].WithNode(node))
			}
			switch {
			case err != nil:
				return nil, err
			case differs == nil || has(owner) == 0:
			case bound:
				refused[owner] = differs
			default:
				return p.adopt(ctx, m, owners, &own)
			}
		}
		bound = bound || m.adopted[owner].Len() > 0
	}

	if !rules.Equal(m.base.Rules()) {
		m.base = m.base.Apply(&servicemodel.ChangeSet{
			Rules: &servicemodel.Change[servicemodel.Rules]{New: &rules}})
	}
	return refused, nil
}

// othersHold reports whether an owner that is not merged holds anything.
func (p *Parts) othersHold(ctx context.Context, m *merge) (bool, error) {
	if m.holders == nil {
		owners, err := p.owners(ctx)
		if err != nil {
			return false, err
		}
		m.holders = append([]string{}, owners...)
	}

	return slices.ContainsFunc(m.holders, func(o string) bool { return m.parts[o] == nil }), nil
}

// byOwner splits an error into the errors of each owner. It fails if the problem is the instance,
// or a part that stays.
func byOwner(err error, owners []string) (map[string]error, error) {
	if len(owners) == 1 {
		return map[string]error{owners[0]: err}, nil
	}
	of := map[string]error{}
	for _, p := range Problems(err) {
		owner := p.Service.Namespace
		if _, found := slices.BinarySearch(owners, owner); !found {
			return nil, refusedState{err}
		}
		of[owner] = errors.Join(of[owner], p.Err)
	}

	return of, nil
}
