package dataplanetest

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/servicemodel"
)

// Scenario is one story: states that are applied one after the other, and packets after each.
type Scenario struct {
	// Name says in words what the scenario shows. Line is its row in behaviour.md.
	Name, Line string
	// Options shape the network.
	Options Options
	Steps   []Step
}

// Step is a state, and the fate of packets once it is applied.
type Step struct {
	State  servicemodel.State
	Checks []Check
}

// Check is one question: packets from here to there.
type Check struct {
	// From is the name of a host: "pod1" to "pod3", "remote1", "remote2", "node", "outside1",
	// "outside2".
	From  string
	Proto servicemodel.Protocol
	To    netip.AddrPort
	Want  Want
	// Times is how many packets are sent; 0 means 3.
	Times int
}

// run runs a scenario in a network.
func (s *Scenario) run(t *testing.T, ws *worlds) {
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
func (w *world) check(t *testing.T, table *servicemodel.Table, checks []Check) []string {
	t.Helper()
	var probes []netnstest.Probe
	var wants []Want
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
		wants = append(wants, slices.Repeat([]Want{c.Want}, times)...)
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
