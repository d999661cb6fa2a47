package servicemodel

import (
	"net/netip"
	"slices"

	"github.com/kernlb/kernlb/servicemodel/internal/pmap"
)

// memory is a table's record of its resolution. It limits the cost of the next resolution to the
// changes.
type memory struct {
	state      State
	view       view
	footprints footprints
	warnings   Warnings
	homeless   homeless // filled when a caller asks for a cause
}

// Resolve computes the meaning of the state on its node. prev is an earlier table, or nil. The
// result shares unchanged contents with prev, and the cost depends on the changes. The same state
// always gives the same result, except for the order of slots, which depends on prev. If the
// changes are invalid, Resolve returns no table and an error that joins a *[FieldError] for every
// problem.
func Resolve(prev *Table, s State) (*Table, error) {
	prev = prev.whole()
	old := &memory{} // without a memory, everything is new
	if prev.remembers() {
		if old = prev.memory; old.state.Same(s) {
			return prev, nil
		}
	}

	otherNode := !prev.remembers() || old.state.node != s.node
	edits, err := s.editsSince(old.state, otherNode)
	if err != nil {
		return nil, err
	}
	view := old.view
	if otherNode {
		view = s.viewpoint().view()
	}
	if old.state.entries.Len() == 0 || view != old.view ||
		len(edits) > bulkThreshold && len(edits) > s.Len()/4 {
		return resolveAll(prev, old.footprints, s), nil
	}

	next := *prev
	if otherNode {
		next.rules = s.viewpoint().rules()
	}
	u := update{resolver: resolver{view: view}, t: &next, footprints: old.footprints,
		warned: old.warnings}
	if otherNode {
		u.warned = u.warned.with(Name{}, s.viewpoint().warnings())
	}
	u.apply(s, edits)
	next.memory = &memory{state: s, view: view, footprints: u.footprints, warnings: u.warned}
	return &next, nil
}

// bulkThreshold is the number of changed services from which rebuilding all maps can be cheaper
// than editing them.
const bulkThreshold = 64

// remembers reports whether t knows the state from which it was resolved. t may be nil.
func (t *Table) remembers() bool { return t != nil && t.memory != nil }

// service returns the service of the state from which t was resolved, or nil if there is none.
func (t *Table) service(n Name) *Service {
	if !t.remembers() {
		return nil
	}
	return t.memory.state.entries.At(n).service
}

// footprint is everything that one service has put into a table, except the objects that can be
// found in the table by the service's name.
type footprint struct {
	claims     []*Frontend // won or lost; sorted by service port and key
	clusterIPs []netip.Addr
	hairpins   []netip.Addr
}

func (f footprint) equal(o footprint) bool {
	return slices.Equal(f.claims, o.claims) && slices.Equal(f.clusterIPs, o.clusterIPs) &&
		slices.Equal(f.hairpins, o.hairpins)
}

type footprints = pmap.Map[Name, footprint, nameHash]
