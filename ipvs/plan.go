package ipvs

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/nftwire"
	"github.com/kernlb/kernlb/internal/settings"
	"github.com/kernlb/kernlb/servicemodel"
)

// ErrForeign says that somebody else has a virtual server where one of ours must be. Nothing was touched.
var ErrForeign = errors.New("a virtual server that is not ours is in the way")

// op is one command about a virtual server or a destination.
type op struct {
	cmd  ipvsnl.Command
	svc  ipvsnl.Service
	dest ipvsnl.Destination
}

// plan is what a commit sends, in this order: what adds to IPVS, the companion tables, what takes away from IPVS. Addresses are released before the
// companion tables are written, and bound after.
type plan struct {
	table    string
	up, down []op
	tables   [2]tablePlan
	device   devicePlan
	mark     uint32 // the last that was given to a frontend

	// What is known of the kernel afterwards.
	servers map[ipvsnl.ServiceKey]*server // nil for one that goes
	owned   map[servicemodel.FrontendKey][]ipvsnl.ServiceKey
	records map[servicemodel.FrontendKey]*record
	addrs   []netip.Addr
}

type tablePlan struct {
	rebuild, create bool
	program         nftwire.Program
	del, add        map[string]*nftwire.ElemList
	sets            []*nftwire.Set
}

func (tp *tablePlan) sink(m map[string]*nftwire.ElemList) func(string, nftwire.Elem) {
	return func(set string, e nftwire.Elem) {
		if m[set] == nil {
			m[set] = &nftwire.ElemList{}
		}
		m[set].Add(e)
	}
}

// affected returns the frontends that a change set and what was found broken concern, sorted.
func (b *Backend) affected(c *servicemodel.ChangeSet, addrs []netip.Addr) []servicemodel.FrontendKey {
	m := maps.Clone(b.dirty)
	if m == nil {
		m = map[servicemodel.FrontendKey]bool{}
	}
	note := func(f *servicemodel.Frontend) {
		if f == nil {
			return
		}
		m[f.Key] = true
		if !f.Key.NodePort() && slices.Contains(addrs, f.Key.Addr) { // it comes before a node port of the same number
			any := nftwire.Families[nftwire.FamilyIndex(f.Key.Addr)].Any
			m[servicemodel.FrontendKey{Addr: any, Protocol: f.Key.Protocol, Port: f.Key.Port}] = true
		}
	}
	for _, fc := range c.Frontends {
		note(fc.Old)
		note(fc.New)
	}
	for _, pc := range c.Pools {
		id := servicemodel.PoolID{}
		if pc.New != nil {
			id = pc.New.ID
		} else {
			id = pc.Old.ID
		}
		for _, f := range c.New.FrontendsOf(id.Service) {
			if f.Key.Family() == id.Family {
				m[f.Key] = true
			}
		}
	}
	if !slices.Equal(addrs, b.addrs) {
		for f := range c.New.Frontends() {
			if f.Key.NodePort() {
				m[f.Key] = true
			}
		}
	}
	return slices.SortedFunc(maps.Keys(m), servicemodel.FrontendKey.Compare)
}

// plan makes the plan for a change set.
func (b *Backend) plan(c *servicemodel.ChangeSet) (*plan, error) {
	if err := check(c); err != nil {
		return nil, err
	}
	addrs := nodePortAddrs(b.found.node, c.New.Rules())
	p := &plan{table: b.cfg.Table, mark: splitMarks, servers: map[ipvsnl.ServiceKey]*server{}, owned: map[servicemodel.FrontendKey][]ipvsnl.ServiceKey{},
		records: map[servicemodel.FrontendKey]*record{}, addrs: addrs}
	keys := b.affected(c, addrs)
	want := map[ipvsnl.ServiceKey]*server{}
	old := map[ipvsnl.ServiceKey]bool{}
	for _, k := range b.stale {
		old[k] = true
	}
	for _, k := range keys {
		for _, s := range b.owned[k] {
			old[s] = true
		}
		fe := c.New.Frontend(k)
		if fe == nil {
			p.records[k], p.owned[k] = nil, nil
			continue
		}
		r := b.record(p, c.New, fe)
		p.records[k] = r
		for _, s := range b.servers(c.New, fe, addrs, r.mark) {
			want[s.svc.ServiceKey] = s
			p.owned[k] = append(p.owned[k], s.svc.ServiceKey)
		}
	}
	if err := b.foreignIn(want); err != nil {
		return nil, err
	}
	for _, k := range slices.SortedFunc(maps.Keys(want), ipvsnl.ServiceKey.Compare) {
		p.servers[k] = b.change(p, b.held[k], want[k])
		delete(old, k)
	}
	for _, k := range slices.SortedFunc(maps.Keys(old), ipvsnl.ServiceKey.Compare) {
		if b.held[k] != nil {
			p.down = append(p.down, op{cmd: ipvsnl.CommandDelService, svc: ipvsnl.Service{ServiceKey: k}})
			p.servers[k] = nil
		}
	}
	for i := range nftwire.Families {
		b.planTable(p, i, c, keys)
	}
	b.planDevice(p)
	return p, nil
}

