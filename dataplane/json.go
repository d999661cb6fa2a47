package dataplane

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/servicemodel"
)

// The JSON of an engine's values is output for people and programs. Times are text, such as
// "1.5ms". Errors are text; an error about a service also names the field. Only a
// [backends.Observation] can be read back. docs/json.md lists the fields.

// text returns a duration as text, or "" if it is zero.
func text(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return d.String()
}

// MarshalJSON writes the object, field and value, and the error as text. The object names the
// service.
func (p Problem) MarshalJSON() ([]byte, error) {
	v := struct {
		Object string `json:"object,omitempty"`
		Field  string `json:"field,omitempty"`
		Value  string `json:"value,omitempty"`
		Error  string `json:"error"`
	}{p.Object, p.Field, p.Value, message(p.Err)}
	return json.Marshal(v)
}

// MarshalJSON writes the service, and the object and field of each of its problems.
func (r Refusal) MarshalJSON() ([]byte, error) {
	v := struct {
		Owner    string              `json:"owner,omitempty"`
		Service  servicemodel.Name   `json:"service,omitzero"`
		Family   servicemodel.Family `json:"family,omitzero"`
		Problems []Problem           `json:"problems"`
		Left     []int               `json:"endpoints,omitempty"`
		Kept     bool                `json:"kept,omitzero"`
	}{Owner: r.Owner, Service: r.Service, Family: r.Family, Left: r.Endpoints, Kept: r.Kept,
		Problems: Problems(r.Err)}
	return json.Marshal(v)
}

// MarshalJSON writes the phases that took any time, by name.
func (p Phases) MarshalJSON() ([]byte, error) {
	v := map[string]string{}
	for phase, d := range p {
		if d != 0 {
			v[Phase(phase).String()] = d.String()
		}
	}

	return json.Marshal(v)
}

type resultFields Result

// MarshalJSON writes r without its states. Its change sets have fingerprints, which cost as much as
// encoding their tables.
func (r Result) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		*resultFields
		Settle    string `json:"settle,omitempty"`
		Unsettled string `json:"unsettled,omitempty"`
		Duration  string `json:"duration,omitempty"`
	}{(*resultFields)(&r), text(r.Settle), message(r.Unsettled), text(r.Duration)})
}

type previewFields Preview

// MarshalJSON writes p with the plan as text, and with the counts. [Engine.ApplyChanges] can apply
// the stored changes later.
func (p Preview) MarshalJSON() ([]byte, error) {
	v := struct {
		Counts servicemodel.Counts `json:"counts"`
		*previewFields
		Plan  string         `json:"plan"`
		Stats backends.Stats `json:"stats"`
	}{previewFields: (*previewFields)(&p)}
	if p.Changes != nil {
		v.Counts = p.Changes.Counts()
	}
	if p.Plan != nil {
		v.Plan, v.Stats = p.Plan.String(), p.Plan.Stats()
	}
	return json.Marshal(v)
}

type statusFields Status

// MarshalJSON writes s without State and Held, which can be many megabytes; encode them separately.
// It leaves out the times of events that never happened.
func (s Status) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		statusFields
		Error     string `json:"error,omitempty"`
		Unsettled string `json:"unsettled,omitempty"`
	}{statusFields(s), message(s.Err), message(s.Unsettled)})
}

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
	Problems []Problem              `json:"problems,omitempty"`
	Conflict *servicemodel.Conflict `json:"conflict,omitempty"`
	Warning  *servicemodel.Warning  `json:"warning,omitempty"`
	Stats    *backends.Stats        `json:"stats,omitempty"`
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

// MarshalJSON is [MarshalEvent], also without a result.
func (ev Applied) MarshalJSON() ([]byte, error) { return MarshalEvent(ev) }

// MarshalJSON is [MarshalEvent], also without a result.
func (ev Repaired) MarshalJSON() ([]byte, error) { return MarshalEvent(ev) }

// MarshalJSON is [MarshalEvent], also without a result.
func (ev Switched) MarshalJSON() ([]byte, error) { return MarshalEvent(ev) }

// MarshalEvent returns an event as a JSON object whose field "event" is the name of its type. Do
// not use json.Marshal: for events that embed a refusal or a warning, it would write only that.
// docs/json.md lists the fields.
func MarshalEvent(ev Event) ([]byte, error) {
	v := eventJSON{Event: strings.TrimPrefix(fmt.Sprintf("%T", ev), "dataplane.")}
	switch ev := ev.(type) {
	case Applied:
		v.Result = ev.Result
	case Refused:
		v.Backend, v.Refusal = ev.Backend, &ev.Refusal
	case PartRefused:
		v.Backend, v.Owner, v.Problems = ev.Backend, ev.Owner, Problems(ev.Err)
	case ClaimConflict:
		v.Conflict = &ev.Conflict
	case Warned:
		v.Warning = &ev.Warning
	case Repaired:
		v.Result = ev.Result
	case RepairDelayed:
	case RepairUndone:
		v.Backend, v.Program, v.Thread = ev.Backend, ev.Name, ev.Thread
	case WriteConflict:
		v.Doing, v.Try, v.Error = ev.Doing, ev.Try, message(ev.Err)
	case FlowsCleaned:
		v.Service, v.Flows = &ev.Service, ev.Flows
	case EndpointDrained:
		v.Service, v.Frontend = &ev.Service, ev.Frontend.String()
		v.Endpoint, v.Deadline = ev.Endpoint.String(), ev.Deadline
	case Settled:
		v.Next, v.Duration = text(ev.Next), text(ev.Duration)
	case Failed:
		v.Doing, v.Owners, v.Backend = ev.Doing, ev.Owners, ev.Backend
		v.Phase, v.Phases = ev.Phase.String(), &ev.Phases
		v.Revision, v.Error = ev.Revision, message(ev.Err)
	case WatchFailed:
		v.Error = message(ev.Err)
	case Switched:
		v.From, v.To, v.Result = ev.From, ev.To, ev.Result
	case CleanedUp:
		v.Backend, v.Phases, v.Stats = ev.Backend, &ev.Phases, &ev.Stats
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
