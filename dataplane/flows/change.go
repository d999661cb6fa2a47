package flows

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/servicemodel"
)

// pools are the pools of a frontend, for internal clients and, if they differ, for external
// clients. A missing pool is nil.
type pools [2]*servicemodel.Pool

func poolsOf(t *servicemodel.Table, f *servicemodel.Frontend) (p pools) {
	if f != nil {
		p[0], p[1] = t.PoolsOf(f)
	}
	return p
}

func (p pools) empty() bool { return len(p.endpoints()) == 0 }

// endpoints returns the endpoints of both pools, because a flow does not show to which pool it was
// sent.
func (p pools) endpoints() []netip.AddrPort {
	var all []netip.AddrPort
	for _, pool := range p {
		if pool == nil {
			continue
		}
		all = slices.Grow(all, len(pool.Slots))
		for _, s := range pool.Slots {
			all = append(all, s.Endpoint)
		}
	}

	return all
}

// change returns the change that deletes the stale flows of the frontends that are due.
func (k *Keeper) change() (conntrack.Change, error) {
	own, err := k.table.NodeAddrs(everywhere)
	if err != nil {
		return conntrack.Change{}, err
	}
	c := changeMaker{Keeper: k, own: own, node: within(own, k.rules.NodePorts),
		endpoints: map[pools][]netip.AddrPort{}, added: map[conntrack.FrontendKey]bool{},
		ranges: k.dueRanges()}
	c.former = slices.DeleteFunc(within(own, k.former), func(a netip.Addr) bool {
		return a == localhost || slices.Contains(c.node, a)
	})
	if k.formerLocalhost { // the table lists no loopback addresses
		c.former = append(c.former, localhost)
	}
	c.index = NewIndex(k.services, c.node)

	// A piece that two removed ranges share belongs to the narrower one.
	due := slices.SortedFunc(maps.Keys(k.due), servicemodel.FrontendKey.CompareRange)
	for _, key := range due {
		if key.EndPort != 0 && k.services.Frontend(key) == nil {
			c.addPieces(key)
		} else {
			c.add(key, c.index.at(key), key)
		}

		if key.EndPort != 0 {
			c.protectWithin(key)
		}
	}

	return conntrack.Change{Frontends: c.list, NodeAddrs: c.node, Zone: k.cfg.Zone}, nil
}

var everywhere = []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0),
	netip.PrefixFrom(netip.IPv6Unspecified(), 0)}

// within returns the addresses that lie in one of the ranges.
func within(addrs []netip.Addr, ranges []netip.Prefix) (in []netip.Addr) {
	for _, a := range addrs {
		if slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(a) }) {
			in = append(in, a)
		}
	}

	return in
}

// changeMaker builds the change of one pass.
type changeMaker struct {
	*Keeper
	index *Index
	// Frontends with the same pools share one slice.
	endpoints map[pools][]netip.AddrPort
	own       []netip.Addr // all addresses of the node
	node      []netip.Addr // addresses that take node ports
	former    []netip.Addr // addresses that no longer take node ports
	list      []conntrack.Frontend
	added     map[conntrack.FrontendKey]bool // the keys in list
	byAddr    map[place][]servicemodel.FrontendKey
	ranges    dueRanges
}

// dueRanges are the ranges that are due, by place and first port.
type dueRanges map[place][]dueRange

// dueRange is a range that is due.
type dueRange struct {
	servicemodel.FrontendKey
	last uint16 // the greatest port of this range and of those that begin before it
}

func (k *Keeper) dueRanges() dueRanges {
	all := dueRanges{}
	for key := range k.due {
		if at := (place{key.Addr, key.Protocol}); key.EndPort != 0 {
			all[at] = append(all[at], dueRange{key, key.EndPort})
		}
	}

	for _, l := range all {
		slices.SortFunc(l, func(a, b dueRange) int { return a.Compare(b.FrontendKey) })
		for i := range l[1:] {
			l[i+1].last = max(l[i+1].last, l[i].last)
		}
	}

	return all
}

// around returns the ranges at the address of a key that contain all its ports.
func (d dueRanges) around(key servicemodel.FrontendKey) (all []servicemodel.FrontendKey) {
	l := d[place{key.Addr, key.Protocol}]
	n, _ := slices.BinarySearchFunc(l, int(key.Port)+1, func(r dueRange, port int) int {
		return int(r.Port) - port
	})
	for n--; n >= 0 && l[n].last >= key.LastPort(); n-- {
		if l[n].EndPort >= key.LastPort() {
			all = append(all, l[n].FrontendKey)
		}
	}

	return all
}

