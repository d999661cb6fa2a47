package kernelspace

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/servicemodel"
)

// Observe reads the record, the network with its endpoints, and all load balancers. The table has a
// frontend of the record if its load balancers are right for the endpoints that the network has
// now. All other objects of ours are drift. The hint is not used.
func (b *Backend) Observe(ctx context.Context, _ *servicemodel.Table) (*dataplane.Observation,
	error) {
	if err := b.enter(ctx, "observe"); err != nil {
		return nil, err
	}
	defer b.mu.Unlock()
	b.held = nil
	h, r, err := b.read()
	if err != nil {
		return nil, err
	}
	o, err := b.adopt(h, r)
	if err != nil {
		return nil, err
	}
	b.held = h
	return o, nil
}

// read asks for everything, and tells our load balancers from other programs'.
func (b *Backend) read() (*held, *record, error) {
	raw, r, err := load(b.cfg.Store)
	if err != nil {
		return nil, nil, err
	}
	ids, _, err := b.hns.IDs()
	if err != nil {
		return nil, nil, fmt.Errorf("%s: list identities: %w", Name, err)
	}
	v, err := b.look(ids)
	if err != nil {
		return nil, nil, err
	}
	lbs, err := b.hns.LoadBalancers()
	if err != nil {
		return nil, nil, fmt.Errorf("%s: list load balancers: %w", Name, interrupted(err))
	}
	h := &held{raw: raw, view: v, placed: map[servicemodel.FrontendKey]placed{},
		foreign: map[servicemodel.FrontendKey]string{}, seen: map[string]bool{},
		needs: map[netip.Addr]bool{}}
	ours := map[string]placed{}
	for _, p := range r.Placed {
		ours[lower(p.ID)] = p
	}
	pending := map[servicemodel.FrontendKey]bool{}
	for _, k := range r.Pending {
		pending[k] = true
	}
	for i := range lbs {
		h.tell(&lbs[i], ours, pending)
	}
	return h, &r, nil
}

// interrupted makes a conflict of an object that is gone. HNS lists identities, and asks for each
// object after that.
func interrupted(err error) error {
	if errors.Is(err, ErrNotFound) {
		err = fmt.Errorf("%w: %w", err, dataplane.ErrConflict)
	}
	return err
}

// tell finds out whose load balancer lb is. Ours have an identity of the record, or stand at a
// place that is pending: no other program had one there when the commit began, and HNS has only one
// at each place.
func (h *held) tell(lb *LoadBalancer, ours map[string]placed,
	pending map[servicemodel.FrontendKey]bool) {
	h.seen[lower(lb.ID)] = true
	k, ok := lb.Key()
	p, known := ours[lower(lb.ID)]
	switch {
	case known && p.Key == k && !pending[k] && lb.same(&p.Got):
		h.placed[k] = p
	case known && !ok, known && h.placed[k].ID != "":
		h.extra = append(h.extra, lb.ID)
	case known || pending[k]:
		h.placed[k] = placed{Key: k, ID: lb.ID} // its content is not what was sent
	case ok:
		h.foreign[k] = lb.ID
	}
}

// adopt compares the record with what HNS has.
func (b *Backend) adopt(h *held, r *record) (*dataplane.Observation, error) {
	all, err := servicemodel.NewTable(r.Table)
	if err != nil {
		return nil, fmt.Errorf("%s: the record: %w", Name, err)
	}
	gateway, here := b.gateway(h.view), hairpins(all)
	o := &dataplane.Observation{}
	explained, used := map[servicemodel.FrontendKey]bool{}, map[servicemodel.PoolID]bool{}
	c := r.Table
	c.Frontends, c.Pools = nil, nil
	for _, f := range r.Table.Frontends {
		right := true
		for _, s := range b.specs(all, f, here, r.Health) {
			for _, a := range b.host.needs(s, h.view) {
				h.needs[a] = true
			}
			explained[s.key] = true
			right = b.inPlace(h, s, gateway) && right
		}
		if right {
			c.Frontends = append(c.Frontends, f)
			for _, v := range [...]servicemodel.Verdict{f.Internal, f.External} {
				if id, ok := f.Pool(v); ok {
					used[id] = true
				}
			}
		}
	}
	for _, p := range r.Table.Pools {
		if used[p.ID] {
			c.Pools = append(c.Pools, p)
		}
	}
	if h.table, err = servicemodel.NewTable(c); err != nil {
		return nil, fmt.Errorf("%s: the record: %w", Name, err)
	}
	for k := range h.placed {
		if !explained[k] {
			o.Drift = append(o.Drift, "load balancer "+k.String())
		}
	}
	for a, e := range h.view.byAddr {
		if b.unused(e, h.needs[a]) {
			o.Drift = append(o.Drift, "endpoint "+a.String())
		}
	}
	for _, id := range h.view.doubles {
		o.Drift = append(o.Drift, "endpoint "+id+", which another one has the address of")
	}
	slices.Sort(o.Drift)
	o.Table = h.table
	return o, nil
}

// specs returns the load balancers of a frontend.
func (b *Backend) specs(t *servicemodel.Table, f *servicemodel.Frontend,
	here map[netip.Addr]bool, health map[string]uint16) (l []*spec) {
	if s := b.renderer.render(t, f, here); s != nil {
		l = append(l, s)
	}
	if s := b.renderer.health(t, f, health[f.Service.Name.String()]); s != nil {
		l = append(l, s)
	}
	return l
}

// gateway returns the root endpoint of the node, nil if there is none or none is needed.
func (b *Backend) gateway(v *view) *Endpoint {
	if !b.renderer.forward {
		return nil
	}
	for _, e := range v.byAddr {
		if e.Name == b.cfg.RootEndpoint {
			return e
		}
	}
	return nil
}

// inPlace reports whether HNS has the load balancer of s.
func (b *Backend) inPlace(h *held, s *spec, gateway *Endpoint) bool {
	lb, lacks, _ := b.host.build(s, h.view, gateway)
	p, there := h.placed[s.key]
	if lb == nil {
		return !there
	}
	return len(lacks) == 0 && there && lb.same(&p.Sent)
}

// hairpins returns the addresses of endpoints that are, or may be, on this node.
func hairpins(t *servicemodel.Table) map[netip.Addr]bool {
	here := map[netip.Addr]bool{}
	for a := range t.Hairpins() {
		here[a] = true
	}
	return here
}

// needs returns the addresses whose endpoints a load balancer needs.
func (h *host) needs(s *spec, v *view) (l []netip.Addr) {
	for _, t := range s.endpoints {
		l = append(l, t.addr)
	}
	if v.overlay {
		l = append(l, h.sourceVIP)
		if s.vip {
			l = append(l, s.key.Addr)
		}
	}
	return l
}

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
