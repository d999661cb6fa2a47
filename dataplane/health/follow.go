package health

import (
	"context"
	"sync"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/servicemodel"
)

// Follow calls [NodePorts.Sync] with the kernel's table, now and whenever an engine changes it:
// after [dataplane.Applied], [dataplane.Switched] and [dataplane.CleanedUp]. failed gets the errors
// of Sync, one at a time, while the engine waits; nil ignores them. Calling stop ends this without
// closing the ports. With a nil engine Follow does nothing.
func (p *NodePorts) Follow(e *dataplane.Engine, failed func(error)) (stop func()) {
	if e == nil {
		return func() {}
	}
	var mu sync.Mutex
	followed := false
	update := func(ctx context.Context, t *servicemodel.Table) {
		if err := p.Sync(ctx, t); err != nil && failed != nil {
			failed(err)
		}
	}

	stop = e.Subscribe(func(ctx context.Context, ev dataplane.Event) {
		t, changed := held(ev)
		if !changed {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		followed = true
		update(ctx, t)
	})

	mu.Lock()
	defer mu.Unlock()
	if t := e.Status().Held; t != nil && !followed {
		update(context.Background(), t)
	}
	return stop
}

// held returns the kernel's table after an event, and whether the event may have changed it.
func held(ev dataplane.Event) (t *servicemodel.Table, changed bool) {
	switch ev := ev.(type) {
	case dataplane.Applied:
		return ev.Changes.New, true
	case dataplane.Switched:
		if ev.Changes != nil { // a state is wanted
			t = ev.Changes.New
		}
		return t, true
	case dataplane.CleanedUp:
		return nil, true
	}

	return nil, false
}
