package servicemodel

import (
	"slices"

	"github.com/kernlb/kernlb/internal/persist"
)

// memory is what a table remembers of how it was resolved, so that the next one costs only what
// changed.
type memory struct {
	state      State
	view       view
	footprints footprints
	homeless   homeless // found when a cause is asked for
}

// Resolve decides what the state means on its node. prev, which may be nil, is a table resolved
// before: what did not change since is shared with it, and the cost is that of what did. The result
// is the same for the same state, apart from the order of slots, which prev influences. It returns
// an error, and no table, if what changed is invalid: every problem joined in one error, each a
// *[FieldError].
func Resolve(prev *Table, s State) (*Table, error) {
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
			// Every service is looked at anew, and so are those that are gone.
			gone := filter(edits, func(e edit) bool { return e.service == nil })
			edits = append(gone, filter(s.editsSince(State{}), func(e edit) bool {
				return e.service != nil
			})...)
			slices.SortFunc(edits, func(a, b edit) int { return a.name.Compare(b.name) })
			m.view = v
		}
	}
	m.move(edits)
	t.memory = &memory{state: s, view: m.view, footprints: m.footprints}
	return &t, nil
}

// bulkThreshold is how many services must differ before making all maps anew can be cheaper than
// editing them.
const bulkThreshold = 64

// remembers reports whether t, which may be nil, knows the state it was resolved from.
func (t *Table) remembers() bool { return t != nil && t.memory != nil }

type footprints = persist.Map[Name, footprint, nameOrder]
