package ipvs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/nfnl"
	"github.com/kernlb/kernlb/servicemodel"
)

// Commit writes a change set: first what adds to IPVS, then the companion tables, each in one transaction, then what takes away from IPVS. Addresses are
// released before the companion tables are written, and bound after.
func (b *Backend) Commit(ctx context.Context, c *servicemodel.ChangeSet) (dataplane.Stats, error) {
	start := time.Now()
	if !b.observed {
		return dataplane.Stats{}, errNotObserved
	}
	p, err := b.plan(c)
	if err != nil {
		return dataplane.Stats{}, err
	}
	if p, err = b.prepare(p, c); err != nil {
		return dataplane.Stats{}, b.failed("prepare", err)
	}
	stats := p.Stats()
	if err := b.submit(ctx, p.up); err != nil {
		return dataplane.Stats{}, b.failed("add virtual servers", err)
	}
	if err := b.release(&p.device); err != nil {
		return dataplane.Stats{}, b.failed("release addresses", err)
	}
	b.batch.Reset()
	p.encode(&b.batch)
	if b.batch.Len() > 0 {
		if err := b.nf.Commit(ctx, &b.batch, b.gen); err != nil {
			return dataplane.Stats{}, b.failed("commit the companion tables", err)
		}
		b.gen = nfnl.NextGenID(b.gen)
	}
	for _, a := range p.device.bind {
		if err := b.net.bind(a); err != nil {
			return dataplane.Stats{}, b.failed("bind addresses", err)
		}
	}
	if err := b.submit(ctx, p.down); err != nil {
		return dataplane.Stats{}, b.failed("take away from virtual servers", err)
	}
	b.committed(p, c)
	stats.Duration = time.Since(start)
	b.cfg.Logger.Debug("committed", "backend", Name, "table", b.cfg.Table, "messages", stats.Messages, "bytes", stats.Bytes, "duration", stats.Duration)
	return stats, nil
}

// prepare makes the device, and settles the rule, the route and the sysctls. What sysctls were goes into the companion tables; if that is news to them, they are
// written anew, by the plan that it returns.
func (b *Backend) prepare(p *plan, c *servicemodel.ChangeSet) (*plan, error) {
	if p.device.add || p.device.up {
		if err := b.net.makeDevice(); err != nil {
			return nil, err
		}
	}
	if b.settled {
		return p, nil
	}
	before := maps.Clone(b.sysctls)
	if err := b.net.prepare(b.sysctls); err != nil {
		return nil, err
	}
	b.settled = true
	if maps.Equal(before, b.sysctls) {
		return p, nil
	}
	b.whole = [2]bool{}
	return b.plan(c)
}

// release takes addresses and devices away.
func (b *Backend) release(d *devicePlan) error {
	for _, h := range d.release {
		if err := b.net.release(h); err != nil {
			return err
		}
	}
	for _, name := range d.remove {
		if err := b.net.removeDevice(name); err != nil {
			return err
		}
	}
	return nil
}

// submit sends commands to IPVS.
func (b *Backend) submit(ctx context.Context, ops []op) error {
	if len(ops) == 0 {
		return nil
	}
	var batch ipvsnl.Batch
	for _, o := range ops {
		switch o.cmd {
		case ipvsnl.CommandNewService:
			batch.NewService(o.svc)
		case ipvsnl.CommandSetService:
			batch.SetService(o.svc)
		case ipvsnl.CommandDelService:
			batch.DelService(o.svc.ServiceKey)
		case ipvsnl.CommandNewDestination:
			batch.NewDestination(o.svc.ServiceKey, o.dest)
		case ipvsnl.CommandSetDestination:
			batch.SetDestination(o.svc.ServiceKey, o.dest)
		case ipvsnl.CommandDelDestination:
			batch.DelDestination(o.svc.ServiceKey, o.dest.DestinationKey)
		}
	}
	return b.vs.Submit(ctx, &batch)
}

// failed wraps an error after which the kernel must be observed again.
func (b *Backend) failed(doing string, err error) error {
	b.observed = false
	for _, conflict := range []error{nfnl.ErrGenerationChanged, ipvsnl.ErrExists, ipvsnl.ErrNoService, ipvsnl.ErrNoDestination, errMoved} {
		if errors.Is(err, conflict) {
			return fmt.Errorf("ipvs: %s: %w: %w", doing, dataplane.ErrConflict, err)
		}
	}
	return fmt.Errorf("ipvs: %s: %w", doing, err)
}

// committed remembers what the kernel holds after a plan.
func (b *Backend) committed(p *plan, c *servicemodel.ChangeSet) {
	now, given := time.Now(), map[uint32]bool{}
	for k, s := range p.servers {
		if s == nil {
			delete(b.held, k)
			continue
		}
		b.held[k] = s
		b.noteLeaving(k, s, now)
	}
	for k, l := range p.owned {
		if l == nil {
			delete(b.owned, k)
		} else {
			b.owned[k] = l
		}
	}
	for k, r := range p.records {
		if was := b.records[k]; was != nil {
			delete(b.marks, was.mark)
		}
		if r == nil {
			delete(b.records, k)
			continue
		}
		b.records[k] = r
		given[r.mark] = r.mark != 0
	}
	for m, is := range given {
		if is {
			b.marks[m] = true
		}
	}
	for i := range p.tables {
		if p.tables[i].create {
			b.exists[i], b.whole[i] = true, true
		}
	}
	b.bound(&p.device, b.net.index)
	b.table, b.addrs, b.dirty, b.stale = c.New, p.addrs, nil, nil
}

// noteLeaving begins the limit of each destination that drains, and ends that of each that came back.
func (b *Backend) noteLeaving(k ipvsnl.ServiceKey, s *server, now time.Time) {
	for d, dest := range s.dests {
		dk := drainKey{k, d}
		if dest.Weight != 0 {
			delete(b.leaving, dk)
		} else if _, ok := b.leaving[dk]; !ok {
			b.leaving[dk] = now
		}
	}
}
