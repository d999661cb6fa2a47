package main

import (
	"context"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/examples/command/instance"
	"github.com/kernlb/kernlb/iptables"
	"github.com/kernlb/kernlb/ipvs"
	"github.com/kernlb/kernlb/nftables"
	"github.com/kernlb/kernlb/servicemodel"
)

// auto chooses a backend: the first candidate that the kernel supports and that can express the
// state.
const auto = "auto"

// candidates are the backends, the default first, in the network namespace of the calling thread.
func (o *options) candidates() []backends.Candidate {
	return instance.Candidates(o.instance, o.ipvs)
}

// backendNames lists the backends, the default first, and last auto.
var backendNames = []string{nftables.Name, iptables.Name, ipvs.Name, auto}

// openBackend opens the backend that the flags name, or chooses one for the state. From then on the
// options name it.
func (p *program) openBackend(ctx context.Context, s servicemodel.State) (backends.Backend,
	error) {
	l := p.opts.candidates()
	for _, c := range l {
		if c.Name == p.opts.backend {
			return c.Open()
		}
	}

	c, err := dataplane.Choose(ctx, s, p.engineConfig(), l...)
	if err != nil {
		return nil, err
	}
	p.opts.backend = c.Backend.Name()
	for _, o := range c.Others {
		for _, problem := range dataplane.Problems(o.Err) {
			p.warn("the backend is %s, not %s: %v", p.opts.backend, o.Backend, problem.Err)
		}
	}

	return c.Backend, nil
}

// withEngine runs f with an engine on the backend that the flags name, or on one chosen for the
// state. A nil configuration means engineConfig.
func (p *program) withEngine(ctx context.Context, s servicemodel.State, cfg *dataplane.Config,
	f func(*dataplane.Engine) error) error {
	if cfg == nil {
		cfg = p.engineConfig()
	}
	b, err := p.openBackend(ctx, s)
	if err != nil {
		return p.classify(err)
	}
	defer b.Close()
	return p.classify(f(dataplane.New(b, cfg)))
}

// engineConfig returns the configuration of engines according to the flags.
func (p *program) engineConfig() *dataplane.Config {
	return &dataplane.Config{Strict: !p.opts.goOn}
}

// warnOthers names the other backends in which the instance has services. It is for a backend that
// was chosen automatically, because an earlier run may have chosen another backend.
func (p *program) warnOthers(ctx context.Context) {
	for _, c := range p.opts.candidates() {
		if c.Name == p.opts.backend {
			continue
		}
		if n := holds(ctx, c); n > 0 {
			p.warn("warning: the backend %s holds %d frontends of the instance %s, too: kernlb "+
				"cleanup -backend %s -instance %s removes them",
				c.Name, n, p.opts.instance, c.Name, p.opts.instance)
		}
	}
}

// holds returns the number of frontends that a backend holds. It is 0 if the backend is not
// supported or cannot be read.
func holds(ctx context.Context, c backends.Candidate) int {
	b, err := c.Open()
	if err != nil {
		return 0
	}
	defer b.Close()
	o, err := b.Observe(ctx, nil)
	if err != nil {
		return 0
	}
	return o.Table.Len()
}

// findBackend replaces auto by the first backend that holds frontends of the instance. If none
// does, auto stays.
func (p *program) findBackend(ctx context.Context) {
	if p.opts.backend != auto {
		return
	}
	for _, c := range p.opts.candidates() {
		if holds(ctx, c) > 0 {
			p.opts.backend = c.Name
			return
		}
	}
}
