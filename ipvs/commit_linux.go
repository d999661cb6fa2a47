package ipvs

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/rcu"
	"github.com/kernlb/kernlb/internal/refusal"
)

// step is a part of a commit. Whoever is killed is killed between two steps or within one.
type step struct {
	doing string
	do    func(context.Context) error
}

// steps are the parts of a commit, in their order.
func (b *Backend) steps(p *plan) []step {
	k := &b.kernel
	return []step{
		{"begin in the companion tables", k.stage(p, stageRestrict)},
		{"prepare the network", func(ctx context.Context) error { return k.prepare(ctx, p) }},
		{"wait for packets", p.awaitPackets},
		{"add to virtual servers", k.send(p.up, p.versions[stageRestrict])},
		{"commit the companion tables", k.stage(p, stageOpen)},
		{"release addresses", func(context.Context) error { return k.releaseAll(&p.device) }},
		{"bind addresses", func(context.Context) error { return k.bindAll(&p.device) }},
		{"take away from virtual servers", k.send(p.down, p.versions[stageOpen])},
		{"restore sysctls and timeouts", b.restoring(p.network.restore)},
		{"end in the companion tables", k.stage(p, stageEnd)},
	}
}

// cleanupSteps are the parts of a cleanup, in their order.
func (b *Backend) cleanupSteps(p *plan) []step {
	k := &b.kernel
	return []step{
		{"begin in the companion tables", k.stage(p, stageRestrict)},
		{"delete virtual servers", k.send(p.down, p.versions[stageRestrict])},
		{"remove devices", func(context.Context) error { return k.releaseAll(&p.device) }},
		{"delete the rules and the routes", func(context.Context) error { return k.unroute() }},
		{"restore sysctls and timeouts", b.restoring(p.network.restore)},
		{"delete the companion tables", k.stage(p, stageEnd)},
	}
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

// failed wraps an error after which the kernel must be observed again.
func (b *Backend) failed(doing string, err error) error {
	b.observed = false
	err = refusal.Permission(err) // of links and sysctls
	for _, conflict := range []error{errTaken, errMisread, rawnl.ErrDumpInterrupted,
		rawnl.ErrGenerationChanged, ipvsnl.ErrExists, ipvsnl.ErrNoService,
		ipvsnl.ErrNoDestination, errMoved} {
		if errors.Is(err, conflict) {
			return fmt.Errorf("ipvs: %s: %w: %w", doing, dataplane.ErrConflict, err)
		}
	}
	return fmt.Errorf("ipvs: %s: %w", doing, err)
}

// restoring restores tunables.
func (b *Backend) restoring(l []tunable) func(context.Context) error {
	return func(ctx context.Context) error {
		return b.kernel.restore(ctx, l, b.pl.tunables, len(b.pl.have.foreign) > 0, b.cfg.Logger)
	}
}

// stage commits one of the transactions of a plan.
func (k *kernel) stage(p *plan, s int) func(context.Context) error {
	return func(ctx context.Context) error { return k.commitStage(ctx, p, s) }
}

func (k *kernel) commitStage(ctx context.Context, p *plan, s int) error {
	k.batch.Reset()
	p.encode(&k.batch, s)
	if k.batch.Len() == 0 {
		return nil
	}
	var err error
	if p.before(s).exists {
		err = k.nf.Commit(ctx, &k.batch, 0)
	} else {
		err = k.commitFirst(ctx)
	}
	if changedByOthers(err) {
		err = fmt.Errorf("%w: %w", errTaken, err)
	}
	if err != nil {
		return err
	}
	// If somebody else has committed since the generation was read, this is not the one that the
	// kernel has, and Integrity will look.
	k.gen = rawnl.NextGenID(k.gen)
	return nil
}

// changedByOthers reports whether a transaction failed since something is there that was not, or is
// gone that was there: the version or, after somebody's edit, other elements. A rule that the
// kernel lacks a module for fails with ENOENT as well.
func changedByOthers(err error) bool {
	var e *rawnl.OpError
	if !errors.As(err, &e) || strings.HasPrefix(e.Object, "rule ") {
		return false
	}
	return e.Errno == syscall.ENOENT || e.Errno == syscall.EEXIST
}

// firstTries bounds how often a first transaction is sent, because of those of others.
const firstTries = 20

// commitFirst commits a transaction that gives an instance its first version. Since there is none
// yet that two writers could contend for, it depends on the generation of the ruleset, read just
// before: a transaction of anybody in between makes it look again.
func (k *kernel) commitFirst(ctx context.Context) error {
	for try := 1; ; try++ {
		gen, err := k.nf.GenID(ctx)
		if err != nil {
			return err
		}
		v, err := k.readVersion(ctx)
		if err != nil {
			return err
		}
		if v.exists {
			return errTaken
		}
		err = k.nf.Commit(ctx, &k.batch, gen.ID)
		if !errors.Is(err, rawnl.ErrGenerationChanged) || try == firstTries {
			return err
		}
	}
}

// awaitPackets waits until what the plan has begun to restrict holds for all packets, if it
// restricts anything: else one that has passed the companion before would find what is added now.
func (p *plan) awaitPackets(ctx context.Context) error {
	if !p.restricts || len(p.up) == 0 {
		return nil
	}
	return rcu.Wait(ctx)
}

// prepare adds the rules and the routes, sets tunables, and makes the device. What tunables were is
// in the companion.
func (k *kernel) prepare(ctx context.Context, p *plan) error {
	if p.network.route {
		if err := k.route(); err != nil {
			return err
		}
	}
	if err := k.setTunables(ctx, p.network.set); err != nil {
		return err
	}
	if p.device.add || p.device.up {
		return k.makeDevice()
	}
	return nil
}

// releaseAll takes addresses and devices away.
func (k *kernel) releaseAll(d *devicePlan) error {
	for _, b := range d.release {
		if err := k.release(b); err != nil {
			return err
		}
	}
	for _, name := range d.remove {
		if err := k.removeDevice(name); err != nil {
			return err
		}
	}
	return nil
}

// bindAll binds addresses to the device.
func (k *kernel) bindAll(d *devicePlan) error {
	for _, a := range d.bind {
		if err := k.bind(a); err != nil {
			return err
		}
	}
	return nil
}

// sendAtOnce is how many commands are sent between two looks at the version: if another writer has
// taken over, the rest is not sent.
const sendAtOnce = 1024

// send sends commands to IPVS while the companion has a version.
func (k *kernel) send(ops []op, v version) func(context.Context) error {
	return func(ctx context.Context) error {
		for rest := ops; len(rest) > 0; {
			n := min(sendAtOnce, len(rest))
			if err := k.vs.Submit(ctx, batchOf(rest[:n])); err != nil {
				return err
			}
			k.references.sent(rest[:n])
			if rest = rest[n:]; len(rest) > 0 {
				if err := k.requireVersion(ctx, v); err != nil {
					return err
				}
			}
		}
		return nil
	}
}

// batchOf makes a batch of commands.
func batchOf(ops []op) *ipvsnl.Batch {
	b := &ipvsnl.Batch{}
	for _, o := range ops {
		switch k := o.svc.ServiceKey; o.cmd {
		case ipvsnl.CommandNewService:
			b.NewService(o.svc)
		case ipvsnl.CommandSetService:
			b.SetService(o.svc)
		case ipvsnl.CommandDelService:
			b.DelService(k)
		case ipvsnl.CommandNewDestination:
			b.NewDestination(k, o.dest)
		case ipvsnl.CommandSetDestination:
			b.SetDestination(k, o.dest)
		case ipvsnl.CommandDelDestination:
			b.DelDestination(k, o.dest.DestinationKey)
		}
	}
	return b
}
