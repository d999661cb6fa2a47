package dataplanetest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/netnstest"
	"github.com/kernlb/kernlb/servicemodel"
)

// writers is how many programs write to one instance at once.
const writers = 3

// Writers lets several programs apply states to one instance, without pause: each with a backend
// and an engine of its own, as processes would. Every apply must succeed, and what the kernel holds
// in the end must be the last state of one of them. Of the states, each program applies those that
// are left to it by turns.
func Writers(t *testing.T, open Open, states []servicemodel.State) {
	netnstest.Require(t)
	ns, err := netnstest.NewNS(t.Name())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var running sync.WaitGroup
	last := make([]servicemodel.State, writers)
	for w := range writers {
		running.Go(func() {
			b, err := open(ns.Fd())
			if err != nil {
				t.Error(err)
				return
			}
			defer b.Close()
			engine := dataplane.New(b, nil)
			for i := w; i < len(states); i += writers {
				if _, err := engine.Apply(ctx, states[i]); err != nil {
					t.Errorf("writer %d: state %d: %v", w, i, err)
					return
				}
				last[w] = states[i]
			}
		})
	}
	running.Wait()
	if t.Failed() {
		return
	}
	if _, err := holdsOne(ctx, open, ns, last); err != nil {
		t.Errorf("the last states of %d writers: %v", writers, err)
	}
}

// holdsOne observes a kernel with a new backend, and returns which of the states it holds. It must
// hold one of them, and nothing else.
func holdsOne(ctx context.Context, open Open, ns *netnstest.NS, states []servicemodel.State) (int,
	error) {
	b, err := open(ns.Fd())
	if err != nil {
		return 0, err
	}
	defer b.Close()
	o, err := dataplane.New(b, nil).Observe(ctx)
	if err != nil {
		return 0, err
	}
	var differences string
	for i, s := range states {
		want, err := servicemodel.Resolve(nil, s)
		if err != nil {
			return 0, err
		}
		c := servicemodel.Diff(o.Table, want.Arrange(o.Table))
		c.Health = nil // is not in the kernel
		if nothing := o.Table.Len() == 0 && want.Len() == 0; (nothing || c.Empty()) &&
			len(o.Drift) == 0 {
			return i, nil
		}
		differences += fmt.Sprintf("\nstate %d:\n%s", i, c)
	}
	return 0, fmt.Errorf("the kernel holds none of the states; drift %v; to come to%s", o.Drift,
		differences)
}
