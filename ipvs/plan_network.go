package ipvs

import (
	"maps"
	"slices"

	"github.com/kernlb/kernlb/internal/nft"
)

// networkPlan is the change of rules and routes, which lead packets to IPVS, and of tunables.
type networkPlan struct {
	number  uint32 // of the routing table
	mark    uint32
	route   [2]bool // by family: add the rule and the route
	unroute [2]bool // by family, which the node does not serve: delete them
	set     []tunable
	restore []tunable // to these values, unless another program relies on the present ones
}

// tunable is a tunable with a value.
type tunable struct{ name, value string }

func (p *networkPlan) len() int {
	n := len(p.set) + len(p.restore)
	if p.route != [2]bool{} || p.unroute != [2]bool{} {
		n++
	}
	return n
}

// planNetwork plans the rules, the routes and the tunables. A tunable is recorded before it is set.
// If it already has the wanted value, its earlier value is the one that other instances have
// recorded, if they have.
func (pl *planner) planNetwork(p *plan) {
	have := &pl.have
	p.network.number, p.network.mark = instanceNumber(pl.instance), pl.cfg.Mark
	rules := p.next.Rules()
	for i, f := range nft.Families {
		p.network.route[i] = have.leads(f, &rules) &&
			(!have.routed[i] || len(have.unrouted[i]) > 0)
		p.network.unroute[i] = !f.ServedBy(&rules) && have.routed[i]
	}
	p.tunables = maps.Clone(have.companion.tunables)
	for _, name := range slices.Sorted(maps.Keys(pl.tunables)) {
		now, want := have.tunables[name], pl.tunables[name]
		if now != want {
			p.network.set = append(p.network.set, tunable{name, want})
		}
		if _, known := p.tunables[name]; known {
			continue
		}
		p.tunables[name] = now
		if was, known := have.before[name]; known && now == want {
			p.tunables[name] = was
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.tunables)) {
		if pl.tunables[name] == "" {
			p.network.restore = append(p.network.restore, tunable{name, p.tunables[name]})
			delete(p.tunables, name)
		}
	}
}

// planTunables plans the companion's records of tunables: they are added before a tunable is set,
// and stay until it is restored. The table of the family ip has the records. A new table has none
// yet.
func (pl *planner) planTunables(p *plan, anew bool) {
	first, last := &p.stages[stageRestrict][0], &p.stages[stageEnd][0]
	all, recorded := maps.Clone(p.tunables), pl.have.companion.tunables
	if anew {
		recorded = nil
	}
	for _, t := range p.network.restore {
		all[t.name] = t.value
		last.sink(last.del)(setSettings, nft.Elem{Key: tunableElem(t.name, "").Key})
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if _, known := recorded[name]; !known {
			first.sink(first.add)(setSettings, tunableElem(name, all[name]))
		}
	}
}

// prepare writes the rules, the routes and the tunables to set, in the languages of ip, sysctl and
// ipvsadm.
func (t *text) prepare(p *networkPlan) {
	for i, ip := range []string{"ip", "ip -6"} {
		if p.route[i] {
			t.line("%s route replace local default dev lo table %d", ip, p.number)
			t.line("%s rule add fwmark 0x%x/0x%x table %d priority %d", ip, p.mark, ledMask,
				p.number, rulePriority)
		}
		if p.unroute[i] {
			t.line("%s rule del fwmark 0x%x/0x%x table %d priority %d", ip, p.mark, ledMask,
				p.number, rulePriority)
			t.line("%s route del local default dev lo table %d", ip, p.number)
		}
	}
	t.tunables(p.set)
}

// splitTunables separates the timeouts, which are set together, from the sysctls.
func splitTunables(l []tunable) (timeouts map[string]string, sysctls []tunable) {
	timeouts = map[string]string{}
	for _, t := range l {
		if isTimeout(t.name) {
			timeouts[t.name] = t.value
		} else {
			sysctls = append(sysctls, t)
		}
	}
	return timeouts, sysctls
}

// tunables writes values of tunables.
func (t *text) tunables(l []tunable) {
	timeouts, sysctls := splitTunables(l)
	for _, v := range sysctls {
		t.line("sysctl -w %s=%s", v.name, v.value)
	}
	if len(timeouts) > 0 {
		v := timeoutValues(timeoutsOf(timeouts))
		t.line("ipvsadm --set %s %s %s", v[timeoutTCP], v[timeoutTCPFin], v[timeoutUDP])
	}
}
