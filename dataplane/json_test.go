package dataplane_test

import (
	"encoding/json"
	"errors"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/internal/test/golden"
	"github.com/kernlb/kernlb/servicemodel"
)

func asJSON(t *testing.T, v any) string {
	t.Helper()
	text := ok(json.Marshal(v))(t)
	return string(text)
}

// One engine plans a change set and another engine applies it, if the kernel still holds the table
// that the change set begins from.
func TestPlannedChangesAreAppliedLater(t *testing.T) {
	t.Parallel()
	kernel := &memory.Kernel{}
	open := func() *dataplane.Engine { return dataplane.New(memory.New(kernel), nil) }
	ok(open().Apply(t.Context(), services(3)))(t)
	preview := ok(open().Plan(t.Context(), services(4).WithoutService(serviceName(1))))(t)

	var stored struct {
		Changes *servicemodel.ChangeSet `json:"changes"`
		Plan    string                  `json:"plan"`
	}
	require.NoError(t, json.Unmarshal([]byte(asJSON(t, preview)), &stored))
	require.Equal(t, preview.Plan.String(), stored.Plan)
	require.Equal(t, preview.Changes.Counts(), stored.Changes.Counts())

	engine := open()
	r := ok(engine.ApplyChanges(t.Context(), stored.Changes))(t)
	require.Equal(t, preview.Changes.Counts(), r.Counts)
	o := ok(engine.Observe(t.Context()))(t)
	require.True(t, preview.Changes.New.Equal(withoutHealth(t, o.Table)))
	require.False(t, func() bool { s := engine.Status(); return s.Pending() }())

	var read backends.Observation
	require.NoError(t, json.Unmarshal([]byte(asJSON(t, o)), &read))
	require.True(t, read.Table.Equal(o.Table))

	for _, c := range []*servicemodel.ChangeSet{stored.Changes, preview.Changes} {
		_, err := engine.ApplyChanges(t.Context(), c)
		require.ErrorIs(t, err, servicemodel.ErrOtherTable, "it was applied already")
	}
	again := ok(engine.Apply(t.Context(), services(4).WithoutService(serviceName(1))))(t)
	require.True(t, again.Changes.Empty())
	back := ok(engine.Plan(t.Context(), services(4)))(t)
	ok(engine.ApplyChanges(t.Context(), back.Changes))(t) // in the same process
	requireHolds(t, kernel, services(4))
}

// withoutHealth returns a table as a backend would read it, because no kernel holds health checks.
func withoutHealth(t *testing.T, table *servicemodel.Table) *servicemodel.Table {
	t.Helper()
	for range table.HealthChecks() {
		t.Fatal("no kernel holds health checks")
	}
	return table
}

func TestResultsAsJSON(t *testing.T) {
	t.Parallel()
	name := servicemodel.Name{Namespace: "default", Name: "web"}
	r := &dataplane.Result{Backend: "memory", Revision: 3, Counts: servicemodel.Counts{Added: 2},
		Drift: []string{"chain x"}, Observed: true,
		Phases:   dataplane.Phases{dataplane.PhaseCommit: time.Millisecond},
		Stats:    backends.Stats{Messages: 4, Bytes: 100, Duration: time.Millisecond},
		Duration: 2 * time.Millisecond, Unsettled: errors.New("stale flows"),
		Refused: []dataplane.Refusal{{Service: name, Err: errors.Join(
			&servicemodel.FieldError{Object: "service default/web", Field: "ports[0].port",
				Value: "0", Reason: "must not be zero"},
			&backends.UnsupportedError{Backend: "memory", Object: "service default/web",
				Field: "scheduler", Value: "lc"},
			&backends.CollisionError{Backend: "memory", Service: name, Object: "a set"},
			errors.New("other"))}}}
	require.Equal(t, "memory: 2 added, 0 changed, 0 removed; 4 kernel messages, 100 bytes, 2ms; "+
		"1 refused; not settled: stale flows", r.String())
	status := dataplane.Status{Backend: "memory", Err: errors.New("broken"),
		Unsettled: errors.New("stale flows"),
		Totals:    dataplane.Totals{Applies: 1}}
	text := ok(json.MarshalIndent([]any{r, status}, "", "  "))(t)
	golden.File(t, "testdata/results.json", string(text)+"\n")
}

