package main

import (
	"context"
	"fmt"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/kubeproxy"
	"github.com/kernlb/kernlb/examples/internal/instance"
	"github.com/kernlb/kernlb/iptables"
	"github.com/kernlb/kernlb/servicemodel"
)

// cleanup removes the instance from the kernel, or the leftovers of kube-proxy.
func (p *program) cleanup(ctx context.Context) error {
	if p.opts.of == ofKubeProxy {
		return p.cleanupKubeProxy(ctx)
	}
	return p.withEngine(ctx, servicemodel.State{}, nil,
		func(ctx context.Context, e *dataplane.Engine) error {
			o, err := e.Observe(ctx)
			if err != nil {
				return err
			}
			stats, err := e.Cleanup(ctx)
			if err != nil {
				return err
			}
			return p.summarize(summaryOf(&dataplane.Result{Backend: p.opts.backend,
				Counts: servicemodel.Counts{Removed: o.Table.Len()}, Stats: stats}))
		})
}

// cleanupKubeProxy deletes the leftovers of kube-proxy, or with -plan only lists them.
func (p *program) cleanupKubeProxy(ctx context.Context) error {
	act := kubeproxy.Cleanup
	if p.opts.planOnly {
		act = kubeproxy.Find
	}
	plan, err := act(ctx, nil)
	if plan == nil {
		return err
	}
	if printErr := p.printLeftovers(plan); err == nil {
		err = printErr
	}
	return err
}

// spareKubeProxy fails if a running kube-proxy also writes the chains of the instance, because each
// would undo the other's work.
func (p *program) spareKubeProxy(ctx context.Context) error {
	if p.opts.backend != iptables.Name || p.opts.instance != instance.Default {
		return nil
	}
	mode, err := kubeproxy.Running(ctx, nil)
	if err != nil || mode != iptables.Name {
		return err
	}
	return fmt.Errorf("kube-proxy runs in iptables mode, and writes chains of the same names: "+
		"stop it, or choose another -instance or -backend: %w", dataplane.ErrCollision)
}

// printLeftovers prints the leftovers of kube-proxy.
func (p *program) printLeftovers(plan *kubeproxy.Plan) error {
	if p.opts.output == "json" {
		return p.printJSON(plan)
	}
	text := plan.String()
	if plan.Empty() {
		text += "nothing of kube-proxy to delete\n"
	}
	_, err := fmt.Fprint(p.stdout, text)
	return err
}
