package ipvs

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/servicemodel"
)

// planner plans the change from the kernel's state to the desired state. It has no socket: a plan
// is a value.
type planner struct {
	cfg      Config
	instance uint32
	tunables map[string]string // the wanted tunables, with their values
	have     observed
	// unusable are addresses that the kernel refused as endpoints. They are forgotten when the
	// node's addresses change.
	unusable map[netip.Addr]bool
	// lacking are schedulers that the kernel does not have. A scheduler is forgotten when its
	// module is loaded.
	lacking map[string]bool
	// pools are the last two pools, because the frontends of a service follow one another.
	pools [2]poolDestinations
}

func newPlanner(c Config) planner {
	return planner{cfg: c, instance: instanceFlag(c.Table), tunables: c.tunables(),
		have: newObserved(), unusable: map[netip.Addr]bool{},
		lacking: map[string]bool{}}
}

// plan is the content of a commit: to IPVS, to the companion tables in three transactions, and to
// the rest of the network. Restrictions come before permissions, and additions before removals:
//
// 1. restrict: the companion gets new objects, and new source ranges of old objects
// 2. the rules and the routes are added, tunables are set; the companion has their earlier values
// 3. up: additions to IPVS; if source ranges are new, after all packets that passed the old ranges
// 4. open: the companion's frontends become the wanted frontends
// 5. addresses are released and bound
// 6. down: removals from IPVS; tunables that are no longer configured are restored
// 7. end: the companion forgets old objects
//
// The first and the last transaction replace the version of the instance. Transactions between
// which nothing is sent are combined.
type plan struct {
	name      string              // of the companion tables
	next      *servicemodel.Table // the table after the commit; nil if it stays the same
	up, down  []ipvsnl.Op
	stages    [3]stage
	batches   [3]*rawnl.Batch // of the stages, once encoded
	from      version         // of the companion before the first stage
	versions  [3]version      // of the companion after each stage
	device    devicePlan
	network   networkPlan
	restricts bool   // the companion gets a new source range
	mark      uint32 // the last mark that was given to a frontend

	// The kernel's state afterwards.
	servers  map[ipvsnl.ServiceKey]*server // nil for a removed virtual server
	records  map[servicemodel.FrontendKey]*record
	addrs    []netip.Addr
	shapes   [2]shape
	tunables map[string]string
}

// The transactions of a plan.
const (
	stageRestrict = iota
	stageOpen
	stageEnd
)

// stage is one transaction: the changes of each companion table.
type stage [2]tablePlan

// tablePlan is the change of a companion table in one transaction.
type tablePlan struct {
	remove, create bool       // delete the table; create it
	shape          shape      // of the table afterwards
	sets           []*nft.Set // sets to create
	program        nft.Program
	del, add       elements
}

// elements are lists of elements by set.
type elements map[string]*nft.ElemList

func (m *elements) put(set string, e nft.Elem) {
	if *m == nil {
		*m = elements{}
	}
	if (*m)[set] == nil {
		(*m)[set] = &nft.ElemList{}
	}
	(*m)[set].Add(e)
}

// empty reports whether the table does not change.
func (tp *tablePlan) empty() bool {
	return !tp.remove && !tp.create && len(tp.del)+len(tp.add) == 0
}

func (pl *planner) newPlan() *plan {
	c := &pl.have.companion
	return &plan{name: pl.cfg.Table, mark: pl.cfg.Mark | splitMark, from: c.version,
		servers: map[ipvsnl.ServiceKey]*server{},
		records: map[servicemodel.FrontendKey]*record{},
		addrs:   c.addrs[setNodeAddrs], shapes: c.shapes, tunables: c.tunables}
}