// endpointsOf returns the endpoints of a frontend, and whether packets to them are translated.
func (c *changeMaker) endpointsOf(f *servicemodel.Frontend) (list []netip.AddrPort,
	translated bool) {
	p := poolsOf(c.services, f)
	list, known := c.endpoints[p]
	if !known {
		list = p.endpoints()
		c.endpoints[p] = list
	}

	for _, pool := range p {
		translated = translated || pool != nil && pool.Forwarding == servicemodel.ForwardNAT
	}
	return list, translated
}

// add adds a key whose packets now go to the frontend f, which may be nil. The search is for the
// flows of the frontend was, and for those of f and of all ranges around the key that are due,
// because the matcher finds the key instead of them.
func (c *changeMaker) add(key servicemodel.FrontendKey, f *servicemodel.Frontend,
	was servicemodel.FrontendKey) {
	may, translated := c.endpointsOf(f)
	shifted := f != nil && f.Shifted
	if shifted {
		may = moved(may, key.Port-f.Key.Port)
	}
	s := merged{gone: []netip.AddrPort{}}
	of := append(c.ranges.around(key), was)
	if f != nil {
		of = append(of, f.Key)
	}
	slices.SortFunc(of, servicemodel.FrontendKey.Compare)
	for _, k := range slices.Compact(of) {
		c.merge(&s, k, key, shifted)
	}

	if f == nil && !s.all && len(s.gone) == 0 {
		return // untranslated flows belong to another program now
	}
	may = append(slices.Clip(may), s.departed...)
	if key.EndPort == 0 {
		may, s.gone = atPort(may, key.Port), atPort(s.gone, key.Port)
	}

	due := conntrack.Frontend{Key: flowKey(key), Endpoints: may, Shifted: shifted,
		Untranslated: translated && key.Protocol == servicemodel.UDP}
	due.Backwards = due.Untranslated && s.late && !slices.Contains(c.own, key.Addr)
	if !s.all {
		due.Removed = s.gone
	}
	c.append(due)
	if key.NodePort() {
		c.protect(key, due)
	}
}

// merged is the sum of searches at one key. late says that one of them is fresh or an echo.
type merged struct {
	all, late      bool
	gone, departed []netip.AddrPort
}

// merge adds the search and the departed endpoints of a frontend to a search at a key.
func (c *changeMaker) merge(m *merged, of, key servicemodel.FrontendKey, shifted bool) {
	by := key.Port - of.Port
	departed := slices.SortedFunc(maps.Keys(c.departed[of]), netip.AddrPort.Compare)
	if shifted {
		departed = moved(departed, by)
	}
	m.departed = append(m.departed, departed...)
	s := c.due[of]
	if s == nil {
		return
	}

	m.all, m.late = m.all || s.all, m.late || s.fresh || s.echo
	m.gone = append(m.gone, s.gone...)
	if by != 0 { // the range was perhaps shifted
		m.gone = append(m.gone, moved(s.gone, by)...)
	}
}

// atPort returns the endpoints with a port, which takes the place of port 0: endpoints of a range
// keep the packet's port.
func atPort(list []netip.AddrPort, port uint16) []netip.AddrPort {
	portless := func(e netip.AddrPort) bool { return e.Port() == 0 }
	if !slices.ContainsFunc(list, portless) {
		return list
	}
	list = slices.Clone(list)
	for i, e := range list {
		if portless(e) {
			list[i] = netip.AddrPortFrom(e.Addr(), port)
		}
	}

	return list
}

// moved returns the endpoints of a shifted range as endpoints of a piece that begins some ports
// later.
func moved(list []netip.AddrPort, by uint16) []netip.AddrPort {
	if by == 0 {
		return list
	}
	list = slices.Clone(list)
	for i, e := range list {
		if e.Port() != 0 {
			list[i] = netip.AddrPortFrom(e.Addr(), e.Port()+by)
		}
	}

	return list
}

// append adds a frontend, unless the list already has its key.
func (c *changeMaker) append(f conntrack.Frontend) {
	if !c.added[f.Key] {
		c.added[f.Key] = true
		c.list = append(c.list, f)
	}
}

