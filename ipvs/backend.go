package ipvs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/nfnl"
	"github.com/kernlb/kernlb/servicemodel"
)

var (
	_ dataplane.Backend = (*Backend)(nil)
	_ dataplane.Settler = (*Backend)(nil)
)

var errNotObserved = errors.New("ipvs: the kernel was not observed since the backend was opened or a commit failed")

// Backend keeps the services of one instance in IPVS. Its methods must not be called at the same time.
type Backend struct {
	cfg      Config
	instance uint32
	vs       *ipvsnl.Client
	nf       *nfnl.Conn
	net      network
	batch    nfnl.Batch

	// What the kernel holds; valid only if observed.
	observed bool
	gen      uint32
	table    *servicemodel.Table
	held     map[ipvsnl.ServiceKey]*server
	foreign  map[ipvsnl.ServiceKey]bool
	owned    map[servicemodel.FrontendKey][]ipvsnl.ServiceKey
	records  map[servicemodel.FrontendKey]*record
	marks    map[uint32]bool // that cannot be given to a frontend
	exists   [2]bool         // the companion table is there
	whole    [2]bool         // and as it should be
	addrs    []netip.Addr    // that have node ports
	found    addresses
	device   device
	sysctls  map[string]string // what those were that this instance has set
	settled  bool              // the rule, the route and the sysctls are as they should be
	dirty    map[servicemodel.FrontendKey]bool
	stale    []ipvsnl.ServiceKey
	leaving  map[drainKey]time.Time // when a destination began to drain
}

// errMoved says that an address is not where it was found.
var errMoved = errors.New("it was moved meanwhile")

type drainKey struct {
	svc  ipvsnl.ServiceKey
	dest ipvsnl.DestinationKey
}

// New opens a backend. Errors that wrap fs.ErrPermission say that privileges are missing; those that wrap errors.ErrUnsupported, that this is not Linux
// or that the kernel has no IPVS.
func New(cfg *Config) (*Backend, error) {
	c, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	b := &Backend{cfg: c, instance: instanceFlag(c.Table), leaving: map[drainKey]time.Time{}, sysctls: map[string]string{}}
	b.vs, err = ipvsnl.Dial(context.Background(), &ipvsnl.Config{NetNS: c.NetNS})
	if errors.Is(err, ipvsnl.ErrNotSupported) {
		err = fmt.Errorf("%w: %w", err, errors.ErrUnsupported)
	}
	if err == nil {
		b.nf, err = nfnl.Dial(&nfnl.Config{NetNS: c.NetNS})
	}
	if err == nil {
		err = b.net.open(&c, b.instance)
	}
	if err != nil {
		b.Close()
		return nil, fmt.Errorf("ipvs: open: %w", err)
	}
	return b, nil
}

// Name returns "ipvs".
func (b *Backend) Name() string { return Name }

// Check reports what IPVS cannot express: the scheduler random, direct routing and tunnels to other ports, source ranges of node ports, localhost node ports,
// names that do not fit into a comment.
func (b *Backend) Check(c *servicemodel.ChangeSet) error { return check(c) }

// Plan renders what Commit would send.
func (b *Backend) Plan(c *servicemodel.ChangeSet) (dataplane.Plan, error) {
	if !b.observed {
		return nil, errNotObserved
	}
	return b.plan(c)
}

// Integrity compares the generation of the ruleset, the node's addresses and the device with those known, and looks for one of our virtual servers.
func (b *Backend) Integrity(ctx context.Context) (dataplane.Integrity, error) {
	if !b.observed {
		return dataplane.Broken, nil
	}
	if b.net.changed() {
		found, err := b.net.addresses()
		if err != nil {
			return dataplane.Broken, fmt.Errorf("ipvs: integrity: %w", err)
		}
		if !found.equal(&b.found) {
			return dataplane.Broken, nil
		}
	}
	for k := range b.held { // any of them: what empties IPVS takes all
		_, err := b.vs.Service(ctx, k)
		if errors.Is(err, ipvsnl.ErrNoService) {
			return dataplane.Broken, nil
		}
		if err != nil {
			return dataplane.Broken, fmt.Errorf("ipvs: integrity: %w", err)
		}
		break
	}
	gen, err := b.nf.GenID(ctx)
	if err != nil {
		return dataplane.Broken, fmt.Errorf("ipvs: integrity: %w", err)
	}
	if gen.ID == b.gen {
		return dataplane.Intact, nil
	}
	for i, f := range families {
		there, err := b.tableExists(ctx, f)
		if err != nil {
			return dataplane.Broken, fmt.Errorf("ipvs: integrity: %w", err)
		}
		if there != b.exists[i] {
			return dataplane.Broken, nil
		}
	}
	b.gen = gen.ID
	return dataplane.Touched, nil
}

