package page

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/servicemodel"
)

// maxChanges is the number of changes kept per kind of object in a change set.
const maxChanges = 25

type event struct {
	Time time.Time `json:"time"`
	Kind string    `json:"kind"` // such as "applied"
	Text string    `json:"text,omitempty"`

	// Only applies have the following fields, see dataplane.Result.
	Backend  string              `json:"backend,omitempty"`
	Revision dataplane.Revision  `json:"revision,omitzero"`
	Counts   servicemodel.Counts `json:"counts,omitzero"`
	Messages int                 `json:"messages,omitzero"`
	Bytes    int                 `json:"bytes,omitzero"`
	Duration duration            `json:"duration,omitzero"`
	Phases   dataplane.Phases    `json:"phases,omitzero"`
	// Changes are lines of the change set, and Rest is the number of further changed objects.
	Changes []string `json:"changes,omitempty"`
	Rest    int      `json:"rest,omitzero"`
}

// duration is a time whose JSON is text, such as "1.5ms".
type duration time.Duration

func (d duration) String() string {
	return time.Duration(d).Round(time.Microsecond).String()
}

// MarshalText returns text such as "1.5ms".
func (d duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// Bad reports whether the event needs attention.
func (e *event) Bad() bool {
	return slices.Contains([]string{"failed", "refused", "conflict"}, e.Kind)
}

// PhaseTimes returns the phases that took any time, in their order.
func (e *event) PhaseTimes() (l []string) {
	for phase, d := range e.Phases {
		if d > 0 {
			l = append(l, dataplane.Phase(phase).String()+" "+duration(d).String())
		}
	}

	return l
}

// ring keeps the last events.
type ring struct {
	size   int
	mu     sync.Mutex
	events []event // the newest last
}

func (r *ring) add(e event) {
	e.Time = time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
	r.events = r.events[max(0, len(r.events)-r.size):]
}

// observe keeps an event of the engine. It skips applies that found nothing to do, and steps of
// slow starts, because they are frequent.
func (r *ring) observe(_ context.Context, ev dataplane.Event) {
	switch ev := ev.(type) {
	case dataplane.Applied:
		if ev.Stats.Messages > 0 && !ev.Step {
			r.add(applied("applied", ev.Result))
		}
	case dataplane.Repaired:
		e := event{Kind: "repaired", Backend: ev.Backend, Revision: ev.Revision,
			Counts: ev.Repaired}
		e.Changes = firstOf(ev.Drift, &e.Rest)
		r.add(e)
	case dataplane.Switched:
		e := applied("switched", ev.Result)
		e.Text = "from " + ev.From + " to " + ev.To
		r.add(e)
	case dataplane.Refused:
		r.add(event{Kind: "refused", Backend: ev.Backend, Text: ev.String()})
	case dataplane.ClaimConflict:
		r.add(event{Kind: "conflict", Text: ev.String()})
	case dataplane.Warned:
		r.add(event{Kind: "warning", Text: ev.String()})
	case dataplane.Failed:
		if !errors.Is(ev.Err, context.Canceled) { // the program ends
			r.add(event{Kind: "failed", Revision: ev.Revision,
				Text: ev.Doing + ": " + ev.Err.Error()})
		}
	case dataplane.RepairDelayed:
		r.add(event{Kind: "repair delayed",
			Text: "another program keeps undoing repairs: the next one waits"})
	case dataplane.RepairUndone:
		r.add(event{Kind: "repair undone",
			Text: fmt.Sprintf("by the program %s, thread %d", ev.Name, ev.Thread)})
	case dataplane.WatchFailed:
		r.add(event{Kind: "failed", Text: "watch: " + ev.Err.Error()})
	}
}

// firstOf returns the first elements of a list, and adds the number of further elements to rest.
func firstOf[T any](l []T, rest *int) []T {
	n := min(len(l), maxChanges)
	*rest += len(l) - n
	return slices.Clone(l[:n])
}

// applied keeps only the readable contents of a result, so that old tables can be freed.
func applied(kind string, r *dataplane.Result) event {
	e := event{Kind: kind, Backend: r.Backend, Revision: r.Revision, Counts: r.Counts,
		Messages: r.Stats.Messages, Bytes: r.Stats.Bytes, Duration: duration(r.Duration),
		Phases: r.Phases}
	if r.Changes == nil {
		return e
	}
	c := *r.Changes
	c.Frontends = firstOf(c.Frontends, &e.Rest)
	c.Pools = firstOf(c.Pools, &e.Rest)
	c.ClusterIPs = firstOf(c.ClusterIPs, &e.Rest)
	c.Hairpins = firstOf(c.Hairpins, &e.Rest)
	c.Health = firstOf(c.Health, &e.Rest)
	if text := strings.TrimSuffix(c.String(), "\n"); text != "" {
		e.Changes = strings.Split(text, "\n")
	}
	return e
}

type recentData struct {
	Totals dataplane.Totals `json:"totals"`
	Events []event          `json:"events"` // the newest first
}

func (p *Page) recentEvents(_ *http.Request, s *dataplane.Status) (any, error) {
	p.recent.mu.Lock()
	defer p.recent.mu.Unlock()
	d := &recentData{s.Totals, append([]event{}, p.recent.events...)}
	slices.Reverse(d.Events)
	return d, nil
}
