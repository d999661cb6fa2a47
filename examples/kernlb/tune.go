package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/conntrack/tuning"
)

// settingRow is one setting in the JSON output of tune.
type settingRow struct {
	Name string `json:"name"`
	Old  uint64 `json:"old"`
	New  uint64 `json:"new"`
	Note string `json:"note,omitempty"` // why it does not change
}

// tune sets the limits and timeouts of conntrack, with kube-proxy's flags and defaults.
func (p *program) tune(ctx context.Context) error {
	table, err := conntrack.Open(nil)
	if err != nil {
		return err
	}
	defer table.Close()
	plan, err := tuning.NewPlan(ctx, table, &p.opts.flow.tuning)
	if errors.Is(err, tuning.ErrBadConfig) {
		return fmt.Errorf("%w: %w", errInvalid, err)
	} else if err != nil {
		return err
	}
	if err := p.printTuning(plan); err != nil || p.opts.planOnly {
		return err
	}
	return plan.Apply(table)
}

func (p *program) printTuning(plan tuning.Plan) error {
	if p.opts.output == "json" {
		rows := []settingRow{}
		for _, s := range plan {
			rows = append(rows, settingRow(s))
		}
		return p.printJSON(rows)
	}
	_, err := fmt.Fprintln(p.stdout, plan)
	return err
}
