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
	"github.com/kernlb/kernlb/internal/nftwire"
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
	for i, f := range nftwire.Families {
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
	if _, err := b.Observe(ctx, nil); err != nil {
		return dataplane.Stats{}, err
	}
	b.observed = false
	b.batch.Reset()
	for i, f := range nftwire.Families {
		if b.exists[i] {
			nftwire.NewEncoder(&b.batch, f, b.cfg.Table).DeleteTable()
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