// affected returns the frontends that a change set or damage concerns, sorted.
func (pl *planner) affected(c *servicemodel.ChangeSet,
	addrs []netip.Addr) []servicemodel.FrontendKey {
	l := slices.Clone(pl.have.damage.frontends)
	note := func(f *servicemodel.Frontend) {
		if f == nil {
			return
		}
		l = append(l, f.Key)

		// The frontend takes over the address from a node port of the same number.
		if !f.Key.NodePort() && slices.Contains(addrs, f.Key.Addr) {
			any := nft.Families[nft.FamilyIndex(f.Key.Addr)].Any
			l = append(l, servicemodel.FrontendKey{Addr: any, Protocol: f.Key.Protocol,
				Port: f.Key.Port})
		}
	}

	for _, fc := range c.Frontends {
		note(fc.Old)
		note(fc.New)
		l = append(l, rangesBeside(c, fc)...)
	}

	for _, pc := range c.Pools {
		id := cmp.Or(pc.New, pc.Old).ID
		for _, f := range c.New.FrontendsOf(id.Service) {
			if f.Key.Family() == id.Family {
				l = append(l, f.Key)
			}
		}
	}

	if !slices.Equal(addrs, pl.have.companion.addrs[setNodeAddrs]) {
		for f := range c.New.Frontends() {
			if f.Key.NodePort() {
				l = append(l, f.Key)
			}
		}
	}

	slices.SortFunc(l, servicemodel.FrontendKey.Compare)
	return slices.Compact(l)
}

func (pl *planner) plan(c *servicemodel.ChangeSet) *plan {
	p := pl.newPlan()
	p.next = c.New
	p.addrs = nodePortAddrs(pl.have.addresses.node, c.New.Rules())
	keys := pl.affected(c, p.addrs)
	want := map[ipvsnl.ServiceKey]*server{}
	old := slices.Clone(pl.have.damage.servers)
	for _, k := range keys {
		pl.have.owned(k, func(s ipvsnl.ServiceKey) { old = append(old, s) })
		fe := c.New.Frontend(k)
		if fe == nil {
			p.records[k] = nil
			continue
		}

		r := pl.record(p, c.New, fe)
		p.records[k] = r
		for _, s := range pl.servers(c.New, r, p.addrs) {
			want[s.svc.ServiceKey] = s
		}
	}

	for _, k := range slices.SortedFunc(maps.Keys(want), ipvsnl.ServiceKey.Compare) {
		p.servers[k] = pl.change(p, cmp.Or(pl.have.servers[k], pl.have.claimable[k]), want[k])
	}
	slices.SortFunc(old, ipvsnl.ServiceKey.Compare)
	for _, k := range slices.Compact(old) {
		if want[k] == nil && pl.have.servers[k] != nil {
			p.down = append(p.down, ipvsnl.DelService(k))
			p.servers[k] = nil
		}
	}

	pl.planDevice(p)
	pl.planNetwork(p)
	pl.planTables(p, c, keys)
	pl.planVersion(p)
	return p
}

// record returns the desired record of a frontend in the companion table.
func (pl *planner) record(p *plan, t *servicemodel.Table, fe *servicemodel.Frontend) *record {
	main, alt := pools(t, fe)
	r := &record{fe: fe, nat: main == nil || main.Forwarding == servicemodel.ForwardNAT}
	had := pl.have.companion.records[fe.Key]
	if fe.Key.EndPort != 0 {
		r.at = rangeIn(t, fe.Key)
		if had != nil {
			r.at.mark = had.at.mark
		} else {
			r.at.mark = pl.newMark(p)
		}
	}

	switch {
	case alt == nil:
	case had != nil && had.mark != 0:
		r.mark = had.mark
	default:
		r.mark = pl.newMark(p)
	}

	return r
}

// newMark returns a mark that no virtual server has.
func (pl *planner) newMark(p *plan) uint32 {
	for p.mark++; pl.have.index.marks[p.mark]; {
		p.mark++
	}
	return p.mark
}

