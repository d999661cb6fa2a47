package servicemodel

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"time"
)

// JSON uses the names of the Go fields, with a lower-case first letter; docs/json.md lists them. An
// unknown field is an error: either it is misspelt, or ignoring it would lose a setting.

// strictly reads one JSON value, and refuses fields that into does not have. The error joins a
// *[FieldError] of the object what for each problem.
func strictly(what string, data []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	err := d.Decode(into)
	if err == nil {
		if _, err = d.Token(); err == io.EOF {
			return nil
		}
		return wrongJSON(what, "", "more than one JSON value")
	}

	problems := jsonProblems(data, reflect.TypeOf(into))
	if len(problems) == 0 {
		return wrongJSON(what, "", err.Error())
	}
	var all []error
	for _, p := range problems {
		p.Object = what
		all = append(all, p)
	}
	return errors.Join(all...)
}

// wrongJSON returns the problem of one field, in the form of strictly.
func wrongJSON(what, field, reason string) error {
	return errors.Join(&FieldError{Object: what, Field: field, Reason: reason})
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
func (f Frontend) MarshalJSON() ([]byte, error) {
	return json.Marshal(frontendJSON{(*frontendFields)(&f), duration(f.Affinity)})
}

// UnmarshalJSON is the inverse of MarshalJSON.
func (f *Frontend) UnmarshalJSON(data []byte) error {
	j := frontendJSON{frontendFields: &frontendFields{}}
	if err := strictly("frontend", data, &j); err != nil {
		return err
	}
	*f = Frontend(*j.frontendFields)
	f.Affinity = time.Duration(j.Affinity)
	return nil
}

// serviceJSON is a service with its times as text.
type serviceJSON struct {
	*serviceFields
	SlowStart duration `json:"slowStart,omitzero"`
}

type serviceFields Service

// MarshalJSON returns s with its slow start as text, such as "30s".
func (s Service) MarshalJSON() ([]byte, error) {
	return json.Marshal(serviceJSON{(*serviceFields)(&s), duration(s.SlowStart)})
}

// UnmarshalJSON is the inverse of MarshalJSON.
func (s *Service) UnmarshalJSON(data []byte) error {
	j := serviceJSON{serviceFields: &serviceFields{}}
	if err := strictly("service", data, &j); err != nil {
		return err
	}
	*s = Service(*j.serviceFields)
	s.SlowStart = time.Duration(j.SlowStart)
	return nil
}

// These types have the fields of the exported types, but not their methods.
type (
	endpointPlain          Endpoint
	nodePlain              Node
	nodePortAddressesPlain NodePortAddresses
	podDetectorPlain       PodDetector
	servicePortPlain       ServicePort
	loadBalancerIPPlain    LoadBalancerIP
	clientRulePlain        ClientRule
	masqueradePlain        Masquerade
	endpointPortPlain      EndpointPort
	rulesPlain             Rules
	poolPlain              Pool
	poolIDPlain            PoolID
	slotPlain              Slot
	healthCheckPlain       HealthCheck
	portNamePlain          PortName
	addrChangePlain        AddrChange
)

// UnmarshalJSON refuses unknown fields.
func (e *Endpoint) UnmarshalJSON(data []byte) error {
	return strictly("endpoint", data, (*endpointPlain)(e))
}

// UnmarshalJSON refuses unknown fields.
func (n *Node) UnmarshalJSON(data []byte) error {
	return strictly("node", data, (*nodePlain)(n))
}

// UnmarshalJSON refuses unknown fields.
func (n *NodePortAddresses) UnmarshalJSON(data []byte) error {
	return strictly("node port addresses", data, (*nodePortAddressesPlain)(n))
}

// UnmarshalJSON refuses unknown fields.
func (p *PodDetector) UnmarshalJSON(data []byte) error {
	return strictly("pod detector", data, (*podDetectorPlain)(p))
}

// UnmarshalJSON refuses unknown fields.
func (s *ServicePort) UnmarshalJSON(data []byte) error {
	return strictly("service port", data, (*servicePortPlain)(s))
}

// UnmarshalJSON refuses unknown fields.
func (c *ClientRule) UnmarshalJSON(data []byte) error {
	return strictly("client rule", data, (*clientRulePlain)(c))
}

// UnmarshalJSON refuses unknown fields.
func (l *LoadBalancerIP) UnmarshalJSON(data []byte) error {
	return strictly("load balancer IP", data, (*loadBalancerIPPlain)(l))
}

// UnmarshalJSON refuses unknown fields.
func (m *Masquerade) UnmarshalJSON(data []byte) error {
	return strictly("masquerade", data, (*masqueradePlain)(m))
}

// UnmarshalJSON refuses unknown fields.
func (e *EndpointPort) UnmarshalJSON(data []byte) error {
	return strictly("endpoint port", data, (*endpointPortPlain)(e))
}

// UnmarshalJSON refuses unknown fields.
func (r *Rules) UnmarshalJSON(data []byte) error {
	return strictly("rules", data, (*rulesPlain)(r))
}

// UnmarshalJSON refuses unknown fields.
func (p *Pool) UnmarshalJSON(data []byte) error {
	return strictly("pool", data, (*poolPlain)(p))
}

// UnmarshalJSON refuses unknown fields.
func (p *PoolID) UnmarshalJSON(data []byte) error {
	return strictly("pool ID", data, (*poolIDPlain)(p))
}

// UnmarshalJSON refuses unknown fields.
func (s *Slot) UnmarshalJSON(data []byte) error {
	return strictly("slot", data, (*slotPlain)(s))
}

// UnmarshalJSON refuses unknown fields.
func (h *HealthCheck) UnmarshalJSON(data []byte) error {
	return strictly("health check", data, (*healthCheckPlain)(h))
}

// UnmarshalJSON refuses unknown fields.
func (p *PortName) UnmarshalJSON(data []byte) error {
	return strictly("port name", data, (*portNamePlain)(p))
}

// UnmarshalJSON refuses unknown fields.
func (a *AddrChange) UnmarshalJSON(data []byte) error {
	return strictly("address", data, (*addrChangePlain)(a))
}

type changePlain[T any] Change[T]

// UnmarshalJSON refuses unknown fields.
func (c *Change[T]) UnmarshalJSON(data []byte) error {
	return strictly("change", data, (*changePlain[T])(c))
}

type stateJSON struct {
	Node      Node                   `json:"node"`
	Services  []*Service             `json:"services,omitempty"`
	Endpoints map[nameKey][]Endpoint `json:"endpoints,omitempty"`
}

// nameKey is a name as a key of a JSON object. No two nameKeys that were read are equal, so that a
// map can have both of two equal names.
type nameKey struct {
	Name
	read *byte
}

func (k *nameKey) UnmarshalText(text []byte) error {
	k.read = new(byte)
	return k.Name.UnmarshalText(text)
}

// MarshalJSON returns the node, the services in the order of their names, and the endpoints by
// service.
func (s State) MarshalJSON() ([]byte, error) {
	j := stateJSON{Node: *s.viewpoint(), Endpoints: map[nameKey][]Endpoint{}}
	for n, e := range s.entries.All() {
		if e.service != nil {
			j.Services = append(j.Services, e.service)
		}
		if len(e.endpoints) > 0 {
			j.Endpoints[nameKey{Name: n}] = cloneEndpoints(e.endpoints)
		}
	}

	return json.Marshal(j)
}

// UnmarshalJSON is the inverse of MarshalJSON. Services and endpoints that occur twice are errors.
// UnmarshalJSON does not validate the state: see [State.Validate].
func (s *State) UnmarshalJSON(data []byte) error {
	var j stateJSON
	if err := strictly("state", data, &j); err != nil {
		return err
	}
	read := State{}.WithNode(j.Node)
	for i, svc := range j.Services {
		if svc == nil || read.entries.At(svc.Name).service != nil {
			return wrongJSON("state", fmt.Sprintf("services[%d]", i), "is null or occurs twice")
		}
		read = read.WithService(svc)
	}

	seen := map[Name]bool{}
	var twice []Name
	for k, eps := range j.Endpoints {
		if seen[k.Name] {
			twice = append(twice, k.Name)
		}
		seen[k.Name], read = true, read.WithEndpoints(k.Name, eps)
	}

	if len(twice) > 0 {
		return wrongJSON("state", "endpoints["+slices.MinFunc(twice, Name.Compare).String()+"]",
			"occurs twice")
	}
	*s = read
	return nil
}

type tableJSON struct {
	Contents
	HealthChecks []HealthCheck `json:"healthChecks,omitempty"`
}

// MarshalJSON returns all contents of the table, each kind of objects in the order of their keys.
func (t Table) MarshalJSON() ([]byte, error) {
	return json.Marshal(tableJSON{t.Contents(), slices.Collect(t.HealthChecks())})
}

// UnmarshalJSON is the inverse of MarshalJSON. The table has no conflicts.
func (t *Table) UnmarshalJSON(data []byte) error {
	var j tableJSON
	if err := strictly("table", data, &j); err != nil {
		return err
	}
	read, err := NewTable(j.Contents)
	if err != nil {
		return err
	}
	for _, h := range j.HealthChecks {
		read.health = read.health.Set(h.Service, &h)
	}
	*t = *read
	return nil
}

// fingerprint returns a hash of the table without its health checks. Equal tables ([Table.Equal])
// have equal fingerprints. It costs as much as encoding the table.
func (t *Table) fingerprint() (string, error) {
	text, err := json.Marshal(t.Contents())
	if err != nil {
		return "", fmt.Errorf("fingerprint of a table: %w", err)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16]), nil
}

