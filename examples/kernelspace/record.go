package kernelspace

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/kernlb/kernlb/servicemodel"
)

// Store keeps the record of an instance: the table that the load balancers mean, and which load
// balancers are ours. HNS has no place for either. A program that loses its record no longer knows
// its load balancers: see [Config.TakeOver].
type Store interface {
	// Load returns the last saved record, nil if there is none.
	Load() ([]byte, error)
	// Save replaces the record. A process that is killed meanwhile leaves the old one or the new.
	Save(record []byte) error
}

// File is a [Store] in a file of this name. Its folder is made if it is missing.
type File string

// Load reads the file.
func (f File) Load() ([]byte, error) {
	b, err := os.ReadFile(string(f))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return b, err
}

// Save writes another file and renames it. A nil record removes the file.
func (f File) Save(record []byte) error {
	name := string(f)
	if record == nil {
		if err := os.Remove(name); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return err
	}
	next, err := os.Create(name + ".new")
	if err != nil {
		return err
	}
	_, err = next.Write(record)
	if err = errors.Join(err, next.Sync(), next.Close()); err != nil {
		return err
	}
	return os.Rename(name+".new", name)
}

// Memory is a [Store] that lasts as long as the process.
type Memory struct {
	mu     sync.Mutex
	record []byte
}

// Load returns the record.
func (m *Memory) Load() ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.record, nil
}

// Save replaces the record.
func (m *Memory) Save(record []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.record = bytes.Clone(record)
	return nil
}

// record is what a [Store] keeps, as JSON. A commit saves it twice. Before the first call to HNS it
// has the new table, and all places that the commit may change are pending. After the last call it
// has the load balancers.
type record struct {
	Layout int                   `json:"layout"`
	Table  servicemodel.Contents `json:"table"`
	// Health are the health check node ports, by the name of the service.
	Health map[string]uint16 `json:"health,omitempty"`
	// Placed are our load balancers by the text of their keys.
	Placed map[string]placed `json:"loadBalancers,omitempty"`
	// Pending are the places where an unfinished commit may have made load balancers.
	Pending []servicemodel.FrontendKey `json:"pending,omitempty"`
}

// layout is the number of this format. A record of another format is discarded: the program then
// has lost its record.
const layout = 1

// placed is a load balancer in HNS.
type placed struct {
	Key servicemodel.FrontendKey `json:"key"`
	ID  string                   `json:"id"`
	// Sent is what was sent, and Got what HNS made of it. A reading compares with Got, because HNS
	// may write values differently or fill in defaults.
	Sent LoadBalancer `json:"sent"`
	Got  LoadBalancer `json:"got"`
}

// load reads the record of a store. A record that cannot be understood counts as none.
func load(s Store) (raw []byte, r record, err error) {
	if raw, err = s.Load(); err != nil {
		return nil, r, fmt.Errorf("%s: load the record: %w", Name, err)
	}
	if len(raw) > 0 && (json.Unmarshal(raw, &r) != nil || r.Layout != layout) {
		r = record{}
	}
	return raw, r, nil
}

// contents returns the contents of a table.
func contents(t *servicemodel.Table) servicemodel.Contents {
	return servicemodel.Contents{Rules: t.Rules(), Frontends: slices.Collect(t.Frontends()),
		Pools: slices.Collect(t.Pools()), ClusterIPs: slices.Collect(t.ClusterIPs()),
		Hairpins: slices.Collect(t.Hairpins())}
}

// healthPorts returns the health check node ports of a table.
func healthPorts(t *servicemodel.Table) map[string]uint16 {
	m := map[string]uint16{}
	for h := range t.HealthChecks() {
		m[h.Service.String()] = h.Port
	}
	return m
}
