package flows

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/servicemodel"
)

// pools are the pools of a frontend, for internal clients and, if they differ, for external ones.
// A pool is nil if there is none.
type pools [2]*servicemodel.Pool

func poolsOf(t *servicemodel.Table, f *servicemodel.Frontend) (p pools) {
	if f != nil {
		p[0], p[1] = t.PoolsOf(f)
	}
	return p
}

func (p pools) empty() bool { return len(p.endpoints()) == 0 }

// endpoints returns the endpoints of both pools, because a flow does not show which pool it was
// sent to.
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
		endpoints: map[pools][]netip.AddrPort{}}
	c.former = slices.DeleteFunc(within(own, k.former), func(a netip.Addr) bool {
		return a == localhost || slices.Contains(c.node, a)
	})
	if k.formerLocalhost { // the table tells no loopback addresses
		c.former = append(c.former, localhost)
	}
	c.index = NewIndex(k.services, c.node)
	for _, key := range slices.SortedFunc(maps.Keys(k.due), servicemodel.FrontendKey.Compare) {
		c.add(key, k.due[key])
		if key.NodePort() {
			c.protect(key)
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

// changeMaker makes the change of one pass.
type changeMaker struct {
	*Keeper
	index *Index
	// Frontends with the same pools share a slice.
	endpoints map[pools][]netip.AddrPort
	own       []netip.Addr // all addresses of the node
	node      []netip.Addr // those that take node ports
	former    []netip.Addr // those that no longer take node ports
	list      []conntrack.Frontend
}

// endpointsOf returns the endpoints of a frontend, and whether packets are translated on their way
// there.
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

func (c *changeMaker) add(key servicemodel.FrontendKey, s *search) {
	may, translated := c.endpointsOf(c.index.at(key))
	may = append(slices.Clip(may), slices.SortedFunc(maps.Keys(c.departed[key]),
		netip.AddrPort.Compare)...)
	f := conntrack.Frontend{Key: flowKey(key), Endpoints: may,
		Untranslated: translated && key.Protocol == servicemodel.UDP}
	f.Backwards = f.Untranslated && (s.fresh || s.echo) && !slices.Contains(c.own, key.Addr)
	if !s.all {
		f.Removed = append([]netip.AddrPort{}, s.gone...)
	}
	c.list = append(c.list, f)
}

// protect adds, beside a node port, the addresses of the node at which the number of the port means
// something else: an address with a frontend of its own, an address that no longer takes node
// ports, or loopback, because not every backend answers there. Each address is added once.
func (c *changeMaker) protect(key servicemodel.FrontendKey) {
	own := c.list[len(c.list)-1]
	other := func(a netip.Addr) (k servicemodel.FrontendKey, fe *servicemodel.Frontend, ok bool) {
		k = key
		k.Addr = a
		_, due := c.due[k]
		return k, c.services.Frontend(k), !due && a.Is4() == key.Addr.Is4()
	}
	for _, a := range c.node {
		if k, fe, ok := other(a); ok && fe != nil {
			may, _ := c.endpointsOf(fe)
			c.list = append(c.list, conntrack.Frontend{Key: flowKey(k), Endpoints: may,
				Removed: []netip.AddrPort{}})
		}
	}
	if key.Protocol != servicemodel.UDP {
		return
	}
	loopback := key.Addr.Is4() && c.rules.LocalhostNodePorts
	if _, fe, ok := other(localhost); loopback && ok && fe == nil {
		own.Key.Addr, own.Untranslated, own.Backwards = localhost, false, false
		c.list = append(c.list, own)
	}
	for _, a := range c.former {
		if k, fe, ok := other(a); ok && fe == nil && !(loopback && a == localhost) {
			c.list = append(c.list, conntrack.Frontend{Key: flowKey(k)})
		}
	}
}

// protectWithin adds, beside a range, the frontends that may come before it: those at ports of the
// range, node ports of these numbers, and other ranges that overlap. Each is added once.
func (c *changeMaker) protectWithin(key servicemodel.FrontendKey) {
	node := slices.Contains(c.node, key.Addr)
	for f := range c.services.Frontends() {
		k := f.Key
		nodePort := node && k.NodePort() && k.Family() == key.Family()
		if k.Protocol != key.Protocol || k.Addr != key.Addr && !nodePort ||
			k.Port > key.EndPort || k.LastPort() < key.Port || c.due[k] != nil {
			continue
		}
		at := flowKey(k)
		if !slices.ContainsFunc(c.list, func(o conntrack.Frontend) bool { return o.Key == at }) {
			may, _ := c.endpointsOf(f)
			c.list = append(c.list, conntrack.Frontend{Key: at, Endpoints: may,
				Removed: []netip.AddrPort{}})
		}
	}
}

var localhost = netip.AddrFrom4([4]byte{127, 0, 0, 1})

// flowKey converts a key to conntrack's type.
func flowKey(key servicemodel.FrontendKey) conntrack.FrontendKey {
	return conntrack.FrontendKey{Addr: key.Addr, Port: key.Port,
		Protocol: conntrack.Protocol(key.Protocol), EndPort: key.EndPort}
}
