package dataplane

import (
	"encoding/json"
	"errors"
	"time"

	"github.com/kernlb/kernlb/servicemodel"
)

// What an engine says is written as JSON for people and programs that look at it: times as text,
// such as "1.5ms", errors as their text, those of services with the field that they are about. An
// [Observation] can be read back, the rest cannot. docs/json.md has the fields.

// text returns a duration as text; none if it is zero.
func text(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return d.String()
}

// problemJSON is one thing that is wrong with a service.
type problemJSON struct {
	Object string `json:"object,omitempty"`
	Field  string `json:"field,omitempty"`
	Value  string `json:"value,omitempty"`
	Error  string `json:"error"`
}

// problemsOf lists what an error joins.
func problemsOf(err error) []problemJSON {
	l := []problemJSON{}
	if err != nil {
		for _, e := range leaves(err, nil) {
			l = append(l, problemOf(e))
		}
	}
	return l
}

func problemOf(err error) problemJSON {
	p := problemJSON{Error: err.Error()}
	var (
		field       *servicemodel.FieldError
		unsupported *UnsupportedError
		collision   *CollisionError
	)
	switch {
	case errors.As(err, &field):
		p.Object, p.Field, p.Value = field.Object, field.Field, field.Value
	case errors.As(err, &unsupported):
		p.Object, p.Field, p.Value = unsupported.Object, unsupported.Field, unsupported.Value
	case errors.As(err, &collision):
		p.Object = collision.Object
	}
	return p
}

// MarshalJSON writes the service, and each of its problems with the object and the field that it is
// about.
func (r Refusal) MarshalJSON() ([]byte, error) {
	v := struct {
		Service  servicemodel.Name `json:"service"`
		Problems []problemJSON     `json:"problems"`
	}{Service: r.Service, Problems: problemsOf(r.Err)}
	return json.Marshal(v)
}

// MarshalJSON writes the phases that took time, by their names.
func (p Phases) MarshalJSON() ([]byte, error) {
	v := map[string]string{}
	for phase, d := range p {
		if d != 0 {
			v[Phase(phase).String()] = d.String()
		}
	}
	return json.Marshal(v)
}

// statsJSON are [Stats], written among the fields of a result.
type statsJSON struct {
	Messages int    `json:"messages"`
	Bytes    int    `json:"bytes"`
	Elements int    `json:"elements"`
	Duration string `json:"duration,omitempty"`
}

func (s Stats) json() statsJSON {
	return statsJSON{s.Messages, s.Bytes, s.Elements, text(s.Duration)}
}

// resultJSON is a [Result].
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
	Phases    Phases                  `json:"phases"`
	statsJSON
}

// MarshalJSON writes r, its counts and stats among its fields. The fingerprints of the change sets
// cost as much as writing their tables down.
func (r *Result) MarshalJSON() ([]byte, error) {
	return json.Marshal(resultJSON{r.Backend, r.Revision, r.Owners, r.Counts, r.Repaired, r.Changes,
		r.Rest, r.Drift, r.Refused, r.Conflicts, r.Observed, text(r.Settle), r.Phases,
		r.Stats.json()})
}

// previewJSON is a [Preview].
type previewJSON struct {
	servicemodel.Counts
	Changes   *servicemodel.ChangeSet `json:"changes"`
	Drift     []string                `json:"drift,omitempty"`
	Plan      string                  `json:"plan"`
	Refused   []Refusal               `json:"refused,omitempty"`
	Conflicts []servicemodel.Conflict `json:"conflicts,omitempty"`
	statsJSON
}

// MarshalJSON writes p, with the plan as text, and what it counts to. Its changes can be stored,
// and applied later by [Engine.ApplyChanges].
func (p *Preview) MarshalJSON() ([]byte, error) {
	v := previewJSON{Changes: p.Changes, Drift: p.Drift, Refused: p.Refused,
		Conflicts: p.Conflicts}
	if p.Changes != nil {
		v.Counts = p.Changes.Counts()
	}
	if p.Plan != nil {
		v.Plan, v.statsJSON = p.Plan.String(), p.Plan.Stats().json()
	}
	return json.Marshal(v)
}

// statusJSON is a [Status].
type statusJSON struct {
	Backend      string                  `json:"backend"`
	Running      bool                    `json:"running"`
	Wanted       Revision                `json:"wanted"`
	Asked        time.Time               `json:"asked,omitzero"`
	Applied      Revision                `json:"applied"`
	State        servicemodel.State      `json:"state"`
	PendingSince time.Time               `json:"pendingSince,omitzero"`
	Held         *servicemodel.Table     `json:"held,omitempty"`
	Refused      []Refusal               `json:"refused,omitempty"`
	Conflicts    []servicemodel.Conflict `json:"conflicts,omitempty"`
	Succeeded    time.Time               `json:"succeeded,omitzero"`
	Failed       time.Time               `json:"failed,omitzero"`
	Error        string                  `json:"error,omitempty"`
	Settle       time.Time               `json:"settle,omitzero"`
	Totals       Totals                  `json:"totals"`
}

// MarshalJSON writes s. What never happened is left out.
func (s Status) MarshalJSON() ([]byte, error) {
	v := statusJSON{s.Backend, s.Running, s.Wanted, s.Asked, s.Applied, s.State, s.PendingSince,
		s.Held, s.Refused, s.Conflicts, s.Succeeded, s.Failed, "", s.Settle, s.Totals}
	if s.Err != nil {
		v.Error = s.Err.Error()
	}
	return json.Marshal(v)
}
