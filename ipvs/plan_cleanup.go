package ipvs

import (
	"maps"
	"slices"

	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/nft"
)

// planCleanup plans the removal of everything. If there is something to remove and no companion,
// the plan makes a companion, whose version lasts as long as the removal.
func (pl *planner) planCleanup() *plan {
	have := &pl.have
	p := pl.newPlan()
	for _, name := range slices.Sorted(maps.Keys(have.companion.tunables)) {
		p.network.restore = append(p.network.restore,
			tunable{name, have.companion.tunables[name]})
	}
	for _, k := range slices.SortedFunc(maps.Keys(have.servers), ipvsnl.ServiceKey.Compare) {
		p.down = append(p.down,
			op{cmd: ipvsnl.CommandDelService, svc: ipvsnl.Service{ServiceKey: k}})
	}
	p.device.remove = have.devices
	for _, b := range have.addresses.bound {
		if !slices.Contains(have.devices, b.dev) {
			p.device.release = append(p.device.release, b)
		}
	}
	pl.planNoTables(p)
	return p
}

// planNoTables plans the deletion of the companion tables after everything else.
func (pl *planner) planNoTables(p *plan) {
	exists, was := pl.have.companion.exists, pl.have.companion.version
	if exists == [2]bool{} && len(p.down)+p.device.len() == 0 {
		return
	}
	first, last := &p.stages[stageRestrict], &p.stages[stageEnd]
	last[0].remove, last[1].remove = exists[0], exists[1]
	if exists[0] && !was.exists {
		return // the damaged table keeps its restrictions and records until the end
	}
	if !exists[0] {
		first[0].create, first[0].sets = true, []*nft.Set{versionSet}
		last[0].remove = true
	}
	v := was.next(true)
	first[0].replace(was, v)
	p.versions = [3]version{v, v, {}}
	last[0].sink(last[0].del)(setVersion, nft.Elem{Key: nft.Native32(v.number)})
}
