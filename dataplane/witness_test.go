package dataplane_test

import (
	"bytes"
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/memory"
)

// witness is a backend that can tell which program changes its objects.
type witness struct {
	*memory.Backend
	testify func(context.Context) (dataplane.Program, error)
}

func (w *witness) Witness(ctx context.Context) (dataplane.Program, error) {
	return w.testify(ctx)
}

// Run asks who undoes repairs when they begin to wait, one question at a time. It reports the
// answer by an event and in the log. It does not report that no program was found, but does report
// that the kernel cannot be asked.
func TestWhoUndoesRepairsIsTold(t *testing.T) {
	vandal := dataplane.Program{Name: "vandal", Thread: 7}
	for name, c := range map[string]struct {
		testify func(context.Context) (dataplane.Program, error)
		events  []dataplane.Event
		log     string
	}{
		"the kernel tells": {func(context.Context) (dataplane.Program, error) {
			return vandal, nil
		}, []dataplane.Event{dataplane.RepairUndone{Backend: "memory", Program: vandal}},
			"msg=\"repair undone\" backend=memory program=vandal thread=7"},
		"it does not": {func(ctx context.Context) (dataplane.Program, error) {
			<-ctx.Done()
			return dataplane.Program{}, ctx.Err()
		}, nil, "keeps undoing"},
		"it cannot be asked": {func(context.Context) (dataplane.Program, error) {
			return dataplane.Program{}, errRefused
		}, nil, "find out who undoes repairs: operation not permitted"},
	} {
		bubble(t, name, func(t *testing.T) {
			var log bytes.Buffer
			m := memory.New(nil)
			w := &witness{Backend: m, testify: c.testify}
			e := dataplane.New(w, &dataplane.Config{
				Logger: slog.New(slog.NewTextHandler(&log, nil))})
			var events []dataplane.Event
			e.Subscribe(func(_ context.Context, ev dataplane.Event) {
				if ev, ok := ev.(dataplane.RepairUndone); ok {
					events = append(events, ev)
				}
			})
			r := runOn(t, &bench{m, e}, dataplane.RunOptions{Resync: never})
			r.set(services(1))
			r.at(0)
			for i := range 20 {
				r.Kernel().Flush()
				r.at(time.Duration(i+1) * 100 * time.Millisecond)
			}
			r.at(time.Hour)
			require.Subset(t, events, c.events)
			require.Equal(t, len(c.events) > 0, len(events) > 0)
			require.Contains(t, log.String(), c.log)
		})
	}
}