// addPieces adds a removed range, in pieces that each belong to at most one of the present ranges.
// It leaves out the pieces of narrower ranges, because these ranges had the ports before, or are
// due themselves.
func (c *changeMaker) addPieces(gone servicemodel.FrontendKey) {
	ends := []int{int(gone.Port), int(gone.EndPort) + 1}
	for _, k := range c.near(gone) {
		for _, end := range []int{int(k.Port), int(k.EndPort) + 1} {
			if k.EndPort != 0 && end > int(gone.Port) && end <= int(gone.EndPort) {
				ends = append(ends, end)
			}
		}
	}

	slices.Sort(ends)
	ends = slices.Compact(ends)
	for i, end := range ends[1:] {
		key := gone
		key.Port, key.EndPort = uint16(ends[i]), uint16(end-1)
		f := c.index.rangeAt(key)
		if f != nil && f.Key.Addr == gone.Addr && f.Key.CompareRange(gone) < 0 ||
			c.services.Frontend(key) != nil {
			continue
		}
		if key == gone || c.due[key] == nil {
			c.add(key, f, gone)
		}
	}
}

// at returns the keys of the frontends at an address, or of node ports if it is unspecified. The
// first call walks all frontends.
func (c *changeMaker) at(a netip.Addr, p servicemodel.Protocol) []servicemodel.FrontendKey {
	if c.byAddr == nil {
		c.byAddr = map[place][]servicemodel.FrontendKey{}
		for f := range c.services.Frontends() {
			at := place{f.Key.Addr, f.Key.Protocol}
			c.byAddr[at] = append(c.byAddr[at], f.Key)
		}
	}

	return c.byAddr[place{a, p}]
}

// place is an address and a protocol.
type place struct {
	addr     netip.Addr
	protocol servicemodel.Protocol
}

// protect adds, next to a node port, the addresses of the node at which the port number means
// something else: an address with its own frontend, an address that no longer takes node ports, or
// loopback, because not every backend answers there. Each address is added once.
func (c *changeMaker) protect(key servicemodel.FrontendKey, own conntrack.Frontend) {
	other := func(a netip.Addr) (k servicemodel.FrontendKey, fe *servicemodel.Frontend, ok bool) {
		k = key
		k.Addr = a
		_, due := c.due[k]
		return k, c.services.Frontend(k), !due && a.Is4() == key.Addr.Is4()
	}

	for _, a := range c.node {
		if k, fe, ok := other(a); ok && fe != nil {
			may, _ := c.endpointsOf(fe)
			c.append(conntrack.Frontend{Key: flowKey(k), Endpoints: may, Shifted: fe.Shifted,
				Removed: []netip.AddrPort{}})
		}
	}

	if key.Protocol != servicemodel.UDP {
		return
	}
	loopback := key.Addr.Is4() && c.rules.LocalhostNodePorts
	if _, fe, ok := other(localhost); loopback && ok && fe == nil {
		own.Key.Addr, own.Untranslated, own.Backwards = localhost, false, false
		c.append(own)
	}

	for _, a := range c.former {
		if k, fe, ok := other(a); ok && fe == nil && !(loopback && a == localhost) {
			c.append(conntrack.Frontend{Key: flowKey(k)})
		}
	}
}

// protectWithin adds, next to a range, the frontends that may take precedence over it: frontends at
// ports of the range, node ports with these numbers, and other ranges that overlap. Each is added
// once.
func (c *changeMaker) protectWithin(key servicemodel.FrontendKey) {
	for _, k := range c.near(key) {
		if k.Port > key.EndPort || k.LastPort() < key.Port || c.due[k] != nil {
			continue
		}
		fe := c.services.Frontend(k)
		may, _ := c.endpointsOf(fe)
		f := conntrack.Frontend{Key: flowKey(k), Endpoints: may, Shifted: fe.Shifted,
			Removed: []netip.AddrPort{}}
		c.append(f)
		if k.NodePort() {
			c.protect(k, f)
		}
	}
}

// near returns the frontends that may come before or after a range at some of its addresses.
func (c *changeMaker) near(key servicemodel.FrontendKey) []servicemodel.FrontendKey {
	l := slices.Clip(c.at(key.Addr, key.Protocol))
	if !key.NodePort() && slices.Contains(c.node, key.Addr) {
		return append(l, c.at(anywhere(key).Addr, key.Protocol)...)
	}
	if !key.NodePort() {
		return l
	}
	for _, a := range append(slices.Concat(c.node, c.former), localhost) {
		if a.Is4() == key.Addr.Is4() {
			l = append(l, c.at(a, key.Protocol)...)
		}
	}

	return l
}

var localhost = netip.AddrFrom4([4]byte{127, 0, 0, 1})

// flowKey converts a key to conntrack's type.
func flowKey(key servicemodel.FrontendKey) conntrack.FrontendKey {
	return conntrack.FrontendKey{Addr: key.Addr, Port: key.Port,
		Protocol: conntrack.Protocol(key.Protocol), EndPort: key.EndPort}
}
