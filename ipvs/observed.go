package ipvs

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/kernlb/kernlb/dataplane/sysctls"
	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

// observed is everything in the kernel that belongs to the instance or affects it, as it was read
// or as the last commit left it. A plan depends only on it and on the configuration.
type observed struct {
	table     *servicemodel.Table // the services for which these objects were made
	companion companion
	servers   map[ipvsnl.ServiceKey]*server // ours
	foreign   map[ipvsnl.ServiceKey]bool    // virtual servers of other programs
	// claimable are the foreign virtual servers that a service may take over; none unless TakeOver
	// is set
	claimable map[ipvsnl.ServiceKey]*server
	addresses addresses
	devices   []string      // that this instance made, by name
	ipv6      bool          // the kernel has IPv6, and accepts a local IPv6 route
	binds6    bool          // the device accepts IPv6 addresses, or no device is configured
	unrouted  [2][]string   // by family: the faults of the rule and the route
	routed    [2]bool       // by family: the instance has a rule or the route
	tunables  sysctls.State // the values of the tunables that the configuration sets

	index  index
	damage damage
}

// index is derived from the companion and the virtual servers, for quick look-ups.
type index struct {
	marks map[uint32]bool    // used marks
	users map[netip.Addr]int // number of frontends at an address
}

// damage is every difference from the companion's records and the configuration. The next commit
// repairs it.
type damage struct {
	frontends []servicemodel.FrontendKey // whose virtual servers differ
	servers   []ipvsnl.ServiceKey        // our virtual servers that belong to no frontend
	devices   []string                   // our devices that do not have the configured name
	addresses bool                       // the bound addresses, or the device
}

// rules returns the settings of the known table, or of a reading that has not become a table yet.
func (o *observed) rules() servicemodel.Rules {
	if o.table == nil {
		return o.companion.rules
	}
	return o.table.Rules()
}

// expected returns the desired content of the companion tables.
func (o *observed) expected() *companion {
	c := o.companion
	c.rules = o.table.Rules()
	c.addrs = addrsOf(o.table, c.addrs[setNodeAddrs])
	return &c
}

// newObserved returns a kernel that the instance has never changed.
func newObserved() observed {
	return observed{companion: newCompanion(), servers: map[ipvsnl.ServiceKey]*server{},
		ipv6: true, binds6: true, foreign: map[ipvsnl.ServiceKey]bool{},
		index: newIndex()}
}

func newIndex() index {
	return index{marks: map[uint32]bool{}, users: map[netip.Addr]int{}}
}

// owned calls to with the keys that the virtual servers of a frontend in the companion may have. A
// node port has keys at the recorded addresses and, if the record is damaged, at the present ones.
func (o *observed) owned(k servicemodel.FrontendKey, to func(ipvsnl.ServiceKey)) {
	r := o.companion.records[k]
	if r == nil {
		return
	}
	addrs := slices.Concat(o.companion.addrs[setNodeAddrs], o.addresses.node)
	addressServices(k, addrs, o.recorded, to)
	for _, mark := range r.marks() {
		to(markService(k, mark))
	}
}

// frontendOf returns the frontend of a virtual server. It returns nil for the virtual server of the
// separate endpoints of pods and the host, because the virtual server for clients outside has these
// endpoints, too.
func (o *observed) frontendOf(k ipvsnl.ServiceKey) *servicemodel.FrontendKey {
	if k.FWMark == 0 {
		return &servicemodel.FrontendKey{Addr: k.Addr, Port: k.Port,
			Protocol: servicemodel.Protocol(k.Protocol)}
	}
	for key, r := range o.companion.records {
		if r.at != nil && r.at.mark == k.FWMark {
			return &key
		}
	}

	return nil
}

// addresses are the addresses of a network namespace, and the device that has the addresses of
// services.
type addresses struct {
	node []netip.Addr // addresses that can accept node ports; sorted
	// others are bound by other programs, on any device; sorted, and nil if no device is configured
	others  []netip.Addr
	bound   []boundAddr // ours, known by their metric; sorted
	ifindex int         // of the configured device; 0: it does not exist
	up      bool
}

// boundAddr is an address that we bound to a device.
type boundAddr struct {
	addr    netip.Addr
	ifindex int
	dev     string
}

func compareBound(a, b boundAddr) int {
	return cmp.Or(a.addr.Compare(b.addr), cmp.Compare(a.ifindex, b.ifindex))
}

func (a *addresses) equal(o *addresses) bool {
	return slices.Equal(a.node, o.node) && slices.Equal(a.others, o.others) &&
		slices.Equal(a.bound, o.bound) && a.ifindex == o.ifindex && a.up == o.up
}

// othersHave reports whether another program has bound an address.
func (a *addresses) othersHave(addr netip.Addr) bool {
	_, found := slices.BinarySearchFunc(a.others, addr, netip.Addr.Compare)
	return found
}

// onDevice returns an address that we bound to the configured device.
func (a *addresses) onDevice(addr netip.Addr) (b boundAddr, found bool) {
	i, found := slices.BinarySearchFunc(a.bound, boundAddr{addr: addr, ifindex: a.ifindex},
		compareBound)
	if found {
		b = a.bound[i]
	}
	return b, found
}

// committed updates the observation after a plan. ifindex is the index of the device.
func (o *observed) committed(p *plan, ifindex int) {
	for k, s := range p.servers {
		delete(o.foreign, k)
		delete(o.claimable, k)
		if s == nil {
			delete(o.servers, k)
			continue
		}

		o.servers[k] = s
	}

	records, marks := o.companion.records, o.index.marks
	for k := range p.records {
		for _, mark := range records[k].marks() {
			delete(marks, mark)
		}
	}

	for k, r := range p.records {
		if r == nil {
			delete(records, k)
			continue
		}

		records[k] = r
		for _, mark := range r.marks() {
			marks[mark] = true
		}
	}

	if v := p.versions[stageEnd]; v.exists {
		o.companion.version = v
	}
	if p.next != nil {
		o.table = p.next
	}
	rules := o.rules()
	for i, f := range nft.Families {
		o.companion.exists[i], o.companion.whole[i] = hasTable(f, &rules), true
		o.routed[i] = o.leads(f, &rules)
	}

	o.companion.addrs[setNodeAddrs], o.companion.tunables = p.addrs, p.tunables
	o.companion.shapes = p.shapes
	o.committedDevice(&p.device, ifindex)
	o.unrouted = [2][]string{}
	o.tunables.Committed(p.network.tunables)
	o.damage = damage{}
}
