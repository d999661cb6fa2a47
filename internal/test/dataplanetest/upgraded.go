package dataplanetest

import (
	"testing"
	"time"
)

// Layout is an instance in a node's network namespace that a program with another layout of the
// backend has left, for the service of [Upgraded].
type Layout struct {
	Name string
	// Recorded is a script of sh that loads a recorded instance, in a namespace where nothing was
	// applied.
	Recorded string
	// Edit is a script that changes an instance of this backend.
	Edit string
}

// Upgraded makes an engine take over from a program with another layout, while connections are open
// and new connections begin: none of them may be disturbed. The engine must replace all objects of
// the other layout, and a process that starts afterwards must find the new layout.
func Upgraded(t *testing.T, under Backend, from ...Layout) {
	for _, l := range from {
		t.Run(l.Name, func(t *testing.T) {
			t.Parallel()
			upgraded(t, under, l)
		})
	}
}

func upgraded(t *testing.T, under Backend, from Layout) {
	w := under.network(t)
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
	if r.Stats.Messages == 0 || len(r.Drift) == 0 {
		t.Fatalf("the layout was not recognized: %d messages", r.Stats.Messages)
	}
	t.Logf("replaced in %v, %d messages: %s", r.Duration, r.Stats.Messages, r.Drift[0])
	p := ok(w.newEngine(nil).Plan(t.Context(), s))(t)
	if len(p.Drift) > 0 || !p.Changes.Empty() {
		t.Errorf("left of the other layout: %v, %s", p.Drift, p.Changes)
	}
}

// script runs a script of sh in the node's network namespace.
func (w *world) script(t *testing.T, script string) {
	t.Helper()
	ok(runIn(t.Context(), w.Node.NS, nil, "sh", "-ec", script))(t)
}
