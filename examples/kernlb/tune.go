package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/kernlb/kernlb/conntrack"
)

// tune sets the limits and timeouts of conntrack, with kube-proxy's flags and defaults.
func (p *program) tune(ctx context.Context) error {
	table, err := conntrack.Open(conntrack.Config{})
	if err != nil {
		return err
	}
	defer table.Close()
	plan, err := table.PlanTuning(ctx, p.opts.flow.tuning)
	if errors.Is(err, conntrack.ErrBadTuning) {
		return fmt.Errorf("%w: %w", errInvalid, err)
	} else if err != nil {
		return err
	}
	if err := p.printTuning(plan); err != nil || p.opts.flow.planOnly {
		return err
	}
	return table.ApplyTuning(plan)
}

func (p *program) printTuning(plan conntrack.TuningPlan) error {
	if p.opts.output == "json" {
		return p.printJSON(plan)
	}
	_, err := fmt.Fprintln(p.stdout, plan)
	return err
}