// Commit writes a change set: first what adds to IPVS, then the companion tables, each in one transaction, then what takes away from IPVS. Addresses are
// released before the companion tables are written, and bound after.
func (b *Backend) Commit(ctx context.Context, c *servicemodel.ChangeSet) (dataplane.Stats, error) {
	start := time.Now()
	if !b.observed {
		return dataplane.Stats{}, errNotObserved
	}
	p, err := b.plan(c)
	if err != nil {
		return dataplane.Stats{}, err
	}
	if p, err = b.prepare(p, c); err != nil {
		return dataplane.Stats{}, b.failed("prepare", err)
	}
	stats := p.Stats()
	if err := b.submit(ctx, p.up); err != nil {
		return dataplane.Stats{}, b.failed("add virtual servers", err)
	}
	if err := b.release(&p.device); err != nil {
		return dataplane.Stats{}, b.failed("release addresses", err)
	}
	b.batch.Reset()
	p.encode(&b.batch)
	if b.batch.Len() > 0 {
		if err := b.nf.Commit(ctx, &b.batch, b.gen); err != nil {
			return dataplane.Stats{}, b.failed("commit the companion tables", err)
		}
		b.gen = nfnl.NextGenID(b.gen)
	}
	for _, a := range p.device.bind {
		if err := b.net.bind(a); err != nil {
			return dataplane.Stats{}, b.failed("bind addresses", err)
		}
	}
	if err := b.submit(ctx, p.down); err != nil {
		return dataplane.Stats{}, b.failed("take away from virtual servers", err)
	}
	b.committed(p, c)
	stats.Duration = time.Since(start)
	b.cfg.Logger.Debug("committed", "backend", Name, "table", b.cfg.Table, "messages", stats.Messages, "bytes", stats.Bytes, "duration", stats.Duration)
	return stats, nil
}

// prepare makes the device, and settles the rule, the route and the sysctls. What sysctls were goes into the companion tables; if that is news to them, they are
// written anew, by the plan that it returns.
func (b *Backend) prepare(p *plan, c *servicemodel.ChangeSet) (*plan, error) {
	if p.device.add || p.device.up {
		if err := b.net.makeDevice(); err != nil {
			return nil, err
		}
	}
	if b.settled {
		return p, nil
	}
	before := maps.Clone(b.sysctls)
	if err := b.net.prepare(b.sysctls); err != nil {
		return nil, err
	}
	b.settled = true
	if maps.Equal(before, b.sysctls) {
		return p, nil
	}
	b.whole = [2]bool{}
	return b.plan(c)
}

// release takes addresses and devices away.
func (b *Backend) release(d *devicePlan) error {
	for _, h := range d.release {
		if err := b.net.release(h); err != nil {
			return err
		}
	}
	for _, name := range d.remove {
		if err := b.net.removeDevice(name); err != nil {
			return err
		}
	}
	return nil
}

// submit sends commands to IPVS.
func (b *Backend) submit(ctx context.Context, ops []op) error {
	if len(ops) == 0 {
		return nil
	}
	var batch ipvsnl.Batch
	for _, o := range ops {
		switch o.cmd {
		case ipvsnl.CommandNewService:
			batch.NewService(o.svc)
		case ipvsnl.CommandSetService:
			batch.SetService(o.svc)
		case ipvsnl.CommandDelService:
			batch.DelService(o.svc.ServiceKey)
		case ipvsnl.CommandNewDestination:
			batch.NewDestination(o.svc.ServiceKey, o.dest)
		case ipvsnl.CommandSetDestination:
			batch.SetDestination(o.svc.ServiceKey, o.dest)
		case ipvsnl.CommandDelDestination:
			batch.DelDestination(o.svc.ServiceKey, o.dest.DestinationKey)
		}
	}
	return b.vs.Submit(ctx, &batch)
}

// failed wraps an error after which the kernel must be observed again.
func (b *Backend) failed(doing string, err error) error {
	b.observed = false
	for _, conflict := range []error{nfnl.ErrGenerationChanged, ipvsnl.ErrExists, ipvsnl.ErrNoService, ipvsnl.ErrNoDestination, errMoved} {
		if errors.Is(err, conflict) {
			return fmt.Errorf("ipvs: %s: %w: %w", doing, dataplane.ErrConflict, err)
		}
	}
	return fmt.Errorf("ipvs: %s: %w", doing, err)
}

// committed remembers what the kernel holds after a plan.
func (b *Backend) committed(p *plan, c *servicemodel.ChangeSet) {
	now, given := time.Now(), map[uint32]bool{}
	for k, s := range p.servers {
		if s == nil {
			delete(b.held, k)
			continue
		}
		b.held[k] = s
		b.noteLeaving(k, s, now)
	}
	for k, l := range p.owned {
		if l == nil {
			delete(b.owned, k)
		} else {
			b.owned[k] = l
		}
	}
	for k, r := range p.records {
		if was := b.records[k]; was != nil {
			delete(b.marks, was.mark)
		}
		if r == nil {
			delete(b.records, k)
			continue
		}
		b.records[k] = r
		given[r.mark] = r.mark != 0
	}
	for m, is := range given {
		if is {
			b.marks[m] = true
		}
	}
	for i := range p.tables {
		if p.tables[i].create {
			b.exists[i], b.whole[i] = true, true
		}
	}
	b.bound(&p.device, b.net.index)
	b.table, b.addrs, b.dirty, b.stale = c.New, p.addrs, nil, nil
}

