package ipvs

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/nfnl"
	"github.com/kernlb/kernlb/internal/rcu"
	"github.com/kernlb/kernlb/servicemodel"
)

// Commit writes a change set, in the order that the package documentation gives: what restricts
// before what opens, what is new before what is old. If it fails or is killed, each virtual server
// is as it was, as it is wanted, or on the way between: what is new is there, and what is old not
// gone yet.
func (b *Backend) Commit(ctx context.Context, c *servicemodel.ChangeSet) (dataplane.Stats, error) {
	start := time.Now()
	if !b.observed {
		return dataplane.Stats{}, errNotObserved
	}
	p := b.plan(c)
	stats := p.Stats()
	if err := b.run(ctx, b.steps(p)); err != nil {
		return dataplane.Stats{}, err
	}
	b.committed(p, c)
	stats.Duration = time.Since(start)
	b.cfg.Logger.Debug("committed", "backend", Name, "table", b.cfg.Table, "messages",
		stats.Messages, "bytes", stats.Bytes, "duration", stats.Duration)
	return stats, nil
}

// step is a part of a commit. Whoever is killed is killed between two steps or within one.
type step struct {
	doing string
	do    func(context.Context) error
}

// steps are the parts of a commit, in their order.
func (b *Backend) steps(p *plan) []step {
	return []step{
		{"begin in the companion tables", b.stage(p, stageRestrict)},
		{"prepare the network", func(context.Context) error { return b.prepare(p) }},
		{"wait for packets", p.awaitPackets},
		{"add to virtual servers", b.send(p.up)},
		{"commit the companion tables", b.stage(p, stageOpen)},
		{"release addresses", func(context.Context) error { return b.release(&p.device) }},
		{"bind addresses", func(context.Context) error { return b.bind(&p.device) }},
		{"take away from virtual servers", b.send(p.down)},
		{"restore sysctls", b.restoring(p.restore)},
		{"end in the companion tables", b.stage(p, stageEnd)},
	}
}

// stage commits one of the transactions of a plan.
func (b *Backend) stage(p *plan, s int) func(context.Context) error {
	return func(ctx context.Context) error { return b.commitStage(ctx, p, s) }
}

// send sends commands to IPVS.
func (b *Backend) send(ops []op) func(context.Context) error {
	return func(ctx context.Context) error { return b.submit(ctx, ops) }
}

// restoring restores sysctls.
func (b *Backend) restoring(names []string) func(context.Context) error {
	return func(ctx context.Context) error { return b.restore(ctx, names) }
}

// run takes steps. After an error the kernel must be observed again.
func (b *Backend) run(ctx context.Context, steps []step) error {
	for _, s := range steps {
		if err := s.do(ctx); err != nil {
			return b.failed(s.doing, err)
		}
	}
	return nil
}

// commitStage commits one of the transactions of a plan.
func (b *Backend) commitStage(ctx context.Context, p *plan, s int) error {
	b.batch.Reset()
	p.encode(&b.batch, s)
	if b.batch.Len() == 0 {
		return nil
	}
	var err error
	if b.comp.version.exists {
		err = b.nf.Commit(ctx, &b.batch, 0)
	} else {
		err = b.claim(ctx)
	}
	if changedByOthers(err) {
		err = fmt.Errorf("%w: %w", errTaken, err)
	}
	if err != nil {
		return err
	}
	// If somebody else has committed since the generation was read, this is not the one that
	// the kernel has, and Integrity will look.
	b.gen = nfnl.NextGenID(b.gen)
	b.comp.version = p.versions[s]
	return nil
}

// changedByOthers reports whether a transaction failed since something is there that was not, or is
// gone that was there: the version or, after somebody's edit, other elements. A rule that the
// kernel lacks a module for fails with ENOENT as well.
func changedByOthers(err error) bool {
	var e *nfnl.OpError
	if !errors.As(err, &e) || strings.HasPrefix(e.Object, "rule ") {
		return false
	}
	return e.Errno == syscall.ENOENT || e.Errno == syscall.EEXIST
}

// awaitPackets waits until what the plan has begun to restrict holds for all packets, if it
// restricts anything: else one that has passed the companion before would find what is added now.
func (p *plan) awaitPackets(ctx context.Context) error {
	if !p.restricts || len(p.up) == 0 {
		return nil
	}
	return rcu.Wait(ctx)
}

// prepare makes the device, and settles the rule, the route and the sysctls. What these were is in
// the companion.
func (b *Backend) prepare(p *plan) error {
	if p.settle {
		if err := b.net.lead(); err != nil {
			return err
		}
		if err := b.net.setSysctls(b.sysctls.wanted); err != nil {
			return err
		}
	}
	if p.device.add || p.device.up {
		return b.net.makeDevice()
	}
	return nil
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

// bind binds addresses to the device.
func (b *Backend) bind(d *devicePlan) error {
	for _, a := range d.bind {
		if err := b.net.bind(a); err != nil {
			return err
		}
	}
	return nil
}

// submitAtOnce is how many commands are sent between two looks at the version: if another writer
// has taken over, the rest is not sent.
const submitAtOnce = 1024

// submit sends commands to IPVS.
func (b *Backend) submit(ctx context.Context, ops []op) error {
	for first := true; len(ops) > 0; first = false {
		if !first {
			if err := b.requireVersion(ctx); err != nil {
				return err
			}
		}
		n := min(submitAtOnce, len(ops))
		if err := b.submitSome(ctx, ops[:n]); err != nil {
			return err
		}
		ops = ops[n:]
	}
	return nil
}

func (b *Backend) submitSome(ctx context.Context, ops []op) error {
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
	for _, conflict := range []error{errTaken, nfnl.ErrGenerationChanged, ipvsnl.ErrExists,
		ipvsnl.ErrNoService, ipvsnl.ErrNoDestination, errMoved} {
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
		if was := b.comp.records[k]; was != nil {
			delete(b.marks, was.mark)
		}
		if r == nil {
			delete(b.comp.records, k)
			continue
		}
		b.comp.records[k] = r
		given[r.mark] = r.mark != 0
	}
	for m, is := range given {
		if is {
			b.marks[m] = true
		}
	}
	b.comp.exists, b.comp.whole = [2]bool{true, true}, [2]bool{true, true}
	b.comp.addrs, b.comp.sysctls = p.addrs, p.sysctls
	b.bound(&p.device, b.net.index)
	b.settled = true
	b.table, b.dirty, b.stale = c.New, nil, nil
}

// noteLeaving begins the limit of each destination that drains, and ends that of each that came
// back.
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