// A value and a pointer to it have the same JSON, also if they are zero.
func TestValuesAsJSON(t *testing.T) {
	t.Parallel()
	b := newBench(nil)
	full := dataplane.Result{Settle: time.Second, Unsettled: errors.New("x"), Duration: 1}
	preview := ok(b.engine.Plan(t.Context(), services(1)))(t)
	for _, v := range []any{full, *preview, dataplane.Result{}, dataplane.Preview{},
		dataplane.Status{}, dataplane.Refusal{}, dataplane.Problem{}, dataplane.Phases{},
		dataplane.Totals{}, dataplane.Undone{}, backends.Stats{}, backends.Observation{},
		dataplane.Applied{}, dataplane.Repaired{}, dataplane.Switched{}, dataplane.Refused{},
		dataplane.ClaimConflict{}, dataplane.Warned{}, dataplane.Failed{}} {
		to := reflect.New(reflect.TypeOf(v))
		to.Elem().Set(reflect.ValueOf(v))
		require.Equal(t, asJSON(t, to.Interface()), asJSON(t, v), "%T", v)
		if ev, is := v.(dataplane.Event); is {
			require.NoError(t, errOf(dataplane.MarshalEvent(ev)), "%T", v)
		}
	}

	require.Contains(t, asJSON(t, full), `"unsettled":"x"`)
	require.Contains(t, asJSON(t, *preview), `"plan":"`)
}

// Values from an engine can be changed without effect on the engine.
func TestAnEngineCannotBeChangedFromOutside(t *testing.T) {
	t.Parallel()
	engine := dataplane.New(memory.New(nil), nil)
	bad := services(2).WithService(&servicemodel.Service{Name: serviceName(0),
		Scheduler: "fastest"})
	r := ok(engine.Apply(t.Context(), bad))(t)
	require.Len(t, r.Refused, 1)
	want := engine.Status().Refused[0]
	r.Refused[0], engine.Status().Refused[0] = dataplane.Refusal{}, dataplane.Refusal{}
	require.Equal(t, want, engine.Status().Refused[0])
}

// A backend may have rules for health checks, so a change of only health checks is committed.
func TestPlannedHealthChecksAreCommitted(t *testing.T) {
	t.Parallel()
	b := newBench(nil)
	svc := withHealthCheck(1)
	ok(b.engine.Apply(t.Context(), servicemodel.State{}.WithService(svc)))(t)
	svc.HealthCheckNodePort++
	c := planned(t, b, servicemodel.State{}.WithService(svc))
	require.Len(t, c.Health, 1)
	commits := b.Calls(memory.CallCommit)
	ok(b.engine.ApplyChanges(t.Context(), c))(t)
	require.Equal(t, commits+1, b.Calls(memory.CallCommit))
}

// eventName returns the name of an event in JSON.
func eventName(t *testing.T, line []byte) string {
	t.Helper()
	var v struct{ Event string }
	require.NoError(t, json.Unmarshal(line, &v))
	return v.Event
}

func TestEventsAsJSON(t *testing.T) {
	t.Parallel()
	result := &dataplane.Result{Backend: "memory"}
	refusal := dataplane.Refusal{Service: serviceName(1), Err: errors.New("too many")}
	port := servicemodel.PortName{Name: serviceName(1), Protocol: servicemodel.TCP}
	conflict := servicemodel.Conflict{Key: servicemodel.FrontendKey{
		Addr: netip.MustParseAddr("10.96.0.10"), Protocol: servicemodel.TCP, Port: 80},
		Winner: port, Loser: port}
	phases := dataplane.Phases{dataplane.PhaseCommit: time.Millisecond}
	stats := backends.Stats{Messages: 2, Bytes: 60, Elements: 1}
	var all strings.Builder
	for _, ev := range []dataplane.Event{
		dataplane.Applied{Result: result},
		dataplane.Repaired{Result: result},
		dataplane.Switched{From: "ipvs", To: "memory", Result: result},
		dataplane.Refused{Backend: "memory", Refusal: refusal},
		dataplane.PartRefused{Backend: "memory", Owner: "a",
			Err: errors.Join(errors.New("one"), errors.New("two"))},
		dataplane.ClaimConflict{Conflict: conflict},
		dataplane.RepairDelayed{},
		dataplane.RepairUndone{Backend: "ipvs",
			Program: backends.Program{Name: "nft", Thread: 7}},
		dataplane.WriteConflict{Doing: "apply", Try: 2, Err: errors.New("busy")},
		dataplane.FlowsCleaned{Cleaned: backends.Cleaned{Service: port, Flows: 3}},
		dataplane.EndpointDrained{Drained: backends.Drained{Service: port,
			Frontend: conflict.Key, Deadline: true,
			Endpoint: netip.MustParseAddrPort("10.244.0.1:8080")}},
		dataplane.Settled{Next: time.Second, Duration: time.Millisecond},
		dataplane.Failed{Doing: "apply", Backend: "memory", Phase: dataplane.PhaseCommit,
			Phases: phases, Revision: 7, Err: errors.New("refused")},
		dataplane.WatchFailed{Err: errors.New("gone")},
		dataplane.CleanedUp{Backend: "memory", Phases: phases, Stats: stats},
	} {
		text := ok(dataplane.MarshalEvent(ev))(t)
		require.Equal(t, reflect.TypeOf(ev).Name(), eventName(t, text))
		all.Write(append(text, '\n'))
	}

	golden.File(t, "testdata/events.json", all.String())
	require.ErrorContains(t, errOf(dataplane.MarshalEvent(nil)), "no event")
}
