package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/servicemodel"
)

// summary is the JSON output of apply and cleanup.
type summary struct {
	Backend  string   `json:"backend"`
	Added    int      `json:"added"`
	Changed  int      `json:"changed"`
	Removed  int      `json:"removed"`
	Messages int      `json:"kernel_messages"`
	Bytes    int      `json:"kernel_bytes"`
	Micros   int64    `json:"duration_us"`
	Repaired []string `json:"repaired,omitempty"`
	Deleted  int      `json:"flows_deleted,omitempty"`
	Reset    int      `json:"connections_reset,omitempty"`
	Refused  []reason `json:"refused,omitempty"`

	text string
}

// summaryOf leaves Unsettled out, which the program returns as its error.
func summaryOf(r *dataplane.Result) summary {
	settled := *r
	settled.Unsettled = nil
	return summary{Backend: r.Backend, Added: r.Counts.Added, Changed: r.Counts.Changed,
		Removed: r.Counts.Removed, Messages: r.Stats.Messages, Bytes: r.Stats.Bytes,
		Micros: r.Duration.Microseconds(), Repaired: r.Drift, text: settled.String()}
}

// reason is a refused service or address family, with the reason.
type reason struct {
	Service servicemodel.Name   `json:"service,omitzero"`
	Family  servicemodel.Family `json:"family,omitzero"`
	Reason  string              `json:"reason"`
}

func applyFlags(o *options, fs *flag.FlagSet) {
	fs.StringVar(&o.changes, "changes", "",
		"`FILE` that plan -o json has printed; its changes are applied if the kernel holds what "+
			"it held then, and nothing else is")
}

func (p *program) apply(ctx context.Context) error {
	if p.opts.changes != "" {
		return p.applyChanges(ctx)
	}
	s, err := p.load()
	if err != nil {
		return err
	}
	cfg := p.engineConfig()
	keeper, done, err := p.keepFlows(cfg)
	if err != nil {
		return err
	}
	defer done()
	chosen := p.opts.backend == auto
	return p.withEngine(ctx, s, cfg, func(e *dataplane.Engine) error {
		if err := p.spareKubeProxy(ctx); err != nil {
			return err
		}
		r, err := e.Apply(ctx, s)
		if err != nil {
			return err
		}
		p.warnConflicts(r.Conflicts)
		p.warnState(r.Warnings)
		p.noteRefusing(r.Changes.New)
		if n := s.Ejecting(); n > 0 {
			p.warn("warning: silent-endpoints: eject has no effect on %s: apply ends now, and "+
				"only kernlb watch notices silent endpoints", count(n, "service"))
		}
		if chosen {
			p.warnOthers(ctx)
		}
		err = p.settle(ctx, e, r)
		sum := summaryOf(r)
		sum.Refused = p.refused(r.Refused)
		if keeper != nil {
			sum.Deleted, sum.Reset = keeper.Totals().Deleted, keeper.Totals().Reset
		}
		return errors.Join(p.summarize(sum), err, p.complete())
	})
}

// refused prints each service and family that was left out, with the reason.
func (p *program) refused(l []dataplane.Refusal) (reasons []reason) {
	for _, r := range l {
		p.warn("refused: %v", r)
		reasons = append(reasons, reason{r.Service, r.Family, r.Err.Error()})
		p.incomplete = true
	}

	return reasons
}

// complete returns an error if a service was left out.
func (p *program) complete() error {
	if p.incomplete {
		return errIncomplete
	}
	return nil
}

// whoWins is the rule by which one of several services gets an address.
const whoWins = "a cluster IP wins over a load balancer's address, and that over an external IP; " +
	"among equals, the name that sorts first wins"

// warnConflicts names the services that lost an address to another service.
func (p *program) warnConflicts(l []servicemodel.Conflict) {
	for _, c := range l {
		p.warn("warning: %s is claimed by %s and %s: %s has it", c.Key, c.Winner, c.Loser, c.Winner)
	}
	if len(l) > 0 {
		p.warn("note: %s", whoWins)
	}
}

