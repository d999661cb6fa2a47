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
// refused owner. Therefore, an Apply of each owner that was refused in the end would be refused,
// too. Owners are merged in the order of their names: the first of two owners that claim the same
// address gets it, and the first owner of a new instance brings its settings. All parts of the call
// are removed from the table before the first is added. So an address can move between owners in
// one commit, in either direction.
type merge struct {
	states  map[string]servicemodel.State
	refused []Refusal
	// parts are the tables of the owners that are not refused, resolved with the settings of their
	// states, and adopted with the settings of the instance. base is the instance without them.
	parts, adopted map[string]*servicemodel.Table
	base           *servicemodel.Table
	// seen is the last observation, or nil if it is outdated. asked are the frontends whose owners
	// it includes.
	seen  *backends.Observation
	asked *servicemodel.Table
}

// compare compares the states of owners with their parts. The result names the refused owners.
func (p *Parts) compare(ctx context.Context, states map[string]servicemodel.State) (*Result,
	error) {
	p.engine.enter(PhaseResolve)
	m := &merge{states: states, parts: map[string]*servicemodel.Table{}}
	for owner, s := range states {
		part, err := servicemodel.Resolve(nil, s)
		if err = cmp.Or(s.ValidatePart(owner), err); err != nil {
			m.refused = append(m.refused, Refusal{Owner: owner, Err: err})
			continue
		}
		m.parts[owner] = part
	}

	m.ask(m.parts)
	r, all := p.noChange(), maps.Clone(m.parts)
	for done := len(m.parts) == 0; !done; {
		next, owner, err := p.merge(ctx, m)
		switch done = err == nil; {
		case done:
			r = next
		case owner == "":
			return nil, err
		default:
			delete(m.parts, owner)
			m.refused = append(m.refused, Refusal{Owner: owner, Err: err})
			done = len(m.parts) == 0
		}
	}

	for again := len(m.refused) > 1; again; {
		next, err := p.again(ctx, m, all)
		if err != nil {
			return nil, err
		}
		if again = next != nil; again {
			r = next
		}
	}
	r.Refused = m.refused
	slices.SortFunc(r.Refused, func(a, b Refusal) int { return cmp.Compare(a.Owner, b.Owner) })
	return r, nil
}

// again merges refused owners again if the owners that collided with them were refused later. It
// returns nil if there are none.
func (p *Parts) again(ctx context.Context, m *merge, all map[string]*servicemodel.Table) (
	r *Result, err error) {
	var refused []Refusal
	for _, was := range m.refused {
		part := all[was.Owner]
		if part == nil { // invalid
			refused = append(refused, was)
			continue
		}
		m.parts[was.Owner] = part
		switch next, owner, err := p.merge(ctx, m); {
		case err == nil:
			r = next
		case owner == "":
			return nil, err
		default:
			delete(m.parts, was.Owner)
			refused = append(refused, was)
		}
	}

	m.refused = refused
	return r, nil
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

// merge returns the change for the owners that are not refused, or an error. If the error concerns
// one owner, merge returns that owner, too.
func (p *Parts) merge(ctx context.Context, m *merge) (r *Result, refused string, err error) {
	owners := slices.Sorted(maps.Keys(m.parts))
	if m.seen == nil {
		all := slices.Sorted(maps.Keys(m.states))
		if m.seen, err = p.observe(ctx, all, m.asked); err != nil {
			return nil, "", err
		}
	}

	p.engine.enter(PhaseCheck)
	m.base = m.seen.Table
	if m.seen.OtherLayout {
		if m.base = m.base.WithoutParts(owners...); m.base.Len() > 0 {
			return nil, "", otherLayout(m.seen)
		}
	}

	if refused, err = p.adopt(ctx, m, owners); err != nil {
		return nil, refused, err
	}
	if m.ask(m.adopted) { // other owners may hold that
		m.seen = nil
		return p.merge(ctx, m)
	}
	next, err := m.base.WithParts(m.adopted)
	if err != nil {
		return nil, Problems(err)[0].Service.Namespace, err
	}
	r = p.changeTo(m.seen, next, owners...)
	for _, owner := range owners {
		r.Warnings = r.Warnings.With(m.adopted[owner].Warnings())
	}
	if err := p.engine.backend.Check(r.Changes); err != nil {
		refused, err = ofOneOwner(err, owners)
		return nil, refused, err
	}
	return r, "", nil
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

// adopt resolves the states of owners with the settings of the instance. If only these owners have
// parts, the instance gets the settings of the first owner instead. If an owner's state contradicts
// the settings, adopt returns the owner.
func (p *Parts) adopt(ctx context.Context, m *merge, owners []string) (refused string, err error) {
	rules := m.base.Rules()
	m.adopted = maps.Clone(m.parts)
	for i, owner := range owners {
		part := m.parts[owner]
		if rules.MasqueradeMark == 0 {
			rules = part.Rules()
		}
		if rules.Equal(part.Rules()) {
			continue
		}
		node, differs := m.states[owner].Adopt(rules)
		if differs == nil {
			m.adopted[owner], err = servicemodel.Resolve(nil, m.states[owner].WithNode(node))
			if err != nil {
				return "", err
			}
			continue
		}

		all, err := p.owners(ctx)
		if err != nil {
			return "", err
		}
		if i > 0 || slices.ContainsFunc(all, func(o string) bool { return m.parts[o] == nil }) {
			return owner, differs
		}
		rules = part.Rules()
		m.base = m.base.Apply(&servicemodel.ChangeSet{
			Rules: &servicemodel.Change[servicemodel.Rules]{New: &rules}})
	}

	return "", nil
}

// ofOneOwner returns the first of the owners whose services the backend refuses, with all its
// problems. It returns no owner if the problem is the instance, or a part that does not change.
func ofOneOwner(err error, owners []string) (string, error) {
	if len(owners) == 1 {
		return owners[0], err
	}
	owner, of := "", []error(nil)
	for _, p := range Problems(err) {
		if !slices.Contains(owners, p.Service.Namespace) {
			return "", refusedState{err}
		}
		if owner == "" || owner == p.Service.Namespace {
			owner, of = p.Service.Namespace, append(of, p.Err)
		}
	}

	return owner, errors.Join(of...)
}
