package conntrack

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"unsafe"
)

// Matcher finds the flows that a change made stale. The time per flow does not depend on the number
// of frontends. A Matcher opens no kernel resources, never changes, and is safe for concurrent use.
type Matcher struct {
	frontends map[FrontendKey]*criterion
	ports     map[portKey]struct{} // the ports of frontends: most flows are to none of these
	ranges    map[rangeKey][]FrontendKey
	nodes     map[netip.Addr]struct{}
	zone      uint16

	backwards bool // some frontend has Backwards set
}

type portKey struct {
	protocol Protocol
	port     uint16
}

// rangeKey is the address and protocol of ranges. The ranges of a key are sorted by precedence.
type rangeKey struct {
	addr     netip.Addr
	protocol Protocol
}

type endpoints map[netip.AddrPort]struct{}

// criterion decides which flows to a frontend are stale.
type criterion struct {
	endpoints, removed endpoints
	anyRemoved         bool // flows to any endpoint other than endpoints are stale
	untranslated       bool
	backwards          bool
	shifted            bool
	first              uint16 // the first port of a range
}

// NewMatcher returns the matcher for a change. If items of the change are invalid, it returns an
// [ErrBadChange] that names each of these items, and a matcher for all other items. Flows to a
// frontend that was left out are never stale. The matcher keeps no reference to c. Frontends with
// the same slice of endpoints share memory.
func NewMatcher(c Change) (*Matcher, error) {
	var errs []error
	m := &Matcher{
		frontends: make(map[FrontendKey]*criterion, len(c.Frontends)),
		ports:     map[portKey]struct{}{},
		ranges:    map[rangeKey][]FrontendKey{},
		nodes:     make(map[netip.Addr]struct{}, len(c.NodeAddrs)),
		zone:      c.Zone,
	}
	for i, a := range c.NodeAddrs {
		if !a.IsValid() || a.IsUnspecified() {
			errs = append(errs, fmt.Errorf("%w: NodeAddrs[%d]: %s is not the address of a node",
				ErrBadChange, i, a))
			continue
		}

		m.nodes[plainAddr(a)] = struct{}{}
	}

	sets := setMaker{}
	for i := range c.Frontends {
		if err := m.add(&c.Frontends[i], sets); err != nil {
			errs = append(errs, fmt.Errorf("%w: Frontends[%d]: %w", ErrBadChange, i, err))
		}
	}

	for _, l := range m.ranges {
		slices.SortFunc(l, func(a, b FrontendKey) int {
			return cmp.Or(cmp.Compare(a.EndPort-a.Port, b.EndPort-b.Port),
				cmp.Compare(a.Port, b.Port))
		})
	}

	return m, errors.Join(errs...)
}

func (m *Matcher) add(f *Frontend, sets setMaker) error {
	key := f.Key
	if !key.Addr.IsValid() {
		return errors.New("no Key.Addr")
	}
	key.Addr = plainAddr(key.Addr)
	if key.Port == 0 {
		return fmt.Errorf("%s: no Key.Port", key.text())
	}
	if key.EndPort != 0 && key.EndPort < key.Port {
		return fmt.Errorf("%s: Key.EndPort makes no range", key.text())
	}
	if key.Protocol != TCP && key.Protocol != UDP && key.Protocol != SCTP {
		return fmt.Errorf("%s: Key.Protocol is not tcp, udp or sctp", key.text())
	}
	if _, ok := m.frontends[key]; ok {
		return fmt.Errorf("%s is there twice", key.text())
	}
	c := &criterion{anyRemoved: f.Removed == nil, untranslated: f.Untranslated,
		backwards: f.Backwards && !key.Addr.IsUnspecified(),
		shifted:   f.Shifted && key.EndPort != 0, first: key.Port}
	var err error
	if c.endpoints, err = sets.set(f.Endpoints, key); err != nil {
		return fmt.Errorf("%s: Endpoints: %w", key.text(), err)
	}
	if c.removed, err = sets.set(f.Removed, key); err != nil {
		return fmt.Errorf("%s: Removed: %w", key.text(), err)
	}
	m.frontends[key] = c
	if key.EndPort == 0 {
		m.ports[portKey{key.Protocol, key.Port}] = struct{}{}
	} else {
		at := rangeKey{key.Addr, key.Protocol}
		m.ranges[at] = append(m.ranges[at], key)
	}

	m.backwards = m.backwards || c.backwards
	return nil
}