// record returns what the companion table is to hold about a frontend.
func (b *Backend) record(p *plan, t *servicemodel.Table, fe *servicemodel.Frontend) *record {
	main, alt := pools(t, fe)
	r := &record{fe: fe, nat: main == nil || main.Forwarding == servicemodel.ForwardNAT}
	if alt == nil {
		return r
	}
	if had := b.records[fe.Key]; had != nil && had.mark != 0 {
		r.mark = had.mark
		return r
	}
	for p.mark++; b.marks[p.mark]; {
		p.mark++
	}
	r.mark = p.mark
	return r
}

func (b *Backend) foreignIn(want map[ipvsnl.ServiceKey]*server) error {
	var errs []error
	for _, k := range slices.SortedFunc(maps.Keys(want), ipvsnl.ServiceKey.Compare) {
		if b.foreign[k] {
			errs = append(errs, fmt.Errorf("ipvs: virtual server %v: %w", k, ErrForeign))
		}
	}
	return errors.Join(errs...)
}

// change plans what makes a virtual server the one wanted, and returns what it is then.
func (b *Backend) change(p *plan, have, want *server) *server {
	k := want.svc.ServiceKey
	next := &server{svc: want.svc, proto: want.proto, dests: maps.Clone(want.dests)}
	if have == nil {
		p.up = append(p.up, op{cmd: ipvsnl.CommandNewService, svc: want.svc})
		have = &server{}
	} else if have.svc != want.svc {
		p.up = append(p.up, op{cmd: ipvsnl.CommandSetService, svc: want.svc})
	}
	for _, d := range sortedDests(want.dests) {
		was, ok := have.dests[d]
		switch {
		case !ok:
			p.up = append(p.up, op{ipvsnl.CommandNewDestination, ipvsnl.Service{ServiceKey: k}, want.dests[d]})
		case was != want.dests[d]:
			p.up = append(p.up, op{ipvsnl.CommandSetDestination, ipvsnl.Service{ServiceKey: k}, want.dests[d]})
		}
	}
	for _, d := range sortedDests(have.dests) {
		if _, ok := want.dests[d]; ok {
			continue
		}
		was := have.dests[d]
		if want.proto == servicemodel.TCP && b.cfg.DrainLimit > 0 {
			if was.Weight != 0 {
				was.Weight = 0
				p.down = append(p.down, op{ipvsnl.CommandSetDestination, ipvsnl.Service{ServiceKey: k}, was})
			}
			next.dests[d] = was
			continue
		}
		p.down = append(p.down, op{ipvsnl.CommandDelDestination, ipvsnl.Service{ServiceKey: k}, was})
	}
	return next
}

