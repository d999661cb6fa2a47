package dataplane

import (
	"encoding/json"
	"time"

	"github.com/kernlb/kernlb/servicemodel"
)

// The JSON of an engine's values is for people and programs that look at it. Times are text, such
// as "1.5ms". Errors are text, with the field that they concern if they are about a service. Only
// an [Observation] can be read back. docs/json.md lists the fields.

// text returns a duration as text, or "" if it is zero.
func text(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return d.String()
}

// problemJSON is a [Problem] inside an object that is named outside.
type problemJSON struct {
	Object string `json:"object,omitempty"`
	Field  string `json:"field,omitempty"`
	Value  string `json:"value,omitempty"`
	Error  string `json:"error"`
}

// problemsOf lists the joined errors of an error.
func problemsOf(err error) []problemJSON {
	l := []problemJSON{}
	for _, p := range Problems(err) {
		l = append(l, problemJSON{p.Object, p.Field, p.Value, p.Err.Error()})
	}
	return l
}

// MarshalJSON writes the service, and each of its problems with the object and field concerned.
func (r Refusal) MarshalJSON() ([]byte, error) {
	v := struct {
		Service  servicemodel.Name   `json:"service,omitzero"`
		Family   servicemodel.Family `json:"family,omitzero"`
		Problems []problemJSON       `json:"problems"`
		Left     []int               `json:"endpoints,omitempty"`
		Kept     bool                `json:"kept,omitzero"`
	}{Service: r.Service, Family: r.Family, Left: r.Endpoints, Kept: r.Kept,
		Problems: problemsOf(r.Err)}
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

// statsJSON holds [Stats] as fields of a result.
type statsJSON struct {
	Messages int    `json:"messages"`
	Bytes    int    `json:"bytes"`
	Elements int    `json:"elements"`
	Duration string `json:"duration,omitempty"`
}

func (s Stats) json() statsJSON {
	return statsJSON{s.Messages, s.Bytes, s.Elements, text(s.Duration)}
}

type resultJSON struct {
	Backend  string   `json:"backend"`
	Revision Revision `json:"revision,omitzero"`
	Owners   []string `json:"owners,omitempty"`
	servicemodel.Counts
	Repaired  servicemodel.Counts     `json:"repaired,omitzero"`
	Changes   *servicemodel.ChangeSet `json:"changes"`
	Rest      *servicemodel.ChangeSet `json:"rest,omitempty"`
	Drift     []string                `json:"drift,omitempty"`
	Refused   []Refusal               `json:"refused,omitempty"`
	Conflicts []servicemodel.Conflict `json:"conflicts,omitempty"`
	Observed  bool                    `json:"observed"`
	Settle    string                  `json:"settle,omitempty"`
	Step      bool                    `json:"step,omitzero"`
	Phases    Phases                  `json:"phases"`
	statsJSON
}

// MarshalJSON writes r with its counts and stats as fields. The fingerprints of the change sets
// cost as much as encoding their tables.
func (r *Result) MarshalJSON() ([]byte, error) {
	return json.Marshal(resultJSON{r.Backend, r.Revision, r.Owners, r.Counts, r.Repaired, r.Changes,
		r.Rest, r.Drift, r.Refused, r.Conflicts, r.Observed, text(r.Settle), r.Step, r.Phases,
		r.Stats.json()})
}

type previewJSON struct {
	servicemodel.Counts
	Changes   *servicemodel.ChangeSet `json:"changes"`
	Repaired  servicemodel.Counts     `json:"repaired,omitzero"`
	Drift     []string                `json:"drift,omitempty"`
	Plan      string                  `json:"plan"`
	Refused   []Refusal               `json:"refused,omitempty"`
	Conflicts []servicemodel.Conflict `json:"conflicts,omitempty"`
	statsJSON
}

// MarshalJSON writes p, with the plan as text, and the counts. Its changes can be stored and
// applied later by [Engine.ApplyChanges].
func (p *Preview) MarshalJSON() ([]byte, error) {
	v := previewJSON{Changes: p.Changes, Repaired: p.Repaired, Drift: p.Drift, Refused: p.Refused,
		Conflicts: p.Conflicts}
	if p.Changes != nil {
		v.Counts = p.Changes.Counts()
	}
	if p.Plan != nil {
		v.Plan, v.statsJSON = p.Plan.String(), p.Plan.Stats().json()
	}
	return json.Marshal(v)
}

type statusJSON struct {
	Backend      string                  `json:"backend"`
	Running      bool                    `json:"running"`
	Wanted       Revision                `json:"wanted"`
	Asked        time.Time               `json:"asked,omitzero"`
	Applied      Revision                `json:"applied"`
	PendingSince time.Time               `json:"pendingSince,omitzero"`
	Refused      []Refusal               `json:"refused,omitempty"`
	Conflicts    []servicemodel.Conflict `json:"conflicts,omitempty"`
	Succeeded    time.Time               `json:"succeeded,omitzero"`
	Failed       time.Time               `json:"failed,omitzero"`
	Error        string                  `json:"error,omitempty"`
	Settle       time.Time               `json:"settle,omitzero"`
	Totals       Totals                  `json:"totals"`
}

// MarshalJSON writes s without State and Held, which can be many megabytes and have a JSON of their
// own. It leaves out what never happened.
func (s Status) MarshalJSON() ([]byte, error) {
	v := statusJSON{s.Backend, s.Running, s.Wanted, s.Asked, s.Applied, s.PendingSince, s.Refused,
		s.Conflicts, s.Succeeded, s.Failed, "", s.Settle, s.Totals}
	if s.Err != nil {
		v.Error = s.Err.Error()
	}
	return json.Marshal(v)
}