// change plans the change of a virtual server to the desired one, and returns the result.
func (pl *planner) change(p *plan, have, want *server) *server {
	next := &server{svc: want.svc, proto: want.proto, dests: want.dests}
	of := want.svc.ServiceKey
	if have == nil {
		p.up = append(p.up, ipvsnl.NewService(want.svc))
		have = &server{}
	} else if have.svc != want.svc {
		p.up = append(p.up, ipvsnl.SetService(want.svc))
	}

	for _, k := range otherDests(want.dests, have.dests) {
		if _, ok := have.dests[k]; !ok {
			p.up = append(p.up, ipvsnl.NewDestination(of, want.dests[k]))
		} else {
			p.up = append(p.up, ipvsnl.SetDestination(of, want.dests[k]))
		}
	}

	drains, shared := want.proto == servicemodel.TCP && pl.cfg.DrainLimit > 0, true
	for _, k := range otherDests(have.dests, want.dests) {
		d := have.dests[k]
		if _, stays := want.dests[k]; stays {
			continue
		}
		if !drains {
			p.down = append(p.down, ipvsnl.DelDestination(of, k))
			continue
		}

		if d.Weight != 0 {
			d.Weight = 0
			p.down = append(p.down, ipvsnl.SetDestination(of, d))
		}

		if shared {
			next.dests, shared = maps.Clone(next.dests), false
		}
		next.dests[k] = d
	}

	return next
}

// diffElements deletes the elements that only old has, and adds those that only now has.
func diffElements(old, now *record, del, add func(string, nft.Elem)) {
	type id struct{ set, key, end, data, ud string }
	idOf := func(set string, e nft.Elem) id {
		return id{set, string(e.Key), string(e.KeyEnd), string(e.Data), string(e.UserData)}
	}
	was, is := map[id]bool{}, map[id]bool{}
	old.elements(func(set string, e nft.Elem) { was[idOf(set, e)] = true })
	now.elements(func(set string, e nft.Elem) { is[idOf(set, e)] = true })
	old.elements(func(set string, e nft.Elem) {
		if !is[idOf(set, e)] {
			e.Data, e.UserData = nil, nil
			del(set, e)
		}
	})

	now.elements(func(set string, e nft.Elem) {
		if !was[idOf(set, e)] {
			add(set, e)
		}
	})
}

// nodePortAddrs returns the node's addresses that answer node ports.
func nodePortAddrs(local []netip.Addr, r servicemodel.Rules) []netip.Addr {
	var l []netip.Addr
	for _, a := range local {
		if slices.ContainsFunc(r.NodePorts, func(p netip.Prefix) bool { return p.Contains(a) }) {
			l = append(l, a)
		}
	}

	return l
}

// planCleanup plans the removal of everything, with the companion tables last. If there is
// something to remove but no companion, the plan creates a companion, whose version lasts as long
// as the removal.
func (pl *planner) planCleanup() *plan {
	have := &pl.have
	p := pl.newPlan()
	if len(have.companion.tunables) > 0 || have.routed != [2]bool{} {
		p.network.tunables = have.tunables.Plan(nil) // the table may be gone, and the rest not
	}
	for _, k := range slices.SortedFunc(maps.Keys(have.servers), ipvsnl.ServiceKey.Compare) {
		p.down = append(p.down, ipvsnl.DelService(k))
	}
	p.device.remove = have.devices
	for _, b := range have.addresses.bound {
		if !slices.Contains(have.devices, b.dev) {
			p.device.release = append(p.device.release, b)
		}
	}

	exists, was := have.companion.exists, have.companion.version
	if exists == [2]bool{} && len(p.down)+p.device.len() == 0 {
		return p
	}
	first, last := &p.stages[stageRestrict], &p.stages[stageEnd]
	last[0].remove, last[1].remove = exists[0], exists[1]
	if exists[0] && !was.exists {
		return p // the damaged table keeps its restrictions and records until the end
	}
	if !exists[0] {
		first[0].create, first[0].sets = true, []*nft.Set{versionSet}
		last[0].remove = true
	}

	v := was.next(true)
	first[0].replace(was, v)
	p.versions = [3]version{v, v, {}}
	last[0].del.put(setVersion, nft.Elem{Key: nft.Native32(v.number)})
	return p
}
