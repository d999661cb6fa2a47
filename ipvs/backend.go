package ipvs

import (
	"errors"
	"fmt"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/ration"
	"github.com/kernlb/kernlb/servicemodel"
)

var (
	_ dataplane.Backend = (*Backend)(nil)
	_ dataplane.Settler = (*Backend)(nil)
	_ dataplane.Locker  = (*Backend)(nil)
	_ dataplane.Watcher = (*Backend)(nil)
)

// errNotObserved says that the engine's contract was broken: nothing is known of the kernel.
var errNotObserved = errors.New(
	"ipvs: the kernel was not observed since the backend was opened or a commit failed")

// Backend keeps the services of one instance in IPVS. Its methods must not be called at the same
// time, apart from Watch.
type Backend struct {
	kernel kernel
	cfg    Config
	pl     planner
	// observed says that what pl has is what the kernel holds.
	observed bool
	draining draining
	// looks rations the looks at the companion tables for changes by hand.
	looks ration.Ration
}

// New opens a backend. Errors that wrap fs.ErrPermission say that privileges are missing; those
// that wrap errors.ErrUnsupported, that this is not Linux or that the kernel has no IPVS.
func New(cfg *Config) (*Backend, error) {
	c, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	b := newBackend(c)
	if err := b.kernel.open(&c); err != nil {
		return nil, fmt.Errorf("ipvs: open: %w", err)
	}
	return b, nil
}

func newBackend(c Config) *Backend {
	return &Backend{cfg: c, pl: newPlanner(c), draining: draining{}, looks: ration.New(8, 20)}
}

// Name returns "ipvs".
func (b *Backend) Name() string { return Name }

// Check reports what IPVS cannot express: the scheduler random, direct routing and tunnels to other
// ports, source ranges of node ports, localhost node ports; and, once the kernel was observed, the
// virtual servers of others that are where those of a service must be.
func (b *Backend) Check(c *servicemodel.ChangeSet) error {
	return errors.Join(check(c), b.pl.collisions(c))
}

// Plan renders what Commit would send.
func (b *Backend) Plan(c *servicemodel.ChangeSet) (dataplane.Plan, error) {
	if !b.observed {
		return nil, errNotObserved
	}
	return b.pl.plan(c), nil
}

// committed remembers what the kernel holds after a plan; ifindex is that of the device.
func (b *Backend) committed(p *plan, ifindex int) {
	now := time.Now()
	for k, s := range p.servers {
		if s != nil {
			b.draining.note(k, s, now)
		}
	}
	b.pl.have.committed(p, ifindex)
}

// committed makes an observation that of the kernel after a plan; ifindex is that of the device.
func (o *observed) committed(p *plan, ifindex int) {
	for k, s := range p.servers {
		if s == nil {
			delete(o.servers, k)
			continue
		}
		o.servers[k] = s
	}
	for k, l := range p.owned {
		if l == nil {
			delete(o.index.owned, k)
		} else {
			o.index.owned[k] = l
		}
	}
	o.committedRecords(p)
	if v := p.versions[stageEnd]; v.exists {
		o.companion.version = v
	}
	o.companion.exists, o.companion.whole = [2]bool{true, true}, [2]bool{true, true}
	o.companion.addrs, o.companion.tunables = p.addrs, p.tunables
	o.committedDevice(&p.device, ifindex)
	o.unrouted = nil
	for _, t := range p.network.set {
		o.tunables[t.name] = t.value
	}
	o.damage = damage{}
	if p.next != nil {
		o.table = p.next
	}
}

// committedRecords notes the records of a plan, and which marks they have.
func (o *observed) committedRecords(p *plan) {
	records, marks := o.companion.records, o.index.marks
	for k := range p.records {
		if was := records[k]; was != nil {
			delete(marks, was.mark)
		}
	}
	for k, r := range p.records {
		if r == nil {
			delete(records, k)
			continue
		}
		records[k] = r
		if r.mark != 0 {
			marks[r.mark] = true
		}
	}
}

// deleteDrained notes that destinations were deleted.
func (b *Backend) deleteDrained(p *plan) {
	for _, o := range p.down {
		delete(b.pl.have.servers[o.svc.ServiceKey].dests, o.dest.DestinationKey)
		delete(b.draining, drainKey{o.svc.ServiceKey, o.dest.DestinationKey})
	}
	b.pl.have.companion.version = p.versions[stageEnd]
}