// warnState prints what has no effect, except services that reject connections: noteRefusing names
// those with their addresses.
func (p *program) warnState(l servicemodel.Warnings) {
	n := 0
	for w := range l.All() {
		if w.Kind == servicemodel.WarnNotReady || strings.HasPrefix(w.Field, "ports[") {
			continue
		}
		if n++; n <= maxNotes {
			p.warn("warning: %v", w)
		}
	}

	if n > maxNotes {
		p.warn("warning: %d more settings have no effect; the log of kernlb watch has all",
			n-maxNotes)
	}
}

func (p *program) summarize(s summary) error {
	var text strings.Builder
	for _, d := range s.Repaired {
		fmt.Fprintf(&text, "repaired: %s\n", d)
	}
	fmt.Fprintln(&text, s.text)
	if s.Deleted > 0 {
		fmt.Fprintf(&text, "stale flows deleted: %d; connections reset among them: %d\n",
			s.Deleted, s.Reset)
	}

	return p.print(s, text.String())
}

// print prints a value as JSON, or its text, as the flags say.
func (p *program) print(v any, text string) error {
	if p.opts.output == "json" {
		return p.printJSON(v)
	}
	_, err := io.WriteString(p.stdout, text)
	return err
}

func (p *program) printJSON(v any) error {
	enc := json.NewEncoder(p.stdout)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

func (p *program) plan(ctx context.Context) error {
	s, err := p.load()
	if err != nil {
		return err
	}
	return p.withEngine(ctx, s, nil, func(e *dataplane.Engine) error {
		v, err := e.Plan(ctx, s)
		if err != nil {
			return err
		}
		p.warnConflicts(v.Conflicts)
		p.warnState(v.Warnings)
		p.noteRefusing(v.Changes.New)
		p.noteBack(ctx, v.Changes)
		p.refused(v.Refused)
		return errors.Join(p.printPlan(v), p.complete())
	})
}

// plannedJSON is the JSON output of plan, and the input of apply -changes.
type plannedJSON struct {
	Backend string             `json:"backend"`
	Preview *dataplane.Preview `json:"preview"`
}

// applyChanges applies the output of plan, and prints what it applied.
func (p *program) applyChanges(ctx context.Context) error {
	text, err := os.ReadFile(p.opts.changes)
	if err != nil {
		return fmt.Errorf("%w: -changes: %w", errInvalid, err)
	}
	var planned struct {
		Preview struct{ Changes *servicemodel.ChangeSet }
	}
	if err := json.Unmarshal(text, &planned); err != nil {
		return fmt.Errorf("%w: -changes: %s: %w", errInvalid, p.opts.changes, err)
	}
	if planned.Preview.Changes == nil {
		return fmt.Errorf("%w: -changes: %s: it is not what plan -o json prints", errInvalid,
			p.opts.changes)
	}

	return p.withEngine(ctx, servicemodel.State{}, nil, func(e *dataplane.Engine) error {
		if err := p.spareKubeProxy(ctx); err != nil {
			return err
		}
		r, err := e.ApplyChanges(ctx, planned.Preview.Changes)
		if err != nil {
			return err
		}
		return errors.Join(p.summarize(summaryOf(r)), r.Unsettled)
	})
}

func (p *program) printPlan(v *dataplane.Preview) error {
	stats, counts := v.Plan.Stats(), v.Changes.Counts()
	var text strings.Builder
	for _, d := range v.Drift {
		fmt.Fprintf(&text, "! %s\n", d)
	}
	if stats.Messages == 0 && len(v.Drift) == 0 {
		fmt.Fprintln(&text, "nothing would change")
	} else if len(v.Drift) > 0 && v.Changes.Empty() {
		fmt.Fprintf(&text, "%s: %s would be repaired; %d kernel messages\n", p.opts.backend,
			count(len(v.Drift), "object"), stats.Messages)
	} else {
		fmt.Fprintf(&text, "%s\n%s: %d to add, %d to change, %d to remove; %d kernel messages:"+
			"\n\n%s", v.Changes, p.opts.backend, counts.Added, counts.Changed, counts.Removed,
			stats.Messages, v.Plan)
	}

	return p.print(plannedJSON{p.opts.backend, v}, text.String())
}
