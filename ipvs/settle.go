package ipvs

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/kernlb/kernlb/internal/ipvsnl"
)

const drainLook = 2 * time.Second

// Settle deletes the destinations that have drained or may no longer be waited for. It is a writer
// as Commit is.
func (b *Backend) Settle(ctx context.Context) (time.Duration, error) {
	if !b.observed || len(b.leaving) == 0 {
		return 0, nil
	}
	p := b.newPlan()
	by := map[ipvsnl.ServiceKey][]ipvsnl.DestinationKey{}
	for dk := range b.leaving {
		if s := b.held[dk.svc]; s == nil || s.dests[dk.dest].Weight != 0 {
			delete(b.leaving, dk)
			continue
		}
		by[dk.svc] = append(by[dk.svc], dk.dest)
	}
	for _, k := range slices.SortedFunc(maps.Keys(by), ipvsnl.ServiceKey.Compare) {
		list, err := b.vs.Destinations(ctx, k)
		if err != nil {
			return 0, b.failed("drain", err)
		}
		for _, d := range list {
			late := time.Since(b.leaving[drainKey{k, d.DestinationKey}]) >= b.cfg.DrainLimit
			if slices.Contains(by[k], d.DestinationKey) && d.Weight == 0 &&
				(late || d.ActiveConns+d.InactiveConns == 0) {
				p.down = append(p.down,
					op{ipvsnl.CommandDelDestination, ipvsnl.Service{ServiceKey: k}, d.Destination})
			}
		}
	}
	if len(p.down) > 0 && b.comp.version.exists {
		if err := b.drained(ctx, p); err != nil {
			return 0, err
		}
	}
	if len(b.leaving) == 0 {
		return 0, nil
	}
	return drainLook, nil
}

// drained deletes destinations.
func (b *Backend) drained(ctx context.Context, p *plan) error {
	b.planVersion(p)
	if err := b.run(ctx, b.steps(p)); err != nil {
		return err
	}
	for _, o := range p.down {
		delete(b.held[o.svc.ServiceKey].dests, o.dest.DestinationKey)
		delete(b.leaving, drainKey{o.svc.ServiceKey, o.dest.DestinationKey})
	}
	return nil
}
