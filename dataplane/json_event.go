package dataplane

import (
	"encoding/json"
	"fmt"

	"github.com/kernlb/kernlb/servicemodel"
)

// eventJSON holds an event of any kind. Fields that a kind does not have are left out.
type eventJSON struct {
	Event    string                 `json:"event"`
	Backend  string                 `json:"backend,omitempty"`
	Owner    string                 `json:"owner,omitempty"`
	Owners   []string               `json:"owners,omitempty"`
	From     string                 `json:"from,omitempty"`
	To       string                 `json:"to,omitempty"`
	Doing    string                 `json:"doing,omitempty"`
	Try      int                    `json:"try,omitempty"`
	Phase    string                 `json:"phase,omitempty"`
	Phases   *Phases                `json:"phases,omitempty"`
	Revision Revision               `json:"revision,omitzero"`
	Result   *Result                `json:"result,omitempty"`
	Refusal  *Refusal               `json:"refusal,omitempty"`
	Problems []problemJSON          `json:"problems,omitempty"`
	Conflict *servicemodel.Conflict `json:"conflict,omitempty"`
	Stats    *statsJSON             `json:"stats,omitempty"`
	Next     string                 `json:"next,omitempty"`
	Duration string                 `json:"duration,omitempty"`
	Service  *servicemodel.PortName `json:"service,omitempty"`
	Flows    int                    `json:"flows,omitempty"`
	Frontend string                 `json:"frontend,omitempty"`
	Endpoint string                 `json:"endpoint,omitempty"`
	Deadline bool                   `json:"deadline,omitempty"`
	Program  string                 `json:"program,omitempty"`
	Thread   uint32                 `json:"thread,omitempty"`
	Error    string                 `json:"error,omitempty"`
}

// MarshalEvent returns an event as a JSON object whose field "event" is the name of its type. Do
// not use json.Marshal: for events that embed a result it would write only that result.
// docs/json.md lists the fields.
func MarshalEvent(ev Event) ([]byte, error) {
	var v eventJSON
	switch ev := ev.(type) {
	case Applied:
		v = eventJSON{Event: "Applied", Result: ev.Result}
	case Refused:
		v = eventJSON{Event: "Refused", Backend: ev.Backend, Refusal: &ev.Refusal}
	case PartRefused:
		v = eventJSON{Event: "PartRefused", Backend: ev.Backend, Owner: ev.Owner,
			Problems: problemsOf(ev.Err)}
	case ClaimConflict:
		v = eventJSON{Event: "ClaimConflict", Conflict: &ev.Conflict}
	case Repaired:
		v = eventJSON{Event: "Repaired", Result: ev.Result}
	case RepairDelayed:
		v = eventJSON{Event: "RepairDelayed"}
	case RepairUndone:
		v = eventJSON{Event: "RepairUndone", Backend: ev.Backend, Program: ev.Name,
			Thread: ev.Thread}
	case WriteConflict:
		v = eventJSON{Event: "WriteConflict", Doing: ev.Doing, Try: ev.Try, Error: message(ev.Err)}
	case FlowsCleaned:
		v = eventJSON{Event: "FlowsCleaned", Service: &ev.Service, Flows: ev.Flows}
	case EndpointDrained:
		v = eventJSON{Event: "EndpointDrained", Service: &ev.Service,
			Frontend: ev.Frontend.String(), Endpoint: ev.Endpoint.String(), Deadline: ev.Deadline}
	case Settled:
		v = eventJSON{Event: "Settled", Next: text(ev.Next), Duration: text(ev.Duration)}
	case Failed:
		v = eventJSON{Event: "Failed", Doing: ev.Doing, Owners: ev.Owners, Backend: ev.Backend,
			Phase: ev.Phase.String(), Phases: &ev.Phases, Revision: ev.Revision,
			Error: message(ev.Err)}
	case WatchFailed:
		v = eventJSON{Event: "WatchFailed", Error: message(ev.Err)}
	case Switched:
		v = eventJSON{Event: "Switched", From: ev.From, To: ev.To, Result: ev.Result}
	case CleanedUp:
		stats := ev.Stats.json()
		v = eventJSON{Event: "CleanedUp", Backend: ev.Backend, Phases: &ev.Phases, Stats: &stats}
	default:
		return nil, fmt.Errorf("dataplane: no event: %T", ev)
	}
	return json.Marshal(v)
}

// message returns the text of an error, or "" if it is nil.
func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