type changeSetJSON struct {
	From string `json:"from"` // the fingerprint of the table before the change
	To   string `json:"to"`   // the fingerprint of the table after the change
	*changeSetFields
}

type changeSetFields ChangeSet

// MarshalJSON returns the changes, and fingerprints instead of the tables. It costs as much as
// encoding both tables. It includes all health checks of the new table, because the process that
// reads the output starts from a table without health checks.
func (c ChangeSet) MarshalJSON() ([]byte, error) {
	stored, err := c.stored()
	if err != nil {
		return nil, err
	}
	return json.Marshal(changeSetJSON{stored.from, stored.to, (*changeSetFields)(&stored)})
}

// stored returns c as it is stored, with fingerprints and with all health checks.
func (c ChangeSet) stored() (stored ChangeSet, err error) {
	if c.from != "" {
		return c, nil
	}
	stored = c
	if stored.from, err = c.Old.fingerprint(); err != nil {
		return stored, err
	}
	if stored.to, err = c.New.fingerprint(); err != nil {
		return stored, err
	}
	stored.Health = nil
	for h := range c.New.HealthChecks() {
		stored.Health = append(stored.Health, Change[HealthCheck]{New: &h})
	}
	for _, h := range c.Health {
		if h.New == nil {
			stored.Health = append(stored.Health, h)
		}
	}
	return stored, nil
}

