package ipvs

import (
	"maps"
	"slices"

	"github.com/kernlb/kernlb/internal/nft"
)

// networkPlan is what a commit does about what leads packets to IPVS, and about tunables.
type networkPlan struct {
	number  uint32 // of the routing table
	route   bool   // the rules and the routes are added
	set     []tunable
	restore []tunable // to these values, unless somebody relies on what they are
}

// tunable is a tunable with a value.
type tunable struct{ name, value string }

func (p *networkPlan) len() int {
	n := len(p.set) + len(p.restore)
	if p.route {
		n++
	}
	return n
}

// planNetwork plans the rules, the routes and the tunables. A tunable is recorded before it is set;
// if it has the wanted value already, what it was is what others know of it, if they do.
func (pl *planner) planNetwork(p *plan) {
	have := &pl.have
	p.network.number, p.network.route = instanceNumber(pl.instance), len(have.unrouted) > 0
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

// planTunables plans what the companion records of tunables: before they are set, and until they
// are restored. They are in the table of the family ip.
func (pl *planner) planTunables(p *plan) {
	first, last := &p.stages[stageRestrict][0], &p.stages[stageEnd][0]
	for _, name := range slices.Sorted(maps.Keys(p.tunables)) {
		if _, known := pl.have.companion.tunables[name]; !known {
			first.sink(first.add)(setSettings, tunableElem(name, p.tunables[name]))
		}
	}
	for _, t := range p.network.restore {
		last.sink(last.del)(setSettings, nft.Elem{Key: tunableElem(t.name, "").Key})
	}
}

// planNewTunables plans what a new table records of tunables.
func (pl *planner) planNewTunables(p *plan) {
	first, last := &p.stages[stageRestrict][0], &p.stages[stageEnd][0]
	l := maps.Clone(p.tunables)
	for _, t := range p.network.restore {
		l[t.name] = t.value
		last.sink(last.del)(setSettings, nft.Elem{Key: tunableElem(t.name, "").Key})
	}
	for _, name := range slices.Sorted(maps.Keys(l)) {
		first.sink(first.add)(setSettings, tunableElem(name, l[name]))
	}
}

// prepare writes what leads packets to IPVS, and which tunables are set: in the languages of ip,
// sysctl and ipvsadm.
func (t *text) prepare(p *networkPlan) {
	if p.route {
		for _, ip := range []string{"ip", "ip -6"} {
			t.line("%s route replace local default dev lo table %d", ip, p.number)
			t.line("%s rule add fwmark 0x%x/0x%[2]x table %d priority %d", ip, steerBit, p.number,
				rulePriority)
		}
	}
	t.tunables(p.set)
}

// splitTunables tells the timeouts, which are set at once, from the sysctls.
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
