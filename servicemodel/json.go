package servicemodel

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"time"
)

// The names of fields in JSON are those of Go, beginning in lower case; docs/json.md lists them. An
// unknown field is an error: it is misspelt, or means something that would be lost.

// unmarshalStrictly reads one JSON value, and refuses fields that into does not have.
func unmarshalStrictly(data []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("more than one JSON value")
	}
	return nil
}

// duration is a time.Duration whose JSON is text, such as "3h0m0s".
type duration time.Duration

func (d duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

func (d *duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	*d = duration(v)
	return err
}

// frontendJSON is a frontend with its times as text.
type frontendJSON struct {
	*frontendFields
	Affinity duration `json:"affinity,omitzero"`
}

type frontendFields Frontend

// MarshalJSON returns f with its affinity as text, such as "3h0m0s".
func (f *Frontend) MarshalJSON() ([]byte, error) {
	return json.Marshal(frontendJSON{(*frontendFields)(f), duration(f.Affinity)})
}

// UnmarshalJSON is the inverse of MarshalJSON.
func (f *Frontend) UnmarshalJSON(data []byte) error {
	j := frontendJSON{frontendFields: &frontendFields{}}
	if err := unmarshalStrictly(data, &j); err != nil {
		return fmt.Errorf("frontend: %w", err)
	}
	*f = Frontend(*j.frontendFields)
	f.Affinity = time.Duration(j.Affinity)
	return nil
}

// stateJSON is a state.
type stateJSON struct {
	Node      Node                `json:"node"`
	Services  []*Service          `json:"services,omitempty"`
	Endpoints map[Name][]Endpoint `json:"endpoints,omitempty"`
}

// MarshalJSON returns the node, the services in the order of their names, and the endpoints by
// service.
func (s State) MarshalJSON() ([]byte, error) {
	j := stateJSON{Node: *s.viewpoint(), Endpoints: map[Name][]Endpoint{}}
	for _, svc := range s.services.All() {
		j.Services = append(j.Services, svc)
	}
	for n, eps := range s.endpoints.All() {
		j.Endpoints[n] = eps
	}
	return json.Marshal(j)
}

// UnmarshalJSON is the inverse of MarshalJSON. It is an error if a service occurs twice. Whether
// the state is valid is not asked: see [State.Validate].
func (s *State) UnmarshalJSON(data []byte) error {
	var j stateJSON
	if err := unmarshalStrictly(data, &j); err != nil {
		return fmt.Errorf("state: %w", err)
	}
	read := State{}.WithNode(j.Node)
	for i, svc := range j.Services {
		if svc == nil || read.serviceOf(svc.Name) != nil {
			return fmt.Errorf("state: services[%d] is null or occurs twice", i)
		}
		read = read.WithService(svc)
	}
	for n, eps := range j.Endpoints {
		read = read.WithEndpoints(n, eps)
	}
	*s = read
	return nil
}

// tableJSON is a table.
type tableJSON struct {
	Rules        Rules         `json:"rules"`
	Frontends    []*Frontend   `json:"frontends,omitempty"`
	Pools        []*Pool       `json:"pools,omitempty"`
	ClusterIPs   []netip.Addr  `json:"clusterIPs,omitempty"`
	Hairpins     []netip.Addr  `json:"hairpins,omitempty"`
	HealthChecks []HealthCheck `json:"healthChecks,omitempty"`
}

func (t *Table) json() tableJSON {
	return tableJSON{Rules: t.Rules(), Frontends: slices.Collect(t.Frontends()),
		Pools: slices.Collect(t.Pools()), ClusterIPs: slices.Collect(t.ClusterIPs()),
		Hairpins: slices.Collect(t.Hairpins()), HealthChecks: slices.Collect(t.HealthChecks())}
}

// MarshalJSON returns all that the table holds, each kind of objects in the order of their keys.
func (t *Table) MarshalJSON() ([]byte, error) { return json.Marshal(t.json()) }

// UnmarshalJSON is the inverse of MarshalJSON. The table knows of no conflicts.
func (t *Table) UnmarshalJSON(data []byte) error {
	var j tableJSON
	if err := unmarshalStrictly(data, &j); err != nil {
		return fmt.Errorf("table: %w", err)
	}
	read, err := NewTable(Contents{Rules: j.Rules, Frontends: j.Frontends, Pools: j.Pools,
		ClusterIPs: j.ClusterIPs, Hairpins: j.Hairpins})
	if err != nil {
		return err
	}
	for _, h := range j.HealthChecks {
		read.health = read.health.Set(h.Service, h)
	}
	*t = *read
	return nil
}

// Fingerprint returns a hash of what the kernel holds of the table: of everything but the health
// checks. Tables that are equal have equal ones. It costs as much as writing the table down.
func (t *Table) Fingerprint() (string, error) {
	j := t.json()
	j.HealthChecks = nil
	text, err := json.Marshal(j)
	if err != nil {
		return "", fmt.Errorf("fingerprint of a table: %w", err)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16]), nil
}

