package mirror

import "github.com/kernlb/kernlb/conntrack"

// index notes the flows of a table and finds those that may be stale. It knows only three things of
// a flow: the original tuple, the ID and the endpoint that answers. A noted flow may have ended,
// but every existing flow must be noted.
type index struct {
	v4     familyIndex[[4]byte]
	v6     familyIndex[[16]byte]
	events uint64
}

func newIndex() *index {
	return &index{v4: newFamilyIndex[[4]byte](), v6: newFamilyIndex[[16]byte]()}
}

// suspect is a flow that may be stale: its number in the index of its family, and its ID, which
// shows whether the number still belongs to this flow.
type suspect struct {
	number uint32
	id     uint32
	v4     bool
}

func (x *index) len() int { return x.v4.flows.n + x.v6.flows.n }

func isV4(f *conntrack.Flow) bool { return f.Original.Dst.Addr().Is4() }

func (x *index) add(f *conntrack.Flow) {
	if isV4(f) {
		x.v4.add(f)
	} else {
		x.v6.add(f)
	}
}

func (x *index) remove(f *conntrack.Flow) {
	if isV4(f) {
		x.v4.remove(f)
	} else {
		x.v6.remove(f)
	}
}

func (x *index) has(f *conntrack.Flow) bool {
	if isV4(f) {
		return x.v4.findFlow(f) != 0
	}
	return x.v6.findFlow(f) != 0
}

// flow returns the known part of a suspect, false if it is forgotten.
func (x *index) flow(s suspect) (f conntrack.Flow, ok bool) {
	if s.v4 {
		f, ok = x.v4.flow(s.number)
	} else {
		f, ok = x.v6.flow(s.number)
	}
	return f, ok && f.ID == s.id
}

// apply brings the notes up to date after an event.
func (x *index) apply(e *conntrack.Event) {
	x.events++
	if e.Type == conntrack.FlowDestroyed {
		x.remove(&e.Flow)
	} else {
		x.add(&e.Flow)
	}
}

// suspects returns the flows of some protocols that a matcher can find stale.
func (x *index) suspects(m *conntrack.Matcher, covers func(conntrack.Protocol) bool) []suspect {
	var all []suspect
	take4 := func(i uint32) { all = append(all, suspect{i, x.v4.flows.at(i).id, true}) }
	take6 := func(i uint32) { all = append(all, suspect{i, x.v6.flows.at(i).id, false}) }
	stale := func(f *conntrack.Flow) bool { return m.Stale(f) }
	destinations := m.Destinations()
	for _, to := range destinations {
		switch {
		case !covers(to.Protocol):
		case to.Addr.Is4():
			x.v4.to(to, stale, take4)
		default:
			x.v6.to(to, stale, take6)
		}
	}
	var ports *portSet
	for _, from := range m.Sources() {
		if covers(from.Protocol) {
			if ports == nil {
				ports = &portSet{}
			}
			ports[from.Port] = true
		}
	}
	if ports != nil {
		known := make(map[conntrack.FrontendKey]bool, len(destinations)) // taken above
		for _, to := range destinations {
			known[to] = true
		}
		backwards := func(f *conntrack.Flow) bool {
			dst := f.Original.Dst
			return covers(f.Protocol) && m.Stale(f) && !known[conntrack.FrontendKey{
				Addr: dst.Addr(), Port: dst.Port(), Protocol: f.Protocol}]
		}
		x.v4.from(ports, backwards, take4)
		x.v6.from(ports, backwards, take6)
	}
	return all
}
