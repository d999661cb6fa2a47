package servicemodel

import (
	"iter"
	"net/netip"
	"slices"

	"github.com/kernlb/kernlb/servicemodel/internal/pmap"
)

// memory is a table's record of its resolution. With it the next resolution costs only what
// changed.
type memory struct {
	state      State
	view       view
	footprints footprints
	slowStarts int      // the number of services that have one
	homeless   homeless // filled when a cause is asked for
}

// Resolve decides what the state means on its node. prev is an earlier table, or nil. The result
// shares unchanged contents with prev, and the cost depends on the changes. The same state always
// gives the same result, except for the order of slots, which prev influences. If the changes are
// invalid, Resolve returns no table and an error that joins a *[FieldError] for every problem.
func Resolve(prev *Table, s State) (*Table, error) {
	if prev != nil && prev.ramps != nil {
		prev = prev.whole()
	}
	if !prev.remembers() {
		edits := s.editsSince(State{})
		if err := validate(s, edits, true); err != nil {
			return nil, err
		}
		return resolveAll(prev, footprints{}, s, edits), nil
	}
	old := prev.memory
	if old.state.Same(s) {
		return prev, nil
	}
	edits, otherNode := s.editsSince(old.state), old.state.node != s.node
	if err := validate(s, edits, otherNode); err != nil {
		return nil, err
	}
	next := *prev
	u := update{resolver: resolver{view: old.view}, t: &next, footprints: old.footprints}
	if otherNode {
		next.rules, u.view = s.viewpoint().rules(), s.viewpoint().view()
	}
	if u.view != old.view || len(edits) > bulkThreshold && len(edits) > s.Len()/4 {
		return resolveAll(prev, old.footprints, s, s.editsSince(State{})), nil
	}
	u.apply(s, edits)
	next.memory = &memory{state: s, view: u.view, footprints: u.footprints,
		slowStarts: old.slowStarts + moreSlowStarts(edits)}
	return &next, nil
}

// bulkThreshold is the number of changed services from which rebuilding all maps can be cheaper
// than editing them.
const bulkThreshold = 64

// remembers reports whether t knows the state that it was resolved from. t may be nil.
func (t *Table) remembers() bool { return t != nil && t.memory != nil }

// edit is a service whose definition or endpoints differ between two states.
type edit struct {
	name         Name
	was, service *Service   // the older and the newer definition, nil where the service is missing
	endpoints    []Endpoint // its endpoints in the newer state
}

// editsSince returns the differences from old to s, in the order of names. It skips shared
// contents.
func (s State) editsSince(old State) []edit {
	var services, endpoints []edit
	if n := s.services.Len(); old.services.Len() == 0 {
		services, endpoints = make([]edit, 0, n), make([]edit, 0, n)
	}
	for c := range pmap.Diff(old.services, s.services, (*Service).equal) {
		services = append(services, edit{name: c.Key, was: c.Old, service: c.New})
	}
	for c := range pmap.Diff(old.endpoints, s.endpoints, equalEndpoints) {
		endpoints = append(endpoints, edit{name: c.Key, endpoints: c.New})
	}
	edits := make([]edit, 0, max(len(services), len(endpoints)))
	for i, j := range align(services, endpoints, compareEdits) {
		var e edit
		switch {
		case i < 0:
			e = endpoints[j]
			e.service = s.services.At(e.name)
			e.was = e.service
		case j < 0:
			e = services[i]
			e.endpoints = s.endpoints.At(e.name)
		default:
			e = services[i]
			e.endpoints = endpoints[j].endpoints
		}
		edits = append(edits, e)
	}
	return edits
}

func compareEdits(a, b edit) int { return a.name.Compare(b.name) }

// align walks two sorted lists side by side and yields the indexes of elements that belong
// together, -1 where one list has none.
func align[T any](a, b []T, compare func(T, T) int) iter.Seq2[int, int] {
	return func(yield func(int, int) bool) {
		i, j := 0, 0
		for i < len(a) || j < len(b) {
			c := 0
			switch {
			case i == len(a):
				c = 1
			case j == len(b):
				c = -1
			default:
				c = compare(a[i], b[j])
			}
			x, y := i, j
			if c > 0 {
				x = -1
			} else {
				i++
			}
			if c < 0 {
				y = -1
			} else {
				j++
			}
			if !yield(x, y) {
				return
			}
		}
	}
}

// groups yields the elements of each key of a list in which the elements of a key are neighbours.
func groups[K comparable, T any](list []T, key func(T) K) iter.Seq2[K, []T] {
	return func(yield func(K, []T) bool) {
		for len(list) > 0 {
			n, k := 1, key(list[0])
			for n < len(list) && key(list[n]) == k {
				n++
			}
			if !yield(k, list[:n:n]) {
				return
			}
			list = list[n:]
		}
	}
}

// byPort yields the claims of each service port of a list sorted by service port.
func byPort(claims []*Frontend) iter.Seq2[PortName, []*Frontend] {
	return groups(claims, func(f *Frontend) PortName { return f.Service })
}

// filter returns the elements of list for which keep holds. If that is all of them, it returns list
// itself.
func filter[T any](list []T, keep func(T) bool) []T {
	for i, x := range list {
		if keep(x) {
			continue
		}
		kept := slices.Clone(list[:i])
		for _, x := range list[i+1:] {
			if keep(x) {
				kept = append(kept, x)
			}
		}
		return kept
	}
	return list
}

// footprint is what one service has put into a table, without the objects that can be found there
// by the service's name.
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
