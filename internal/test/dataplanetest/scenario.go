package dataplanetest

import (
	"cmp"
	"slices"
	"strings"
	"testing"

	"github.com/kernlb/kernlb/dataplane/dataplanetest/scenario"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/servicemodel"
)

// run runs a scenario in a network.
func (ws *worlds) run(t *testing.T, s *scenario.Scenario) {
	w := ws.take(t, s.Options)
	defer ws.give(s.Options, w)
	for i, step := range s.Steps {
		r, err := settled(w.engine.Apply(t.Context(), w.under.expressible(step.State)))
		if err != nil {
			t.Fatalf("step %d: apply: %v", i+1, err)
		}
		for _, complaint := range w.check(t, r.Changes.New, step.Checks) {
			t.Errorf("step %d: %s", i+1, complaint)
		}
		if t.Failed() {
			t.Logf("applied:\n%s", r.Changes)
		}
	}
}

// check sends the packets of all checks at once, and returns the complaints.
func (w *world) check(t *testing.T, table *servicemodel.Table, checks []scenario.Check) []string {
	t.Helper()
	var probes []netnstest.Probe
	var wants []scenario.Want
	for _, c := range checks {
		if !slices.Contains(w.under.protocols(), c.Proto) {
			continue
		}
		p := w.probe(way{c.From, c.Proto, c.To})
		if p.From == nil {
			t.Fatalf("no host %q", c.From)
		}
		times := cmp.Or(c.Times, 3)
		probes = append(probes, slices.Repeat([]netnstest.Probe{p}, times)...)
		wants = append(wants, slices.Repeat([]scenario.Want{c.Want}, times)...)
	}

	var complaints []string
	for i, got := range netnstest.SendAll(t.Context(), probes) {
		s := w.judge(probes[i], wants[i], got)
		if o := w.judgeOracle(table, probes[i], got); o != "" {
			s = strings.TrimPrefix(s+"\n"+o, "\n")
		}
		if s != "" {
			complaints = append(complaints, s)
		}
	}

	return complaints
}
