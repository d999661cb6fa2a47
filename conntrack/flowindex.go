package conntrack

import "github.com/kernlb/kernlb/internal/nfnl"

// flowIndex notes which flows there are and finds those that can be stale. It knows no more of a
// flow than its original tuple, its ID and who answers. What it notes may be gone; what is there,
// it must have noted.
type flowIndex struct {
	v4     familyIndex[[4]byte]
	v6     familyIndex[[16]byte]
	events uint64
	parsed Flow // of the event that is worked in, which would else be allocated for each
}

func newFlowIndex() *flowIndex {
	return &flowIndex{v4: newFamilyIndex[[4]byte](), v6: newFamilyIndex[[16]byte]()}
}

// suspect is a flow that can be stale: its number in the index of its family, and its ID, which tells
// whether the number is still its own.
type suspect struct {
	number uint32
	id     uint32
	family Family
}

func (x *flowIndex) len() int { return x.v4.flows.n + x.v6.flows.n }

func (x *flowIndex) add(f *Flow) {
	if f.Family() == IPv4 {
		x.v4.add(f)
	} else {
		x.v6.add(f)
	}
}

func (x *flowIndex) remove(f *Flow) {
	if f.Family() == IPv4 {
		x.v4.remove(f)
	} else {
		x.v6.remove(f)
	}
}

func (x *flowIndex) has(f *Flow) bool {
	if f.Family() == IPv4 {
		return x.v4.findFlow(f) != 0
	}
	return x.v6.findFlow(f) != 0
}

// flow returns what is known of a suspect, false if it is forgotten.
func (x *flowIndex) flow(s suspect) (f Flow, ok bool) {
	if s.family == IPv4 {
		f, ok = x.v4.flow(s.number)
	} else {
		f, ok = x.v6.flow(s.number)
	}
	return f, ok && f.ID == s.id
}

// apply works in the events of one datagram.
func (x *flowIndex) apply(data []byte, wants func(*Flow) bool) error {
	return nfnl.Messages(data, func(m nfnl.Message) error {
		if m.Subsys != nfnl.SubsysConntrack || m.Type != msgNew && m.Type != msgDelete {
			return nil
		}
		x.events++
		f := &x.parsed
		switch err := parseFlow(m.Attrs, f, wants); {
		case err == errUnwanted:
			return nil
		case err != nil:
			return err
		case m.Type == msgDelete:
			x.remove(f)
		default:
			x.add(f)
		}
		return nil
	})
}

// suspects returns the flows of some protocols that a matcher can find stale.
func (x *flowIndex) suspects(m *Matcher, covers func(Protocol) bool) []suspect {
	var all []suspect
	take4 := func(i uint32) { all = append(all, suspect{i, x.v4.flows.at(i).id, IPv4}) }
	take6 := func(i uint32) { all = append(all, suspect{i, x.v6.flows.at(i).id, IPv6}) }
	stale := func(f *Flow) bool { return covers(f.Protocol) && m.Classify(f).Stale() }
	for _, to := range m.Destinations() {
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
		backwards := func(f *Flow) bool {
			return covers(f.Protocol) && m.Classify(f) == Backwards
		}
		x.v4.from(ports, backwards, take4)
		x.v6.from(ports, backwards, take6)
	}
	return all
}
