package ipvs

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/nft"
)

// Cleanup removes the virtual servers and companion tables of the instance, its route and rule, its
// device and addresses, and restores sysctls, as far as nobody else relies on them: the package
// documentation says when. The companion tables go last: they restrict what is still there, and
// know what sysctls were.
func (b *Backend) Cleanup(ctx context.Context) (dataplane.Stats, error) {
	start := time.Now()
	if _, err := b.Observe(ctx, nil); err != nil {
		return dataplane.Stats{}, err
	}
	p, err := b.planCleanup()
	if err != nil {
		return dataplane.Stats{}, b.failed("cleanup", err)
	}
	stats := p.Stats()
	err = b.run(ctx, b.cleanupSteps(p))
	b.observed = false
	if err != nil {
		return dataplane.Stats{}, err
	}
	b.comp = newCompanion()
	b.leaving = map[drainKey]time.Time{}
	stats.Duration = time.Since(start)
	return stats, nil
}

// cleanupSteps are the parts of a cleanup, in their order.
func (b *Backend) cleanupSteps(p *plan) []step {
	return []step{
		{"begin in the companion tables", b.stage(p, stageRestrict)},
		{"delete virtual servers", b.send(p.down)},
		{"remove devices", func(context.Context) error { return b.release(&p.device) }},
		{"delete the rule and the route", func(context.Context) error { return b.net.unlead() }},
		{"restore sysctls", b.restoring(p.restore)},
		{"delete the companion tables", b.stage(p, stageEnd)},
	}
}

// planCleanup plans the removal of everything. Where there is something, and no companion, there is
// one with a version as long as the removal lasts.
func (b *Backend) planCleanup() (*plan, error) {
	p := b.newPlan()
	p.restore = slices.Sorted(maps.Keys(b.comp.sysctls))
	for _, k := range slices.SortedFunc(maps.Keys(b.held), ipvsnl.ServiceKey.Compare) {
		p.down = append(p.down,
			op{cmd: ipvsnl.CommandDelService, svc: ipvsnl.Service{ServiceKey: k}})
	}
	made, err := b.net.made()
	if err != nil {
		return nil, err
	}
	p.device.remove = made
	for _, h := range b.found.holding {
		if !slices.Contains(made, h.dev) {
			p.device.release = append(p.device.release, h)
		}
	}
	there := b.comp.exists[0] || b.comp.exists[1]
	if !there && len(p.down)+p.device.len() == 0 {
		return p, nil
	}
	first, last := &p.stages[stageRestrict], &p.stages[stageEnd]
	last[0].rebuild, last[1].rebuild = b.comp.exists[0], b.comp.exists[1]
	if b.comp.exists[0] && !b.comp.version.exists {
		return p, nil // what the damaged table still restricts and records is kept until the end
	}
	if !b.comp.exists[0] {
		first[0].create, first[0].sets = true, []*nft.Set{versionSet}
		last[0].rebuild = true
	}
	v := b.comp.version.next(true)
	first[0].replace(b.comp.version, v)
	p.versions = [3]version{v, v, {}}
	last[0].sink(last[0].del)(setVersion, nft.Elem{Key: nft.Native32(v.number)})
	return p, nil
}
