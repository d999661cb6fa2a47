package kernelspace

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/kernlb/kernlb/servicemodel"
)

// Store keeps the record of an instance: the table of the load balancers, and the identities of our
// load balancers. HNS has no place for either. A program that loses its record no longer knows its
// load balancers: see [Config.TakeOver].
type Store interface {
	// Load returns the last saved record, nil if there is none.
	Load() ([]byte, error)
	// Save replaces the record. A process that is killed during Save leaves the old or the new
	// record.
	Save(record []byte) error
}

// File is a [Store] in a file of this name. A missing folder is created.
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

// record is the content of a [Store], as JSON. A commit saves it twice. Before the first call to
// HNS it has the new table, and all places that the commit may change are pending. After the last
// call it has the load balancers.
type record struct {
	Layout int                 `json:"layout"`
	Table  *servicemodel.Table `json:"table"`
	// Placed are our load balancers.
	Placed map[servicemodel.FrontendKey]placed `json:"loadBalancers,omitempty"`
	// Pending are the places where an unfinished commit may have created load balancers.
	Pending []servicemodel.FrontendKey `json:"pending,omitempty"`
}

// layout is the number of this format. A record in a different format is discarded: the program
// then has lost its record.
const layout = 1

// placed is a load balancer in HNS.
type placed struct {
	ID string `json:"id"`
	// Sent is the request, and Got the answer of HNS. A reading compares HNS with Got, because HNS
	// may write values differently or fill in defaults.
	Sent LoadBalancer `json:"sent"`
	Got  LoadBalancer `json:"got"`
}