// planTable plans one companion table.
func (b *Backend) planTable(p *plan, i int, c *servicemodel.ChangeSet, keys []servicemodel.FrontendKey) {
	f, tp := nftwire.Families[i], &p.tables[i]
	tp.del, tp.add = map[string]*nftwire.ElemList{}, map[string]*nftwire.ElemList{}
	del, add := tp.sink(tp.del), tp.sink(tp.add)
	address := func(to func(string, nftwire.Elem), set string, a netip.Addr) {
		if nftwire.FamilyIndex(a) != i {
			return
		}
		key := nftwire.AppendAddr(nil, a)
		if set == setHairpins {
			key = nftwire.AppendAddr(key, a)
		}
		to(set, nftwire.Elem{Key: key})
	}
	if !b.whole[i] || c.Rules != nil {
		b.writeTable(p, i, c, add, address)
		return
	}
	for _, k := range keys {
		old, now := b.records[k], p.records[k]
		if nftwire.FamilyIndex(k.Addr) == i && !old.equal(now) {
			diffElements(old, now, del, add)
		}
	}
	for _, l := range []struct {
		set     string
		changes []servicemodel.AddrChange
	}{{setClusterIPs, c.ClusterIPs}, {setHairpins, c.Hairpins}} {
		for _, ch := range l.changes {
			if ch.Added {
				address(add, l.set, ch.Addr)
			} else {
				address(del, l.set, ch.Addr)
			}
		}
	}
	for _, a := range b.addrs {
		if !slices.Contains(p.addrs, a) {
			address(del, setNodeAddrs, a)
		}
	}
	for _, a := range p.addrs {
		if !slices.Contains(b.addrs, a) {
			address(add, setNodeAddrs, a)
		}
	}
	tp.sets = setsOf(f)
}

// writeTable plans a table from nothing.
func (b *Backend) writeTable(p *plan, i int, c *servicemodel.ChangeSet, add func(string, nftwire.Elem), address func(func(string, nftwire.Elem), string, netip.Addr)) {
	tp := &p.tables[i]
	tp.rebuild, tp.create = b.exists[i], true
	tp.sets = setsOf(nftwire.Families[i])
	tp.program = newProgram(nftwire.Families[i], c.New.Rules())
	for fe := range c.New.Frontends() {
		if nftwire.FamilyIndex(fe.Key.Addr) != i {
			continue
		}
		r := p.records[fe.Key]
		if r == nil {
			r = b.record(p, c.New, fe)
			p.records[fe.Key] = r
		}
		r.elements(add)
	}
	for a := range c.New.ClusterIPs() {
		address(add, setClusterIPs, a)
	}
	for a := range c.New.Hairpins() {
		address(add, setHairpins, a)
	}
	for _, a := range p.addrs {
		address(add, setNodeAddrs, a)
	}
	for n, line := range b.settingLines(c.New.Rules()) {
		add(setSettings, nftwire.Elem{Key: nftwire.Native32(uint32(n + 1)), UserData: nftwire.AppendComment(nil, line)})
	}
}

func (b *Backend) settingLines(r servicemodel.Rules) []string {
	l := settings.Lines(r)
	for _, name := range slices.Sorted(maps.Keys(b.sysctls)) {
		l = append(l, settingSysctl+" "+name+" "+b.sysctls[name])
	}
	return l
}

const settingSysctl = "sysctl"

// diffElements deletes what only old has, and adds what only now has.
func diffElements(old, now *record, del, add func(string, nftwire.Elem)) {
	type id struct{ set, key, end, data, ud string }
	idOf := func(set string, e nftwire.Elem) id {
		return id{set, string(e.Key), string(e.KeyEnd), string(e.Data), string(e.UserData)}
	}
	was, is := map[id]bool{}, map[id]bool{}
	old.elements(func(set string, e nftwire.Elem) { was[idOf(set, e)] = true })
	now.elements(func(set string, e nftwire.Elem) { is[idOf(set, e)] = true })
	old.elements(func(set string, e nftwire.Elem) {
		if !is[idOf(set, e)] {
			e.Data, e.UserData = nil, nil
			del(set, e)
		}
	})
	now.elements(func(set string, e nftwire.Elem) {
		if !was[idOf(set, e)] {
			add(set, e)
		}
	})
}

// nodePortAddrs are those of the node's addresses that take node ports.
func nodePortAddrs(local []netip.Addr, r servicemodel.Rules) []netip.Addr {
	var l []netip.Addr
	for _, a := range local {
		if slices.ContainsFunc(r.NodePorts, func(p netip.Prefix) bool { return p.Contains(a) }) {
			l = append(l, a)
		}
	}
	return l
}
