package kubeproxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/vishvananda/netlink/nl"

	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/rtnetlink"
	"github.com/kernlb/kernlb/internal/threadns"
	"github.com/kernlb/kernlb/internal/wait"
)

// The number of attempts to read the ruleset while other programs change it, and the longest pause
// between two attempts. The first pause is a millisecond, and each further pause is twice as long.
const (
	maxReadings = 20
	maxPause    = 100 * time.Millisecond
)

// kernel is access to the network namespace that is examined.
type kernel struct {
	ns    *threadns.NS
	nf    *rawnl.Conn
	links *rtnetlink.Conn
	log   *slog.Logger
}

func open(cfg *Config) (*kernel, error) {
	ns, err := enter(cfg)
	if err != nil {
		return nil, err
	}
	k := &kernel{ns: ns}
	if cfg != nil {
		k.log = cfg.Logger
	}
	if k.nf, err = rawnl.Dial(&rawnl.Config{NetNS: ns.NetNS(), Logger: k.log}); err == nil {
		k.links, err = rtnetlink.Open(ns)
	}
	if err != nil {
		k.close()
		return nil, err
	}

	return k, nil
}

func (k *kernel) close() {
	k.links.Close()
	if k.nf != nil {
		k.nf.Close() //nolint:errcheck // nothing is under way
	}
	k.ns.Close() //nolint:errcheck // nothing was written
}

// plan reads everything. It returns the plan, and the generation of the ruleset that it read.
func (k *kernel) plan(ctx context.Context) (*Plan, uint32, error) {
	p := &Plan{}
	gen, err := k.nf.GenID(ctx)
	if err != nil {
		return nil, 0, err
	}
	if err := k.planRuleset(ctx, p); err != nil {
		return nil, 0, err
	}
	v, err := k.readVirtual(ctx)
	if err != nil {
		return nil, 0, err
	}
	p.planVirtual(v)
	if p.Counters, err = k.readCounters(ctx); err != nil {
		return nil, 0, err
	}
	if err := k.ns.Do(func() error { return p.planLegacy() }); err != nil {
		return nil, 0, err
	}
	if !p.Empty() {
		p.leave("sysctls", "what they were before kube-proxy set them is not known")
	}
	return p, gen.ID, nil
}

// find repeats the plan until no program has changed the ruleset during the reading.
func (k *kernel) find(ctx context.Context) (*Plan, error) {
	return k.retry(ctx, func(_ *Plan, gen uint32) error {
		now, err := k.nf.GenID(ctx)
		if err == nil && now.ID != gen {
			err = rawnl.ErrGenerationChanged
		}
		return err
	})
}

// cleanup plans and deletes, and repeats both while other programs interfere.
func (k *kernel) cleanup(ctx context.Context) (*Plan, error) {
	p, err := k.retry(ctx, func(p *Plan, gen uint32) error { return k.commit(ctx, p, gen) })
	if p == nil {
		return &Plan{}, err
	}
	return k.rest(ctx, p, err)
}

// retry plans and passes the plan to act. It repeats both while act finds that the ruleset has
// changed. It returns the last plan with the error of act, or no plan.
func (k *kernel) retry(ctx context.Context, act func(*Plan, uint32) error) (*Plan, error) {
	pause := time.Millisecond
	for range maxReadings {
		p, gen, err := k.plan(ctx)
		if err != nil {
			return nil, err
		}
		if err = act(p, gen); !errors.Is(err, rawnl.ErrGenerationChanged) {
			return p, err
		}
		if err := wait.For(ctx, pause); err != nil {
			return nil, err
		}
		pause = min(2*pause, maxPause)
	}

	return nil, kernelerr.ErrConflict
}

// rest deletes the objects outside nf_tables, after the transaction of a plan has ended with err.
// It removes from the plan the objects that were not deleted.
func (k *kernel) rest(ctx context.Context, p *Plan, err error) (*Plan, error) {
	errs := []error{err}
	if err != nil {
		p.Rules, p.Chains, p.Tables = nil, nil, nil
	}
	errs = append(errs, k.deleteServers(ctx, p))
	if p.Device != "" {
		if err := k.links.LinkDel(p.Device); err != nil {
			p.Device = ""
			errs = append(errs, fmt.Errorf("delete device %s: %w", device, err))
		}
	}

	limit := time.Now().Add(busyLimit)
	var setsErr, countersErr error
	p.Sets, setsErr = k.deleteNamed(ctx, p.Sets, limit, func(name string) *rawnl.Batch {
		return setRequest(nl.IPSET_CMD_DESTROY, "destroy", name)
	})
	p.Counters, countersErr = k.deleteNamed(ctx, p.Counters, limit, func(name string) *rawnl.Batch {
		return counterRequest(msgAcctDel, "delete", name)
	})
	errs = append(errs, setsErr, countersErr)
	for _, l := range p.Left {
		if l.legacy {
			errs = append(errs, fmt.Errorf("%s: %w", l.Object, ErrLegacy))
		}
	}

	return p, errors.Join(errs...)
}
