package flows

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/internal/shared"
	"github.com/kernlb/kernlb/servicemodel"
)

// pools returns the pools that a frontend sends to, those of internal and external clients; nil
// where there is none.
func pools(t *servicemodel.Table, f *servicemodel.Frontend) (p [2]*servicemodel.Pool) {
	if f == nil {
		return p
	}
	for i, v := range [...]servicemodel.Verdict{f.Internal, f.External} {
		if id, ok := f.Pool(v); ok {
			p[i] = shared.Of(t).Pool(id)
		}
	}
	if p[1] == p[0] {
		p[1] = nil
	}
	return p
}

// endpointsOf returns the endpoints of pools. Which of a frontend's pools a flow was sent to cannot
// be told any more.
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

// change returns the change that makes the flows stale that are due.
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
	// one slice for all frontends that share it
	endpoints map[[2]*servicemodel.Pool][]netip.AddrPort
	node      []netip.Addr // the addresses that take node ports
	former    []netip.Addr // those that do not any more
	// all addresses of the node, if a frontend is looked at again
	own  []netip.Addr
	list []conntrack.Frontend
}

// lookUpNode finds the addresses of the node, as far as they matter.
func (c *changeMaker) lookUpNode() (err error) {
	nodePorts, again := false, false
	for key, s := range c.due {
		nodePorts = nodePorts || key.NodePort() || shared.Of(c.services).Frontend(key) == nil &&
			shared.Of(c.services).Frontend(anywhere(key)) != nil
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

// at returns a key's likeness at an address of the node.
func at(key servicemodel.FrontendKey, a netip.Addr) servicemodel.FrontendKey {
	key.Addr = a
	return key
}

// answering returns the frontend that answers where key is: at an address of the node, it may be a
// node port.
func (c *changeMaker) answering(key servicemodel.FrontendKey) *servicemodel.Frontend {
	f := shared.Of(c.services).Frontend(key)
	if f == nil && slices.Contains(c.node, key.Addr) {
		f = shared.Of(c.services).Frontend(anywhere(key))
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

// add adds a frontend that is due.
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

// protect adds, beside a node port, the addresses of the node where its number means something
// else: a frontend of its own, an address that takes no node ports any more, or loopback, where it
// depends on the backend whether they answer.
func (c *changeMaker) protect(key servicemodel.FrontendKey) {
	own := c.list[len(c.list)-1]
	other := func(a netip.Addr) (servicemodel.FrontendKey, bool) {
		k := at(key, a)
		_, due := c.due[k]
		return k, !due && a.Is4() == key.Addr.Is4()
	}
	for _, a := range c.node {
		if k, ok := other(a); ok && shared.Of(c.services).Frontend(k) != nil {
			may, _ := c.endpointsOf(shared.Of(c.services).Frontend(k))
			c.list = append(c.list, conntrack.Frontend{Key: flowKey(k), Endpoints: may,
				Removed: []netip.AddrPort{}})
		}
	}
	if key.Protocol != servicemodel.UDP {
		return
	}
	for _, a := range c.former {
		if k, ok := other(a); ok && shared.Of(c.services).Frontend(k) == nil {
			c.list = append(c.list, conntrack.Frontend{Key: flowKey(k)})
		}
	}
	if key.Addr.Is4() && c.services.Rules().LocalhostNodePorts {
		own.Key.Addr, own.Untranslated = localhost, false
		c.list = append(c.list, own)
	}
}

var localhost = netip.AddrFrom4([4]byte{127, 0, 0, 1})

// flowKey returns a key in the words of conntrack.
func flowKey(key servicemodel.FrontendKey) conntrack.FrontendKey {
	return conntrack.FrontendKey{Addr: key.Addr, Port: key.Port,
		Protocol: conntrack.Protocol(key.Protocol)}
}
