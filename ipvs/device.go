package ipvs

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/kernlb/kernlb/servicemodel"
)

// addresses are those of a network namespace, and the device that holds ours.
type addresses struct {
	node []netip.Addr // can take node ports; sorted
	// bound by others, on any device; sorted, and nil if no device is configured
	others  []netip.Addr
	holding []boundAddr // ours, by their metric; sorted
	index   int         // of the configured device; 0: it is not there
	up      bool
}

func (a *addresses) equal(o *addresses) bool {
	return slices.Equal(a.node, o.node) && slices.Equal(a.others, o.others) &&
		slices.Equal(a.holding, o.holding) && a.index == o.index && a.up == o.up
}

func compareBound(a, b boundAddr) int {
	if c := a.addr.Compare(b.addr); c != 0 {
		return c
	}
	return a.index - b.index
}

// device is what is known of the device that holds the addresses of services.
type device struct {
	users map[netip.Addr]int // how many frontends are recorded at an address
	left  []string           // devices that this instance made under other names
	loose bool               // something is not as it should be: look at all addresses
}

// devicePlan is what a commit does about devices and addresses. The companion knows of a frontend
// before its address is bound, so that a bound address is always led to IPVS.
type devicePlan struct {
	name    string
	metric  uint32
	add, up bool // the device is made; it is set up
	remove  []string
	release []boundAddr
	bind    []netip.Addr

	users map[netip.Addr]int // of addresses whose number changes
}

func (p *devicePlan) len() int {
	n := len(p.remove) + len(p.release) + len(p.bind)
	if p.add || p.up {
		n++
	}
	return n
}

// planDevice plans what the frontends of the plan mean for the addresses that are bound.
func (b *Backend) planDevice(p *plan) {
	d := &p.device
	d.name, d.metric, d.users = b.cfg.Device, instanceNumber(b.instance), map[netip.Addr]int{}
	for k, r := range p.records {
		if k.NodePort() {
			continue
		}
		if r != nil {
			d.users[k.Addr]++
		}
		if b.comp.records[k] != nil {
			d.users[k.Addr]--
		}
	}
	look := maps.Clone(d.users)
	bound := func(a netip.Addr) (int, bool) {
		return slices.BinarySearchFunc(b.found.holding, boundAddr{addr: a, index: b.found.index},
			compareBound)
	}
	if b.device.loose {
		d.remove = b.device.left
		for a := range b.device.users {
			look[a] += 0
		}
		for _, h := range b.found.holding {
			if look[h.addr] += 0; h.index != b.found.index && !slices.Contains(d.remove, h.dev) {
				d.release = append(d.release, h)
			}
		}
	}
	needed := false
	for _, a := range slices.SortedFunc(maps.Keys(look), netip.Addr.Compare) {
		_, others := slices.BinarySearchFunc(b.found.others, a, netip.Addr.Compare)
		want := d.name != "" && b.device.users[a]+look[a] > 0 && !others
		needed = needed || want
		switch i, has := bound(a); {
		case want && !has:
			d.bind = append(d.bind, a)
		case !want && has:
			d.release = append(d.release, b.found.holding[i])
		}
	}
	if needed {
		d.add, d.up = b.found.index == 0, b.found.index != 0 && !b.found.up
	}
}

// bound notes what is bound after a plan, on the device of the index.
func (b *Backend) bound(d *devicePlan, index int) {
	for a, n := range d.users {
		if b.device.users[a] += n; b.device.users[a] == 0 {
			delete(b.device.users, a)
		}
	}
	f := &b.found
	if len(d.release)+len(d.remove) > 0 {
		f.holding = slices.DeleteFunc(f.holding, func(h boundAddr) bool {
			return slices.Contains(d.release, h) || slices.Contains(d.remove, h.dev)
		})
	}
	if d.add || d.up {
		f.index, f.up = index, true
	}
	for _, a := range d.bind {
		f.holding = append(f.holding, boundAddr{a, f.index, d.name})
	}
	if len(d.bind) > 0 {
		slices.SortFunc(f.holding, compareBound)
	}
	b.device.left, b.device.loose = nil, false
}

// adoptDevice compares what is bound with what the records say, and returns the differences.
func (b *Backend) adoptDevice(left []string) (drift []string) {
	b.device = device{users: map[netip.Addr]int{}, left: left}
	for k := range b.comp.records {
		if !k.NodePort() {
			b.device.users[k.Addr]++
		}
	}
	for _, name := range left {
		drift = append(drift, fmt.Sprintf("device %s is not the one that is configured", name))
	}
	name, n := b.cfg.Device, len(b.device.users)
	switch {
	case name == "" || n == 0:
	case b.found.index == 0:
		drift = append(drift, fmt.Sprintf("device %s is missing", name))
	case !b.found.up:
		drift = append(drift, fmt.Sprintf("device %s is down", name))
	}
	bound := map[netip.Addr]bool{}
	for _, h := range b.found.holding {
		_, others := slices.BinarySearchFunc(b.found.others, h.addr, netip.Addr.Compare)
		bound[h.addr] = bound[h.addr] || h.index == b.found.index
		if h.index != b.found.index || b.device.users[h.addr] == 0 || others {
			drift = append(drift, fmt.Sprintf("address %v is bound to device %s", h.addr, h.dev))
		}
	}
	for _, a := range slices.SortedFunc(maps.Keys(b.device.users), netip.Addr.Compare) {
		_, others := slices.BinarySearchFunc(b.found.others, a, netip.Addr.Compare)
		if name != "" && !bound[a] && !others {
			drift = append(drift, fmt.Sprintf("address %v is not bound to device %s", a, name))
		}
	}
	b.device.loose = len(drift) > 0
	return drift
}

// instanceNumber is the number by which the instance's routing table, device and addresses are
// known.
func instanceNumber(instance uint32) uint32 { return 0x6b000000 | instance>>16 }

// makeDevice writes how the device is made.
func (t *text) makeDevice(d *devicePlan) {
	switch {
	case d.add:
		t.line("ip link add %s up group %d type dummy", d.name, d.metric)
	case d.up:
		t.line("ip link set %s up", d.name)
	}
}

// release writes what is taken away from devices.
func (t *text) release(d *devicePlan) {
	for _, h := range d.release {
		t.line("ip address del %s dev %s", netip.PrefixFrom(h.addr, h.addr.BitLen()), h.dev)
	}
	for _, name := range d.remove {
		t.line("ip link del %s", name)
	}
}

// bind writes which addresses are bound.
func (t *text) bind(d *devicePlan) {
	for _, a := range d.bind {
		how := "scope host"
		if servicemodel.FamilyOf(a) == servicemodel.IPv6 {
			how = "preferred_lft 0 nodad"
		}
		t.line("ip address add %s dev %s metric %d %s noprefixroute",
			netip.PrefixFrom(a, a.BitLen()), d.name, d.metric, how)
	}
}
