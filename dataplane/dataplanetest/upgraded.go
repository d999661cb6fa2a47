package dataplanetest

import (
	"fmt"
	"os/exec"
	"testing"
	"time"

	"github.com/kernlb/kernlb/dataplane/netnstest"
)

// Layout is what a program with another layout of a backend has left in a node's network namespace,
// for the service of [Upgraded].
type Layout struct {
	Name string
	// Recorded is a script of sh that loads what was recorded, where nothing was applied.
	Recorded string
	// Edit is one that changes what the backend has applied.
	Edit string
}

// Upgraded has an engine take over from a program with another layout, while connections are open
// and new ones are made: none of them may notice. Everything of the other layout is replaced, and
// found by a process that begins then.
func Upgraded(t *testing.T, under Backend, from ...Layout) {
	under.need(t)
	netnstest.Require(t)
	for _, l := range from {
		t.Run(l.Name, func(t *testing.T) {
			t.Parallel()
			upgraded(t, under, l)
		})
	}
}

func upgraded(t *testing.T, under Backend, from Layout) {
	w, err := newWorld(t.Context(), under, Options{})
	if err != nil {
		t.Fatalf("build the network: %v", err)
	}
	defer w.close()
	s := trafficState()
	if from.Recorded == "" {
		w.apply(t, s)
	}
	w.script(t, from.Recorded+from.Edit)
	w.engine = w.newEngine(nil)
	end := w.traffic(t)
	time.Sleep(500 * time.Millisecond)
	r := w.apply(t, s)
	time.Sleep(500 * time.Millisecond)
	end()
	if r.Messages == 0 || len(r.Drift) == 0 {
		t.Fatalf("the layout was not recognized: %d messages", r.Messages)
	}
	t.Logf("replaced in %v, %d messages: %s", r.Duration, r.Messages, r.Drift[0])
	p, err := w.newEngine(nil).Plan(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Drift) > 0 || !p.Changes.Empty() {
		t.Errorf("left of the other layout: %v, %s", p.Drift, p.Changes)
	}
}

// script runs a script of sh in the node's network namespace.
func (w *world) script(t *testing.T, script string) {
	t.Helper()
	if err := w.Node.NS.Do(func() error {
		out, err := exec.CommandContext(t.Context(), "sh", "-ec", script).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}
