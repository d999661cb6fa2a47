package ipvs

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"

	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/dataplane/sysctls"
	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/wait"
)

// step is one of the steps of a commit. A process may be killed between two steps or within a step.
type step struct {
	doing string
	do    func(context.Context) error
}

// steps returns the steps of a commit, in their order.
func (b *backend) steps(p *plan) []step {
	k := &b.kernel
	return []step{
		{"begin in the companion tables", k.stage(p, stageRestrict)},
		{"prepare the network", func(ctx context.Context) error { return k.prepare(ctx, p) }},
		{"wait for packets", p.awaitPackets},
		{"add to virtual servers", b.send(p.up, p.versions[stageRestrict])},
		{"commit the companion tables", k.stage(p, stageOpen)},
		{"release addresses", func(context.Context) error { return k.releaseAll(&p.device) }},
		{"bind addresses", func(context.Context) error { return k.bindAll(&p.device) }},
		{"take away from virtual servers", b.send(p.down, p.versions[stageOpen])},
		{"restore sysctls and timeouts", b.restoring(p.network.tunables)},
		{"end in the companion tables", k.stage(p, stageEnd)},
	}
}

// cleanupSteps returns the steps of a cleanup, in their order.
func (b *backend) cleanupSteps(p *plan) []step {
	k := &b.kernel
	return []step{
		{"begin in the companion tables", k.stage(p, stageRestrict)},
		{"delete virtual servers", b.send(p.down, p.versions[stageRestrict])},
		{"remove devices", func(context.Context) error { return k.releaseAll(&p.device) }},
		{"delete the rules and the routes", func(context.Context) error {
			return errors.Join(k.unroute(ipFamilies[0]), k.unroute(ipFamilies[1]))
		}},
		{"restore sysctls and timeouts", b.restoring(p.network.tunables)},
		{"delete the companion tables", k.stage(p, stageEnd)},
	}
}

// run runs steps. After an error the kernel must be observed again.
func (b *backend) run(ctx context.Context, steps []step) error {
	for _, s := range steps {
		if err := s.do(ctx); err != nil {
			return b.failed(s.doing, err)
		}
	}

	return nil
}

// failed wraps an error after which the kernel must be observed again.
func (b *backend) failed(doing string, err error) error {
	b.observed = false
	err = kernelerr.Permission(err) // of links and sysctls
	if isOne(err, errTaken, errMisread, rawnl.ErrDumpInterrupted, netlink.ErrDumpInterrupted,
		rawnl.ErrGenerationChanged, ipvsnl.ErrExists, ipvsnl.ErrNoService, ipvsnl.ErrNoDestination,
		errUnusable, errMoved, errDisabled) {
		return fmt.Errorf("ipvs: %s: %w: %w", doing, kernelerr.ErrConflict, err)
	}

	return fmt.Errorf("ipvs: %s: %w", doing, err)
}

// errUnusable says that the kernel refused services for reasons that Check now knows.
var errUnusable = errors.New("the kernel cannot have a service")

// restoring returns a function that restores tunables.
func (b *backend) restoring(c sysctls.Change) func(context.Context) error {
	return func(ctx context.Context) error {
		b.kernel.others.foreign = len(b.pl.have.foreign) > 0
		return b.kernel.tunables.Restore(ctx, c)
	}
}

// stage returns a function that commits one of the transactions of a plan.
func (k *kernel) stage(p *plan, s int) func(context.Context) error {
	return func(ctx context.Context) (err error) {
		batch := p.batch(s)
		switch {
		case batch.Len() == 0:
			return nil
		case s > 0 && p.versions[s-1].exists, s == 0 && p.from.exists:
			err = k.nf.Commit(ctx, batch, 0)
		default:
			err = k.commitFirst(ctx, batch)
		}

		if changedByOthers(err) {
			err = fmt.Errorf("%w: %w", errTaken, err)
		}
		if err != nil {
			return err
		}

		// If another program has committed since the generation was read, the kernel has a later
		// generation, and Integrity will check.
		k.gen = rawnl.NextGenID(k.gen)
		return nil
	}
}

// changedByOthers reports whether a transaction failed because an object appeared or disappeared:
// the version or, after a manual edit, other elements. A rule that needs a missing module also
// fails with ENOENT.
func changedByOthers(err error) bool {
	var e *rawnl.OpError
	if !errors.As(err, &e) || strings.HasPrefix(e.Object, "rule ") {
		return false
	}
	return e.Errno == syscall.ENOENT || e.Errno == syscall.EEXIST
}

// firstTries limits the attempts to send a first transaction while other programs commit.
const firstTries = 20

// commitFirst commits a transaction that gives an instance its first version. Two writers that both
// find no version have nothing that conflicts, so the transaction requires the generation of the
// ruleset that was read just before. If another transaction comes in between, commitFirst tries
// again.
func (k *kernel) commitFirst(ctx context.Context, batch *rawnl.Batch) error {
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
		err = k.nf.Commit(ctx, batch, gen.ID)
		if !errors.Is(err, rawnl.ErrGenerationChanged) || try == firstTries {
			return err
		}
	}
}

// awaitPackets waits until the plan's new restrictions, if any, apply to all packets. Otherwise a
// packet that has already passed the companion could reach the objects that are now added.
func (p *plan) awaitPackets(ctx context.Context) error {
	if !p.restricts || len(p.up) == 0 {
		return nil
	}
	return wait.GracePeriod(ctx)
}

// prepare adds the rules and the routes, sets tunables, and creates the device. The companion
// already has the earlier values of tunables.
func (k *kernel) prepare(ctx context.Context, p *plan) error {
	for i, f := range ipFamilies {
		var err error
		switch {
		case p.network.route[i]:
			err = k.route(f)
		case p.network.unroute[i]:
			err = k.unroute(f)
		}

		if err != nil {
			return err
		}
	}

	if err := k.tunables.Set(ctx, p.network.tunables); err != nil {
		return err
	}
	if p.device.add || p.device.up {
		return k.makeDevice()
	}
	return nil
}

func (k *kernel) releaseAll(d *devicePlan) error {
	for _, b := range d.release {
		if err := k.release(b); err != nil {
			return err
		}
	}

	for _, name := range d.remove {
		if err := k.links.LinkDel(name); err != nil {
			return fmt.Errorf("remove device %s: %w", name, err)
		}
	}

	return nil
}

func (k *kernel) bindAll(d *devicePlan) error {
	for _, a := range d.bind {
		if err := k.bind(a); err != nil {
			return err
		}
	}

	return nil
}

// sendAtOnce is the number of commands between two checks of the version. If another writer has
// taken over, the rest is not sent.
const sendAtOnce = 1024

// send returns a function that sends commands to IPVS as long as the version of the companion is v.
func (b *backend) send(ops []ipvsnl.Op, v version) func(context.Context) error {
	k := &b.kernel
	return func(ctx context.Context) error {
		for rest := ops; len(rest) > 0; {
			n := min(sendAtOnce, len(rest))
			if err := k.vs.Submit(ctx, rest[:n]...); err != nil {
				if b.pl.noteUnusable(rest[:n], err) {
					err = fmt.Errorf("%w: %w", errUnusable, err)
				}
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
