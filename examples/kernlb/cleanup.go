package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"strings"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/kubeproxy"
	"github.com/kernlb/kernlb/examples/command/instance"
	"github.com/kernlb/kernlb/iptables"
	"github.com/kernlb/kernlb/servicemodel"
)

// ofKubeProxy is the value of -of for kube-proxy.
const ofKubeProxy = "kube-proxy"

func cleanupFlags(o *options, fs *flag.FlagSet) {
	text(fs, &o.of, "of", "delete what another `PROGRAM` left, which must be "+ofKubeProxy+
		" (default: what the instance has)", ofKubeProxy,
		func(s string) bool { return s == ofKubeProxy })
}

func checkCleanup(o *options) error {
	switch {
	case o.planOnly && o.of == "":
		return errors.New("-plan needs -of " + ofKubeProxy +
			"; kernlb show prints what this instance has")
	case o.of == "" && o.backend == auto:
		return fmt.Errorf("-backend: name the backend to clean up, not %s", auto)
	}

	return nil
}

// cleanup removes the instance from the kernel, or the leftovers of kube-proxy.
func (p *program) cleanup(ctx context.Context) error {
	if p.opts.of == ofKubeProxy {
		return p.cleanupKubeProxy(ctx)
	}
	return p.withEngine(ctx, servicemodel.State{}, nil, func(e *dataplane.Engine) error {
		o, err := e.Observe(ctx)
		if err != nil {
			return err
		}
		stats, err := e.Cleanup(ctx)
		if err != nil {
			return err
		}
		return p.summarize(summaryOf(&dataplane.Result{Backend: p.opts.backend,
			Counts: servicemodel.Counts{Removed: o.Table.Len()}, Stats: stats,
			Duration: stats.Duration}))
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
	text := plan.String()
	switch commands := 0; {
	case plan.Empty() && len(plan.Left) == 0:
		text += "nothing of kube-proxy to delete\n"
	case p.opts.planOnly:
		text += "# nothing was changed (-plan)\n"
	case err == nil:
		for line := range strings.Lines(plan.String()) {
			if !strings.HasPrefix(line, "#") {
				commands++
			}
		}
		text += fmt.Sprintf("# done; commands: %d\n", commands)
	}
	chains := 0
	for _, l := range plan.Left {
		if strings.HasPrefix(l.Object, "chain ") {
			chains++
		}
	}
	if chains > 0 {
		text += fmt.Sprintf("chains left: %d; if no other program needs them, delete by hand the "+
			"rules that lead there, and repeat\n", chains)
	}

	return cmp.Or(err, p.print(plan, text))
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
		"stop it, or choose another -instance or -backend: %w", backends.ErrCollision)
}
