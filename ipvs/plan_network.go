package ipvs

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/kernlb/kernlb/dataplane/sysctls"
	"github.com/kernlb/kernlb/internal/nft"
)

// networkPlan is the change of rules and routes, which deliver packets to IPVS, and of tunables.
type networkPlan struct {
	number   uint32 // of the routing table
	mark     uint32
	route    [2]bool // by family: add the rule and the route
	unroute  [2]bool // by family, which the node does not serve: delete them
	tunables sysctls.Change
}

func (p *networkPlan) len() int {
	n := len(p.tunables.Set) + len(p.tunables.Restore)
	if p.route != [2]bool{} || p.unroute != [2]bool{} {
		n++
	}
	return n
}

// planNetwork plans the rules, the routes and the tunables.
func (pl *planner) planNetwork(p *plan) {
	have := &pl.have
	p.network.number, p.network.mark = instanceNumber(pl.instance), pl.cfg.Mark
	rules := p.next.Rules()
	for i, f := range nft.Families {
		p.network.route[i] = have.leads(f, &rules) && (!have.routed[i] || len(have.unrouted[i]) > 0)
		p.network.unroute[i] = !f.ServedBy(&rules) && have.routed[i]
	}

	p.network.tunables = have.tunables.Plan(pl.tunables)
	p.tunables = p.network.tunables.Records
}

// planTunables plans the companion's records of tunables: they are added before a tunable is set,
// and stay until it is restored. The table of the family ip has the records. A new table has no
// records yet.
func (pl *planner) planTunables(p *plan, anew bool) {
	first, last := &p.stages[stageRestrict][0], &p.stages[stageEnd][0]
	all, recorded := map[string]string{}, pl.have.companion.tunables
	maps.Copy(all, p.tunables)
	if anew {
		recorded = nil
	}
	for _, name := range slices.Sorted(maps.Keys(p.network.tunables.Restore)) {
		all[name] = p.network.tunables.Restore[name]
		last.del.put(setSettings, nft.Elem{Key: tunableElem(name, "").Key})
	}

	for _, name := range slices.Sorted(maps.Keys(all)) {
		if _, known := recorded[name]; !known {
			first.add.put(setSettings, tunableElem(name, all[name]))
		}
	}
}

// tunables writes values of tunables. ipvsadm sets all timeouts together.
func (t *text) tunables(values map[string]string) {
	timeouts := false
	for _, name := range slices.Sorted(maps.Keys(values)) {
		timeouts = timeouts || isTimeout(name)
		if !isTimeout(name) {
			t.line("sysctl -w %s=%s", name, values[name])
		}
	}

	if timeouts {
		v := timeoutValues(timeoutsOf(values))
		t.line("ipvsadm --set %s %s %s", v[timeoutTCP], v[timeoutTCPFin], v[timeoutUDP])
	}
}

// devicePlan is the change of devices and addresses. The companion knows a frontend before its
// address is bound, so packets to a bound address always reach IPVS.
type devicePlan struct {
	name    string
	metric  uint32
	add, up bool // create the device; set it up
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

// planDevice plans the addresses that are bound after the plan. If something is damaged, it
// considers all frontends, otherwise only new and removed ones.
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
// address.
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

// committedDevice records the bound addresses after a plan. ifindex is the index of the device.
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
