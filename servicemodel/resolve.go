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
	homeless   homeless // filled when a cause is asked for
}

// Resolve decides what the state means on its node. prev is an earlier table, or nil. The result
// shares unchanged contents with prev, and the cost depends on the changes. The same state always
// gives the same result, except for the order of slots, which prev influences. If the changes are
// invalid, Resolve returns no table and an error that joins a *[FieldError] for every problem.
func Resolve(prev *Table, s State) (*Table, error) {
	prev = prev.whole()
	old := &memory{} // without a memory, everything is new
	if prev.remembers() {
		if old = prev.memory; old.state.Same(s) {
			return prev, nil
		}
	}

	edits := s.editsSince(old.state)
	otherNode := !prev.remembers() || old.state.node != s.node
	if err := validate(s, edits, otherNode); err != nil {
		return nil, err
	}
	view := old.view
	if otherNode {
		view = s.viewpoint().view()
	}
	if !prev.remembers() || view != old.view ||
		len(edits) > bulkThreshold && len(edits) > s.Len()/4 {
		return resolveAll(prev, old.footprints, s), nil
	}

	next := *prev
	if otherNode {
		next.rules = s.viewpoint().rules()
	}
	u := update{resolver: resolver{view: view}, t: &next, footprints: old.footprints}
	u.apply(s, edits)
	next.memory = &memory{state: s, view: view, footprints: u.footprints}
	return &next, nil
}

// bulkThreshold is the number of changed services from which rebuilding all maps can be cheaper
// than editing them.
const bulkThreshold = 64

// remembers reports whether t knows the state that it was resolved from. t may be nil.
func (t *Table) remembers() bool { return t != nil && t.memory != nil }

// service returns the service of the state that t was resolved from, nil if there is none.
func (t *Table) service(n Name) *Service {
	if !t.remembers() {
		return nil
	}
	return t.memory.state.entries.At(n).service
}

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
