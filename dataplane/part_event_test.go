package dataplane_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/internal/test/golden"
	"github.com/kernlb/kernlb/servicemodel"
	"github.com/stretchr/testify/require"
)

// slow is a backend whose calls take some seconds each.
func slow() *settling {
	b := &settling{Backend: memory.New(nil)}
	for call, d := range map[string]time.Duration{
		"observe": 2, "check": 3, "commit": 4,
	} {
		b.Before(call, func(context.Context) error { time.Sleep(d * time.Second); return nil })
	}
	return b
}

// partStory is a story of changes to parts, with the name of each event of each change.
func partStory(t *testing.T, b *settling, p *dataplane.Parts) (story []func() []string) {
	a := published("a", 7, 80, 81)
	do := func(f func() error, ok bool, events ...string) {
		story = append(story, func() []string {
			require.Equal(t, ok, f() == nil)
			return events
		})
	}
	apply := func(owner string, s servicemodel.State) func() error {
		return func() error {
			_, err := p.Apply(t.Context(), owner, s)
			return err
		}
	}
	do(apply("a", a), true, "Applied")
	do(apply("a", a), true, "Applied")
	do(apply("b", published("b", 8, 81).WithService(&servicemodel.Service{})), false, "PartRefused")
	do(apply("b", published("b", 8, 81)), false, "PartRefused")
	do(func() error {
		b.Kernel().AddDrift("a chain of nobody")
		b.Fail("commit", 1, dataplane.ErrConflict)
		return apply("b", published("b", 8, 90))()
	}, true, "WriteConflict", "Repaired", "Applied")
	do(func() error {
		b.Fail("cleanup", 1, errRefused)
		_, err := p.Remove(t.Context(), "a", "b")
		return err
	}, false, "Failed")
	do(func() error {
		b.Fail("observe", 1, errRefused)
		_, err := p.Keep(t.Context(), func(string) bool { return true })
		return err
	}, false, "Failed")
	do(func() error {
		b.err = errRefused
		_, err := p.Remove(t.Context(), "a")
		return err
	}, false, "Applied", "Failed")
	do(func() error { _, err := p.Settle(t.Context()); return err }, false, "Failed")
	do(func() error {
		b.err = nil
		b.due(time.Hour)
		_, err := p.Settle(t.Context())
		return err
	}, true, "Settled")
	do(func() error {
		_, err := p.Keep(t.Context(), func(string) bool { return false })
		return err
	}, true, "Applied")
	return story
}

// Observers of parts learn the outcome of each call, the owners, the failed phase, and the time of
// each phase.
func TestObserversAreToldOfParts(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := slow()
		p := dataplane.NewParts(b, nil)
		var names []string
		var text []byte
		unsubscribe := p.Subscribe(func(_ context.Context, ev dataplane.Event) {
			line := ok(dataplane.MarshalEvent(ev))(t)
			names, text = append(names, eventName(t, line)), append(append(text, line...), '\n')
		})
		for _, do := range partStory(t, b, p) {
			names = nil
			require.Equal(t, do(), names)
		}
		golden.File(t, filepath.Join("testdata", "part-events.json"), string(text))
		unsubscribe()
		names = nil
		ok(p.Remove(t.Context(), "nobody"))(t)
		require.Empty(t, names)
	})
}

// The phases of a change of parts have the times that the backend took. An error names its phase.
func TestPartsSayWhereTheirTimeWent(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := slow()
		p := dataplane.NewParts(b, nil)
		r := ok(p.Apply(t.Context(), "a", published("a", 7, 80)))(t)
		require.Equal(t, dataplane.Phases{
			dataplane.PhaseObserve: 2 * time.Second,
			dataplane.PhaseCheck:   3 * time.Second,
			dataplane.PhaseCommit:  4 * time.Second,
		}, r.Phases)
		require.Equal(t, 9*time.Second, r.Duration)
		require.Equal(t, []string{"a"}, r.Owners)

		b.Fail("cleanup", 1, errRefused)
		_, err := p.Remove(t.Context(), "a")
		requirePhase(t, dataplane.PhaseCommit, err)
		b.Fail("observe", 1, errRefused)
		_, err = p.Plan(t.Context(), "a", published("a", 8, 80))
		requirePhase(t, dataplane.PhaseObserve, err)
	})
}

// Without observers, the events of parts cost nothing.
func TestEventsOfPartsCostNothingIfNobodyListens(t *testing.T) {
	p := dataplane.NewParts(costless{}, nil)
	requireCostsNothing(t, p.Subscribe, func() error {
		_, err := p.Remove(context.Background(), "a")
		return err
	})
}