// changeSetJSON is a change set.
type changeSetJSON struct {
	From       string           `json:"from"` // the fingerprint of the table that it begins from
	To         string           `json:"to"`   // and of the one that it leads to
	Rules      *RulesChange     `json:"rules,omitempty"`
	Frontends  []FrontendChange `json:"frontends,omitempty"`
	Pools      []PoolChange     `json:"pools,omitempty"`
	ClusterIPs []AddrChange     `json:"clusterIPs,omitempty"`
	Hairpins   []AddrChange     `json:"hairpins,omitempty"`
	Health     []HealthChange   `json:"healthChecks,omitempty"`
}

// MarshalJSON returns the changes, with the fingerprints of the tables instead of the tables. It
// costs as much as writing both tables down.
func (c *ChangeSet) MarshalJSON() ([]byte, error) {
	from, to := c.from, c.to
	if from == "" {
		var err error
		if from, err = c.Old.Fingerprint(); err != nil {
			return nil, err
		}
		if to, err = c.New.Fingerprint(); err != nil {
			return nil, err
		}
	}
	return json.Marshal(changeSetJSON{From: from, To: to, Rules: c.Rules, Frontends: c.Frontends,
		Pools: c.Pools, ClusterIPs: c.ClusterIPs, Hairpins: c.Hairpins, Health: c.Health})
}

// UnmarshalJSON reads a change set that was written by MarshalJSON. It has no tables:
// [ChangeSet.On] gives it those.
func (c *ChangeSet) UnmarshalJSON(data []byte) error {
	var j changeSetJSON
	if err := unmarshalStrictly(data, &j); err != nil {
		return fmt.Errorf("change set: %w", err)
	}
	read := ChangeSet{from: j.From, to: j.To, Rules: j.Rules, Frontends: j.Frontends,
		Pools: j.Pools, ClusterIPs: j.ClusterIPs, Hairpins: j.Hairpins, Health: j.Health}
	if err := read.whole(); err != nil {
		return fmt.Errorf("change set: %w", err)
	}
	*c = read
	return nil
}

// whole returns an error if a change is about nothing, or about two objects.
func (c *ChangeSet) whole() error {
	for i, f := range c.Frontends {
		if !ofOne(f.Old, f.New, func(f *Frontend) FrontendKey { return f.Key }) {
			return fmt.Errorf("frontends[%d]: old and new are not of one frontend", i)
		}
	}
	for i, p := range c.Pools {
		if !ofOne(p.Old, p.New, func(p *Pool) PoolID { return p.ID }) {
			return fmt.Errorf("pools[%d]: old and new are not of one pool", i)
		}
	}
	for i, h := range c.Health {
		if !ofOne(h.Old, h.New, func(h *HealthCheck) Name { return h.Service }) {
			return fmt.Errorf("healthChecks[%d]: old and new are not of one service", i)
		}
	}
	return nil
}

// ofOne reports whether a change is about one object.
func ofOne[T any, K comparable](old, new *T, key func(*T) K) bool {
	if old == nil || new == nil {
		return old != new
	}
	return key(old) == key(new)
}

// ErrOtherTable says that a change set begins from another table than the one it is to change.
var ErrOtherTable = errors.New("the change set begins from another table")

// On returns the change set of a table that a change set that was read from JSON makes of it. It is
// [ErrOtherTable] if the table is not the one that the change set begins from, but for health
// checks, which no kernel holds; and an error if the changes do not lead where they should.
func (c *ChangeSet) On(t *Table) (*ChangeSet, error) {
	from, err := t.Fingerprint()
	if err != nil {
		return nil, err
	}
	if from != c.from {
		return nil, fmt.Errorf("%w: that of fingerprint %s, not %s", ErrOtherTable, c.from, from)
	}
	changed := t.Apply(c)
	to, err := changed.Fingerprint()
	if err != nil {
		return nil, err
	}
	if to != c.to {
		return nil, fmt.Errorf("the change set was changed: it leads to %s, not %s", to, c.to)
	}
	return Diff(t, changed), nil
}