// noteLeaving begins the limit of each destination that drains, and ends that of each that came back.
func (b *Backend) noteLeaving(k ipvsnl.ServiceKey, s *server, now time.Time) {
	for d, dest := range s.dests {
		dk := drainKey{k, d}
		if dest.Weight != 0 {
			delete(b.leaving, dk)
		} else if _, ok := b.leaving[dk]; !ok {
			b.leaving[dk] = now
		}
	}
}

const drainLook = 2 * time.Second

// Settle deletes the destinations that have drained or may no longer be waited for.
func (b *Backend) Settle(ctx context.Context) (time.Duration, error) {
	if !b.observed || len(b.leaving) == 0 {
		return 0, nil
	}
	by := map[ipvsnl.ServiceKey][]ipvsnl.DestinationKey{}
	for dk := range b.leaving {
		if s := b.held[dk.svc]; s == nil || s.dests[dk.dest].Weight != 0 {
			delete(b.leaving, dk)
			continue
		}
		by[dk.svc] = append(by[dk.svc], dk.dest)
	}
	var ops []op
	for _, k := range slices.SortedFunc(maps.Keys(by), ipvsnl.ServiceKey.Compare) {
		list, err := b.vs.Destinations(ctx, k)
		if err != nil {
			return 0, b.failed("drain", err)
		}
		for _, d := range list {
			late := time.Since(b.leaving[drainKey{k, d.DestinationKey}]) >= b.cfg.DrainLimit
			if slices.Contains(by[k], d.DestinationKey) && d.Weight == 0 && (late || d.ActiveConns+d.InactiveConns == 0) {
				ops = append(ops, op{ipvsnl.CommandDelDestination, ipvsnl.Service{ServiceKey: k}, d.Destination})
			}
		}
	}
	if err := b.submit(ctx, ops); err != nil {
		return 0, b.failed("drain", err)
	}
	for _, o := range ops {
		delete(b.held[o.svc.ServiceKey].dests, o.dest.DestinationKey)
		delete(b.leaving, drainKey{o.svc.ServiceKey, o.dest.DestinationKey})
	}
	if len(b.leaving) == 0 {
		return 0, nil
	}
	return drainLook, nil
}

// cleanDevices removes the devices that the instance made, and its addresses on others.
func (b *Backend) cleanDevices() error {
	made, err := b.net.made()
	if err != nil {
		return err
	}
	d := devicePlan{remove: made}
	for _, h := range b.found.holding {
		if !slices.Contains(made, h.dev) {
			d.release = append(d.release, h)
		}
	}
	return b.release(&d)
}

// Cleanup removes the virtual servers and companion tables of the instance, its route and rule, its device and addresses, and restores sysctls.
func (b *Backend) Cleanup(ctx context.Context) (dataplane.Stats, error) {
	start := time.Now()
	if _, err := b.Observe(ctx); err != nil {
		return dataplane.Stats{}, err
	}
	b.observed = false
	b.batch.Reset()
	for i, f := range families {
		if b.exists[i] {
			(&encoder{b: &b.batch, f: f, table: b.cfg.Table}).delTable()
		}
	}
	var ops []op
	for _, k := range slices.SortedFunc(maps.Keys(b.held), ipvsnl.ServiceKey.Compare) {
		ops = append(ops, op{cmd: ipvsnl.CommandDelService, svc: ipvsnl.Service{ServiceKey: k}})
	}
	stats := dataplane.Stats{Messages: b.batch.Len() + len(ops), Elements: len(ops)}
	if err := b.nf.Commit(ctx, &b.batch, 0); err != nil {
		return dataplane.Stats{}, b.failed("cleanup", err)
	}
	if err := b.submit(ctx, ops); err != nil {
		return dataplane.Stats{}, b.failed("cleanup", err)
	}
	if err := b.cleanDevices(); err != nil {
		return dataplane.Stats{}, b.failed("cleanup", err)
	}
	if err := b.net.restore(b.sysctls); err != nil {
		return dataplane.Stats{}, b.failed("cleanup", err)
	}
	clear(b.leaving)
	clear(b.sysctls)
	stats.Duration = time.Since(start)
	return stats, nil
}

// Close releases sockets and leaves the kernel as it is.
func (b *Backend) Close() error {
	var errs []error
	if b.vs != nil {
		errs = append(errs, b.vs.Close())
	}
	if b.nf != nil {
		errs = append(errs, b.nf.Close())
	}
	return errors.Join(append(errs, b.net.close())...)
}
