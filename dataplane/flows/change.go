package flows

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/internal/nocopy"
	"github.com/kernlb/kernlb/servicemodel"
)

// pools returns the pools of a frontend, first for internal clients and then for external ones. A
// pool is nil if there is none.
func pools(t *servicemodel.Table, f *servicemodel.Frontend) (p [2]*servicemodel.Pool) {
	if f == nil {
		return p
	}
	for i, v := range [...]servicemodel.Verdict{f.Internal, f.External} {
		if id, ok := f.Pool(v); ok {
			p[i] = nocopy.Of(t).Pool(id)
		}
	}
	if p[1] == p[0] {
		p[1] = nil
	}
	return p
}

// endpointsOf returns the endpoints of both pools, because a flow does not show which pool it was
// sent to.
func endpointsOf(p [2]*servicemodel.Pool) []netip.AddrPort {
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
	c := changeMaker{Keeper: k, endpoints: map[[2]*servicemodel.Pool][]netip.AddrPort{}}
	if err := c.lookUpNode(); err != nil {
		return conntrack.Change{}, err
	}
	for _, key := range slices.SortedFunc(maps.Keys(k.due), servicemodel.FrontendKey.Compare) {
		c.add(key, k.due[key])
		if key.NodePort() {
			c.protect(key)
		}
	}
	return conntrack.Change{Frontends: c.list, NodeAddrs: c.node, Zone: k.cfg.Zone}, nil
}

// changeMaker makes the change of one pass.
type changeMaker struct {
	*Keeper
	// Frontends with the same pools share a slice.
	endpoints map[[2]*servicemodel.Pool][]netip.AddrPort
	node      []netip.Addr // the addresses that take node ports
	former    []netip.Addr // addresses that no longer take node ports
	// own are all addresses of the node. They are read only if a frontend is fresh or an echo.
	own  []netip.Addr
	list []conntrack.Frontend
}

// lookUpNode finds those addresses of the node that this pass needs.
func (c *changeMaker) lookUpNode() (err error) {
	nodePorts, again := false, false
	for key, s := range c.due {
		nodePorts = nodePorts || key.NodePort() || nocopy.Of(c.services).Frontend(key) == nil &&
			nocopy.Of(c.services).Frontend(anywhere(key)) != nil
		again = again || s.fresh || s.echo
	}
	if again {
		if c.own, err = c.table.NodeAddrs(everywhere); err != nil {
			return err
		}
	}
	if !nodePorts {
		return nil
	}
	if c.node, err = c.table.NodeAddrs(c.services.Rules().NodePorts); err != nil {
		return err
	}
	if len(c.Keeper.former) == 0 {
		return nil
	}
	if c.former, err = c.table.NodeAddrs(c.Keeper.former); err != nil {
		return err
	}
	c.former = slices.DeleteFunc(c.former, func(a netip.Addr) bool {
		return slices.Contains(c.node, a)
	})
	return nil
}

var everywhere = []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0),
	netip.PrefixFrom(netip.IPv6Unspecified(), 0)}

// anywhere returns the key of the node port with the same number.
func anywhere(key servicemodel.FrontendKey) servicemodel.FrontendKey {
	if key.Addr.Is4() {
		key.Addr = netip.IPv4Unspecified()
	} else {
		key.Addr = netip.IPv6Unspecified()
	}
	return key
}

// at returns the key with the address a.
func at(key servicemodel.FrontendKey, a netip.Addr) servicemodel.FrontendKey {
	key.Addr = a
	return key
}

// answering returns the frontend that answers at key. At an address of the node this may be a node
// port.
func (c *changeMaker) answering(key servicemodel.FrontendKey) *servicemodel.Frontend {
	f := nocopy.Of(c.services).Frontend(key)
	if f == nil && slices.Contains(c.node, key.Addr) {
		f = nocopy.Of(c.services).Frontend(anywhere(key))
	}
	return f
}

// endpointsOf returns the endpoints of a frontend, and whether packets are translated on their way
// there.
func (c *changeMaker) endpointsOf(f *servicemodel.Frontend) (list []netip.AddrPort,
	translated bool) {
	p := pools(c.services, f)
	list, known := c.endpoints[p]
	if !known {
		list = endpointsOf(p)
		c.endpoints[p] = list
	}
	for _, pool := range p {
		translated = translated || pool != nil && pool.Forwarding == servicemodel.ForwardNAT
	}
	return list, translated
}

func (c *changeMaker) add(key servicemodel.FrontendKey, s *search) {
	may, translated := c.endpointsOf(c.answering(key))
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
		k = at(key, a)
		_, due := c.due[k]
		return k, nocopy.Of(c.services).Frontend(k), !due && a.Is4() == key.Addr.Is4()
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
	loopback := key.Addr.Is4() && c.services.Rules().LocalhostNodePorts
	if _, fe, ok := other(localhost); loopback && ok && fe == nil {
		own.Key.Addr, own.Untranslated = localhost, false
		c.list = append(c.list, own)
	}
	for _, a := range c.former {
		if k, fe, ok := other(a); ok && fe == nil && !(loopback && a == localhost) {
			c.list = append(c.list, conntrack.Frontend{Key: flowKey(k)})
		}
	}
}

var localhost = netip.AddrFrom4([4]byte{127, 0, 0, 1})

// flowKey converts a key to conntrack's type.
func flowKey(key servicemodel.FrontendKey) conntrack.FrontendKey {
	return conntrack.FrontendKey{Addr: key.Addr, Port: key.Port,
		Protocol: conntrack.Protocol(key.Protocol)}
}
