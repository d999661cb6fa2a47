package silence

import (
	"context"
	"sync"
	"time"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/dataplane/flows"
)

const (
	// rate is the maximum number of new connections that are looked up per second.
	rate = 250
	// mostPending is the maximum length of each of the two queues for look-ups. Further connections
	// are ignored.
	mostPending = 4096
)

// watch follows new connections, and finds out which are answered.
type watch struct {
	table *conntrack.Table
	ipvs  bool // flows are not marked as translated

	mu    sync.Mutex
	young []pending // in the order of their beginnings, not looked up yet

	old []pending // without an answer when they were looked up first; only for the method look
}

// pending is a connection that will be looked up.
type pending struct {
	flow  conntrack.Flow
	began time.Time
}

// follow adds new connections until the context ends.
func (w *watch) follow(ctx context.Context, added chan<- struct{}) error {
	filter := conntrack.Filter{Protocol: conntrack.TCP, Status: conntrack.StatusDstNAT}
	if w.ipvs {
		filter.Status = 0
	}
	events, err := w.table.Follow(ctx, conntrack.FollowOptions{
		Types: []conntrack.EventType{conntrack.FlowNew}, Rate: rate, Filter: filter})
	if err != nil {
		return err
	}
	for e, err := range events {
		if err != nil {
			return err
		}
		if e.Type != conntrack.FlowNew || !e.Flow.Translated() {
			continue
		}
		w.mu.Lock()
		if len(w.young) < mostPending {
			w.young = append(w.young, pending{e.Flow, time.Now()})
		}
		first := len(w.young) == 1
		w.mu.Unlock()
		if first {
			select {
			case added <- struct{}{}:
			default:
			}
		}
	}

	return ctx.Err()
}

// due returns the time of the next look-up. ok is false if no connection is waiting.
func (w *watch) due() (at time.Time, ok bool) {
	w.mu.Lock()
	if len(w.young) > 0 {
		at, ok = w.young[0].began.Add(quick), true
	}
	w.mu.Unlock()
	if len(w.old) > 0 {
		if second := w.old[0].began.Add(patience); !ok || second.Before(at) {
			at, ok = second, true
		}
	}

	return at, ok
}

// look looks up the connections that are due, and returns their outcomes. The kernel deletes the
// flow of a refused connection, so a missing flow counts as unanswered. The flow of a connection
// that its client reset is missing, too; this is why the follower tries the endpoint before it
// ejects it.
func (w *watch) look(ctx context.Context, now time.Time, index *flows.Index) ([]sample, error) {
	w.mu.Lock()
	young := ripe(&w.young, now.Add(-quick))
	w.mu.Unlock()
	all := append(young, ripe(&w.old, now.Add(-patience))...)
	batch := make([]conntrack.Flow, len(all))
	for i := range all {
		batch[i] = all[i].flow
	}
	answered, other := make([]bool, len(all)), make([]bool, len(all))
	err := w.table.Reread(ctx, batch, func(i int, f *conntrack.Flow) {
		answered[i] = f.Status&conntrack.StatusSeenReply != 0
		other[i] = f.ID != batch[i].ID
	})
	if err != nil {
		return nil, err
	}

	var samples []sample
	for i, p := range all {
		late := i >= len(young)
		f := index.Frontend(&p.flow)
		if f == nil || f.Key.EndPort != 0 || other[i] {
			continue
		}
		if !answered[i] && !late && len(w.old) < mostPending {
			w.old = append(w.old, p)
		}
		samples = append(samples, sample{place{f.Service, p.flow.Reply.Src},
			p.flow.Original.Src.Addr(), p.began, answered[i], late})
	}

	return samples, nil
}

// ripe removes from a queue, and returns, the connections that began no later than a time.
func ripe(queue *[]pending, until time.Time) []pending {
	n := 0
	for n < len(*queue) && !(*queue)[n].began.After(until) {
		n++
	}
	out := (*queue)[:n:n]
	*queue = (*queue)[n:]
	return out
}