// UnmarshalJSON reads the output of MarshalJSON. The result lacks the tables: [ChangeSet.On] adds
// them.
func (c *ChangeSet) UnmarshalJSON(data []byte) error {
	j := changeSetJSON{changeSetFields: &changeSetFields{}}
	if err := strictly("change set", data, &j); err != nil {
		return err
	}
	read := ChangeSet(*j.changeSetFields)
	read.from, read.to = j.From, j.To
	if err := read.whole(); err != nil {
		return fmt.Errorf("change set: %w", err)
	}
	*c = read
	return nil
}

// whole returns an error if a change has neither an old nor a new object, or if the two have
// different keys.
func (c *ChangeSet) whole() error {
	if c.Rules != nil && (c.Rules.Old == nil || c.Rules.New == nil) {
		return errors.New("rules: old or new is missing")
	}
	return cmp.Or(whole("frontends", "frontend", c.Frontends, frontendKey),
		whole("pools", "pool", c.Pools, poolKey),
		whole("healthChecks", "service", c.Health, healthKey))
}

func whole[T any, K comparable](list, object string, changes []Change[T], key func(*T) K) error {
	for i, c := range changes {
		if c.Old == nil && c.New == nil ||
			c.Old != nil && c.New != nil && key(c.Old) != key(c.New) {
			return fmt.Errorf("%s[%d]: old and new are not of one %s", list, i, object)
		}
	}

	return nil
}

// ErrOtherTable says that a change set does not start from the table given to [ChangeSet.On].
var ErrOtherTable = errors.New("the change set begins from another table")

// On adds the tables to a change set that starts from t, and usually was read from JSON. It returns
// [ErrOtherTable] if the change set starts from a different table. Health checks are not compared,
// because the kernel does not store them: the result removes those health checks of t that the
// change set lacks. On returns a different error if the changes do not lead to the recorded
// fingerprint.
func (c *ChangeSet) On(t *Table) (*ChangeSet, error) {
	all, err := c.orEmpty().stored()
	if err != nil {
		return nil, err
	}
	from, err := t.fingerprint()
	if err != nil {
		return nil, err
	}
	if from != all.from {
		return nil, fmt.Errorf("%w: with fingerprint %s, not %s", ErrOtherTable, all.from, from)
	}
	wanted := map[Name]bool{}
	all.Health = slices.Clone(all.Health)
	for _, h := range all.Health {
		if h.New != nil {
			wanted[h.New.Service] = true
		}
	}

	for h := range t.HealthChecks() {
		if !wanted[h.Service] {
			all.Health = append(all.Health, Change[HealthCheck]{Old: &h})
		}
	}

	changed := t.Apply(&all)
	to, err := changed.fingerprint()
	if err != nil {
		return nil, err
	}
	if to != all.to {
		return nil, fmt.Errorf("the change set was changed: it leads to %s, not %s", to, all.to)
	}
	return Diff(t, changed), nil
}
