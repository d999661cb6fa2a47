package ipvs

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/kernlb/kernlb/servicemodel"
)

// devicePlan is the change of devices and addresses. The companion knows a frontend before its
// address is bound, so packets to a bound address are always led to IPVS.
type devicePlan struct {
	name    string
	metric  uint32
	add, up bool // make the device; set it up
	remove  []string
	release []boundAddr
	bind    []netip.Addr

	users map[netip.Addr]int // the change of the number of frontends at an address
}

func (p *devicePlan) len() int {
	n := len(p.remove) + len(p.release) + len(p.bind)
	if p.add || p.up {
		n++
	}
	return n
}

// planDevice plans which addresses are bound after the plan. If something is damaged, it considers
// all frontends, otherwise only new and removed ones.
func (pl *planner) planDevice(p *plan) {
	d, have := &p.device, &pl.have.addresses
	d.name, d.metric, d.users = pl.cfg.Device, instanceNumber(pl.instance), pl.userChanges(p)
	look := slices.Collect(maps.Keys(d.users))
	if pl.have.damage.addresses {
		d.remove = pl.have.damage.devices
		look = slices.AppendSeq(look, maps.Keys(pl.have.index.users))
		for _, b := range have.bound {
			look = append(look, b.addr)
			if b.ifindex != have.ifindex && !slices.Contains(d.remove, b.dev) {
				d.release = append(d.release, b)
			}
		}
	}
	slices.SortFunc(look, netip.Addr.Compare)
	needed := false
	for _, a := range slices.Compact(look) {
		want := d.name != "" && pl.have.index.users[a]+d.users[a] > 0 && !have.othersHave(a)
		needed = needed || want
		switch b, has := have.onDevice(a); {
		case want && !has:
			d.bind = append(d.bind, a)
		case !want && has:
			d.release = append(d.release, b)
		}
	}
	if needed {
		d.add, d.up = have.ifindex == 0, have.ifindex != 0 && !have.up
	}
}

// userChanges returns the change of the number of frontends at each address. Node ports have no
// address of their own.
func (pl *planner) userChanges(p *plan) map[netip.Addr]int {
	m := map[netip.Addr]int{}
	for k, r := range p.records {
		if k.NodePort() {
			continue
		}
		if r != nil {
			m[k.Addr]++
		}
		if pl.have.companion.records[k] != nil {
			m[k.Addr]--
		}
	}
	return m
}

// committedDevice notes the bound addresses after a plan. ifindex is the index of the device.
func (o *observed) committedDevice(d *devicePlan, ifindex int) {
	for a, n := range d.users {
		if o.index.users[a] += n; o.index.users[a] == 0 {
			delete(o.index.users, a)
		}
	}
	a := &o.addresses
	if len(d.release)+len(d.remove) > 0 {
		a.bound = slices.DeleteFunc(a.bound, func(b boundAddr) bool {
			return slices.Contains(d.release, b) || slices.Contains(d.remove, b.dev)
		})
	}
	if d.add || d.up {
		a.ifindex, a.up = ifindex, true
	}
	for _, addr := range d.bind {
		a.bound = append(a.bound, boundAddr{addr, a.ifindex, d.name})
	}
	if len(d.bind) > 0 {
		slices.SortFunc(a.bound, compareBound)
	}
	if d.add && !slices.Contains(o.devices, d.name) {
		o.devices = append(o.devices, d.name)
	}
	o.devices = slices.DeleteFunc(o.devices, func(name string) bool {
		return slices.Contains(d.remove, name)
	})
}

// makeDevice writes how the device is made.
func (t *text) makeDevice(d *devicePlan) {
	switch {
	case d.add:
		t.line("ip link add %s up group %d type dummy", d.name, d.metric)
	case d.up:
		t.line("ip link set %s up", d.name)
	}
}

// release writes the releases of addresses and the deletions of devices.
func (t *text) release(d *devicePlan) {
	for _, b := range d.release {
		t.line("ip address del %s dev %s", netip.PrefixFrom(b.addr, b.addr.BitLen()), b.dev)
	}
	for _, name := range d.remove {
		t.line("ip link del %s", name)
	}
}

// bind writes the addresses that are bound.
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
