package kubeproxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/rtnl"
	"github.com/kernlb/kernlb/internal/sleep"
	"github.com/kernlb/kernlb/internal/threadns"
)

// How often the ruleset is read before others who change it are a conflict, and the longest pause
// between two readings. The first pause is a millisecond, and each is twice as long as the last.
const (
	maxReadings = 20
	maxPause    = 100 * time.Millisecond
)

// kernel is the network namespace that is looked at.
type kernel struct {
	ns    *threadns.NS
	nf    *rawnl.Conn
	links *rtnl.Conn
	log   *slog.Logger
}

// open opens the sockets.
func open(cfg *Config) (*kernel, error) {
	if cfg == nil {
		cfg = &Config{}
	}
	k := &kernel{log: cfg.Logger}
	fd, release, err := threadns.At(cfg.NetNS, cfg.NetNSPath)
	if err != nil {
		return nil, err
	}
	defer release()
	if k.ns, err = threadns.Open(fd); err != nil {
		return nil, err
	}
	if k.nf, err = rawnl.Dial(&rawnl.Config{NetNS: k.ns.FD(), Logger: cfg.Logger}); err != nil {
		k.close()
		return nil, err
	}
	if k.links, err = rtnl.Open(k.ns); err != nil {
		k.close()
		return nil, err
	}
	return k, nil
}

// close closes what is open.
func (k *kernel) close() {
	k.links.Close()
	if k.nf != nil {
		k.nf.Close() //nolint:errcheck // nothing is under way
	}
	k.ns.Close() //nolint:errcheck // nothing was written
}

// plan reads everything and returns the plan, and the generation of the ruleset it was made for.
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

// find makes plans until nobody has changed the ruleset while it was read.
func (k *kernel) find(ctx context.Context) (*Plan, error) {
	return k.retry(ctx, func(_ *Plan, gen uint32) error {
		now, err := k.nf.GenID(ctx)
		if err == nil && now.ID != gen {
			err = rawnl.ErrGenerationChanged
		}
		return err
	})
}

// cleanup makes plans and deletes what they list, until nobody was in the way.
func (k *kernel) cleanup(ctx context.Context) (*Plan, error) {
	p, err := k.retry(ctx, func(p *Plan, gen uint32) error { return k.commit(ctx, p, gen) })
	if p == nil {
		return &Plan{}, err
	}
	return k.rest(ctx, p, err)
}

// retry makes a plan and gives it to act, again while that finds that the ruleset has changed. It
// returns the last plan with the error of act, or no plan.
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
		if err := sleep.For(ctx, pause); err != nil {
			return nil, err
		}
		pause = min(2*pause, maxPause)
	}
	return nil, ErrConflict
}

// rest deletes what is not of nf_tables, after the transaction of a plan has ended with err. It
// takes from the plan what was not deleted.
func (k *kernel) rest(ctx context.Context, p *Plan, err error) (*Plan, error) {
	errs := []error{err}
	if err != nil {
		p.Rules, p.Chains, p.Tables = nil, nil, nil
	}
	errs = append(errs, k.deleteServers(ctx, p), k.deleteDevice(p))
	limit := time.Now().Add(busyLimit)
	errs = append(errs, k.deleteNamed(ctx, &p.Sets, limit, destroySet),
		k.deleteNamed(ctx, &p.Counters, limit, deleteCounter))
	for _, l := range p.Left {
		if l.legacy {
			errs = append(errs, fmt.Errorf("%s: %w", l.Object, ErrLegacy))
		}
	}
	return p, errors.Join(errs...)
}
