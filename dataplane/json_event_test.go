package dataplane_test

import (
	"encoding/json"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/servicemodel"
)

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
	stats := dataplane.Stats{Messages: 2, Bytes: 60, Elements: 1}
	inResult := `"result":` + asJSON(t, result) + `}`
	for want, ev := range map[string]dataplane.Event{
		`{"event":"Applied",` + inResult:  dataplane.Applied{Result: result},
		`{"event":"Repaired",` + inResult: dataplane.Repaired{Result: result},
		`{"event":"Switched","from":"ipvs","to":"memory",` + inResult: dataplane.Switched{
			From: "ipvs", To: "memory", Result: result},
		`{"event":"Refused","backend":"memory","refusal":` + asJSON(t, refusal) +
			`}`: dataplane.Refused{Backend: "memory", Refusal: refusal},
		`{"event":"PartRefused","backend":"memory","owner":"a","problems":[{"error":"one"},` +
			`{"error":"two"}]}`: dataplane.PartRefused{Backend: "memory", Owner: "a",
			Err: errors.Join(errors.New("one"), errors.New("two"))},
		`{"event":"ClaimConflict","conflict":` + asJSON(t, conflict) +
			`}`: dataplane.ClaimConflict{Conflict: conflict},
		`{"event":"RepairDelayed"}`: dataplane.RepairDelayed{},
		`{"event":"RepairUndone","backend":"ipvs","program":"nft","thread":7}`: dataplane.
			RepairUndone{Backend: "ipvs", Program: dataplane.Program{Name: "nft", Thread: 7}},
		`{"event":"WriteConflict","doing":"apply","try":2,"error":"busy"}`: dataplane.WriteConflict{
			Doing: "apply", Try: 2, Err: errors.New("busy")},
		`{"event":"FlowsCleaned","service":` + asJSON(t, port) + `,"flows":3}`: dataplane.
			FlowsCleaned{Service: port, Flows: 3},
		`{"event":"EndpointDrained","service":` + asJSON(t, port) + `,"frontend":` +
			`"10.96.0.10:80/tcp","endpoint":"10.244.0.1:8080","deadline":true}`: dataplane.
			EndpointDrained{Service: port, Frontend: conflict.Key, Deadline: true,
			Endpoint: netip.MustParseAddrPort("10.244.0.1:8080")},
		`{"event":"Settled","next":"1s","duration":"1ms"}`: dataplane.Settled{Next: time.Second,
			Duration: time.Millisecond},
		`{"event":"Failed","backend":"memory","doing":"apply","phase":"commit",` +
			`"phases":{"commit":"1ms"},"revision":7,"error":"refused"}`: dataplane.Failed{
			Doing: "apply", Backend: "memory", Phase: dataplane.PhaseCommit, Phases: phases,
			Revision: 7, Err: errors.New("refused")},
		`{"event":"WatchFailed","error":"gone"}`: dataplane.WatchFailed{Err: errors.New("gone")},
		`{"event":"CleanedUp","backend":"memory","phases":{"commit":"1ms"},` +
			`"stats":{"messages":2,"bytes":60,"elements":1}}`: dataplane.CleanedUp{
			Backend: "memory", Phases: phases, Stats: stats},
	} {
		got := ok(dataplane.MarshalEvent(ev))(t)
		require.Equal(t, want, string(got))
		require.True(t, strings.HasPrefix(want, `{"event":"`+eventName(t, got)), "%T", ev)
	}
	require.ErrorContains(t, errOf(dataplane.MarshalEvent(nil)), "no event")
}
