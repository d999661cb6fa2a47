package servicemodel

import (
	"slices"

	"github.com/kernlb/kernlb/servicemodel/internal/pmap"
)

// memory is a table's record of its resolution. With it the next resolution costs only what
// changed.
type memory struct {
	state      State
	view       view
	footprints footprints
	slow       slowStarts
	homeless   homeless // filled when a cause is asked for
}

// Resolve decides what the state means on its node. prev is an earlier table, or nil. The result
// shares unchanged contents with prev, and the cost depends on the changes. The same state always
// gives the same result, except for the order of slots, which prev influences. If the changes are
// invalid, Resolve returns no table and an error that joins a *[FieldError] for every problem.
func Resolve(prev *Table, s State) (*Table, error) {
	prev = prev.whole()
	old := &memory{}
	if prev.remembers() {
		old = prev.memory
		if old.state.Same(s) {
			return prev, nil
		}
	}
	edits := s.editsSince(old.state)
	if err := validate(s, edits, !prev.remembers() || old.state.node != s.node); err != nil {
		return nil, err
	}
	if !prev.remembers() || len(edits) > bulkThreshold && len(edits) > s.Len()/4 {
		if prev.remembers() {
			edits = s.editsSince(State{})
		}
		return rebuild(prev, s, edits), nil
	}

	t := *prev
	m := mover{resolver: resolver{view: old.view}, state: s, t: &t, footprints: old.footprints}
	if old.state.node != s.node {
		t.rules = s.viewpoint().rules()
		if v := s.viewpoint().view(); v != old.view {
			// Resolve every service again, also those that are gone.
			gone := filter(edits, func(e edit) bool { return e.service == nil })
			edits = append(gone, filter(s.editsSince(State{}), func(e edit) bool {
				return e.service != nil
			})...)
			slices.SortFunc(edits, func(a, b edit) int { return a.name.Compare(b.name) })
			m.view = v
		}
	}
	m.move(edits)
	t.memory = &memory{state: s, view: m.view, footprints: m.footprints,
		slow: old.slow.after(edits)}
	return &t, nil
}

// bulkThreshold is the number of changed services from which rebuilding all maps can be cheaper
// than editing them.
const bulkThreshold = 64

// remembers reports whether t knows the state that it was resolved from. t may be nil.
func (t *Table) remembers() bool { return t != nil && t.memory != nil }

type footprints = pmap.Map[Name, footprint, nameHash]