// setMaker builds sets of endpoints, one for each different slice.
type setMaker map[sliceKey]endpoints

type sliceKey struct {
	first *netip.AddrPort
	len   int
}

func (s setMaker) set(list []netip.AddrPort, f FrontendKey) (endpoints, error) {
	for _, e := range list {
		portless := e.Port() == 0 && f.EndPort == 0
		if !e.IsValid() || portless || familyOf(e.Addr().Unmap()) != familyOf(f.Addr) {
			return nil, fmt.Errorf("%s is not an endpoint of the frontend's family", e)
		}
	}

	key := sliceKey{unsafe.SliceData(list), len(list)}
	set, ok := s[key]
	if !ok {
		set = make(endpoints, len(list))
		for _, e := range list {
			set[netip.AddrPortFrom(plainAddr(e.Addr()), e.Port())] = struct{}{}
		}
		s[key] = set
	}

	return set, nil
}

// plainAddr returns a in the kernel's form: IPv4-mapped IPv6 addresses become IPv4, and zones are
// dropped.
func plainAddr(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

// empty reports whether no flow can be stale. In that case, the table need not be searched.
func (m *Matcher) empty() bool {
	for _, c := range m.frontends {
		if c.finds() {
			return false
		}
	}

	return true
}

// finds reports whether a flow can be stale under the criterion.
func (c *criterion) finds() bool {
	return c.anyRemoved || len(c.removed) > 0 || c.untranslated || c.backwards
}

// Stale reports whether a flow should be deleted: because its endpoint may not keep it, because it
// is not translated although it should be, or because it is a [Frontend.Backwards] flow. Stale
// compares only addresses, ports, protocol and zone.
func (m *Matcher) Stale(f *Flow) bool { return m.classify(f).stale() }

// classify returns the class of a flow. IPVS does not set IPS_DST_NAT, but the reply tuple names
// the endpoint in any case, whether or not the client's address was replaced.
func (m *Matcher) classify(f *Flow) class {
	c := m.criterion(f)
	switch {
	case f.Zone() != m.zone:
		return unrelated
	case c == nil && m.fromFrontend(f) && !f.Translated() && !f.masqueraded():
		return backwards
	case c == nil:
		return unrelated
	case c.keeps(f):
		return current
	case f.Reply.Src == f.Original.Dst && c.untranslated:
		return untranslated
	case f.Reply.Src == f.Original.Dst:
		return current
	case c.anyRemoved || c.removed.has(f) || c.removed.hasShifted(f, c.first):
		return misdirected
	}

	return current
}

// keeps reports whether the flow's endpoint may keep it.
func (c *criterion) keeps(f *Flow) bool {
	if c.shifted {
		return c.endpoints.hasShifted(f, c.first)
	}
	return c.endpoints.has(f)
}

// hasShifted reports whether the flow's endpoint is in s, whose ports are the first ports of ranges
// as long as the range that begins with first.
func (s endpoints) hasShifted(f *Flow, first uint16) bool {
	at := f.Reply.Src
	_, ok := s[netip.AddrPortFrom(at.Addr(), at.Port()-(f.Original.Dst.Port()-first))]
	return ok
}

// has reports whether the flow's endpoint is in s.
func (s endpoints) has(f *Flow) bool {
	at := f.Reply.Src
	_, ok := s[at]
	if !ok && at.Port() == f.Original.Dst.Port() {
		_, ok = s[netip.AddrPortFrom(at.Addr(), 0)]
	}
	return ok
}

// mayBeStale reports whether the flow is to or from a frontend that changed. It reads only the
// protocol and the original tuple.
func (m *Matcher) mayBeStale(f *Flow) bool { return m.criterion(f) != nil || m.fromFrontend(f) }

// criterion returns the criterion for the flow's destination, or nil if no frontend with this
// destination changed. It reads only the protocol and the original tuple.
func (m *Matcher) criterion(f *Flow) *criterion {
	dst := f.Original.Dst
	_, node := m.nodes[dst.Addr()]
	if _, ok := m.ports[portKey{f.Protocol, dst.Port()}]; ok {
		key := FrontendKey{Addr: dst.Addr(), Port: dst.Port(), Protocol: f.Protocol}
		if c := m.frontends[key]; c != nil {
			return c
		}
		if node {
			key.Addr = anyAddr(dst.Addr())
			if c := m.frontends[key]; c != nil {
				return c
			}
		}
	}

	c := m.rangeOf(dst, f.Protocol)
	if c == nil && node {
		c = m.rangeOf(netip.AddrPortFrom(anyAddr(dst.Addr()), dst.Port()), f.Protocol)
	}
	return c
}

// rangeOf returns the criterion of the range that contains a destination, or nil.
func (m *Matcher) rangeOf(dst netip.AddrPort, p Protocol) *criterion {
	if len(m.ranges) == 0 {
		return nil
	}
	for _, key := range m.ranges[rangeKey{dst.Addr(), p}] {
		if key.Port <= dst.Port() && dst.Port() <= key.EndPort {
			return m.frontends[key]
		}
	}

	return nil
}

// fromFrontend reports whether the flow comes from a frontend with [Frontend.Backwards]. It reads
// only the protocol and the original tuple.
func (m *Matcher) fromFrontend(f *Flow) bool {
	if !m.backwards {
		return false
	}
	src := f.Original.Src
	c := m.frontends[FrontendKey{Addr: src.Addr(), Port: src.Port(), Protocol: f.Protocol}]
	if c == nil {
		c = m.rangeOf(src, f.Protocol)
	}
	_, node := m.nodes[src.Addr()]
	return c != nil && c.backwards && !node
}

// hasRanges reports whether a frontend of the family and protocol of a request is a range.
func (m *Matcher) hasRanges(d dumpRequest) bool {
	for at := range m.ranges {
		if at.protocol == d.Protocol && familyOf(at.addr) == d.Family {
			return true
		}
	}

	return false
}

// anyAddr returns the unspecified address of a's family.
func anyAddr(a netip.Addr) netip.Addr {
	if a.Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// dumps returns the requests whose answers together contain every flow that may be stale. No flow
// is in two answers.
func (m *Matcher) dumps(how scan) []dumpRequest {
	if how == scanNarrow && m.backwards {
		how = scanProtocol // the kernel compares only one of the ports
	}

	// requests without an address, and the single address of their frontends
	found := map[dumpRequest]netip.Addr{}
	for f, c := range m.frontends {
		if !c.finds() {
			continue
		}
		var d dumpRequest
		if how != scanAll {
			d.Family, d.Protocol = familyOf(f.Addr), f.Protocol
		}

		// the kernel compares only the ports of TCP and UDP, and no ranges
		if how == scanNarrow && f.Protocol != SCTP && !m.hasRanges(d) {
			d.DstPort = f.Port
		}
		if other, ok := found[d]; ok && other != f.Addr {
			found[d] = anyAddr(f.Addr)
		} else {
			found[d] = f.Addr
		}
	}

	var requests []dumpRequest
	for d, addr := range found {
		if how == scanNarrow && !addr.IsUnspecified() {
			d.Dst = filterable(addr)
		}
		requests = append(requests, d)
	}

	slices.SortFunc(requests, func(a, b dumpRequest) int {
		return cmp.Or(cmp.Compare(a.Family, b.Family), cmp.Compare(a.Protocol, b.Protocol),
			cmp.Compare(a.DstPort, b.DstPort), a.Dst.Compare(b.Dst))
	})

	return requests
}
