package ipvs

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/nfnl"
	"github.com/kernlb/kernlb/internal/ration"
	"github.com/kernlb/kernlb/servicemodel"
)

var (
	_ dataplane.Backend = (*Backend)(nil)
	_ dataplane.Settler = (*Backend)(nil)
)

var errNotObserved = errors.New(
	"ipvs: the kernel was not observed since the backend was opened or a commit failed")

// Backend keeps the services of one instance in IPVS. Its methods must not be called at the same
// time.
type Backend struct {
	cfg      Config
	instance uint32
	vs       *ipvsnl.Client
	nf       *nfnl.Conn
	net      network
	batch    nfnl.Batch

	// What the kernel holds; valid only if observed.
	observed bool
	gen      uint32 // of the ruleset, when the companion was known to be as it is here
	comp     companion
	table    *servicemodel.Table
	held     map[ipvsnl.ServiceKey]*server
	foreign  map[ipvsnl.ServiceKey]bool
	owned    map[servicemodel.FrontendKey][]ipvsnl.ServiceKey
	marks    map[uint32]bool // that cannot be given to a frontend
	found    addresses
	device   device
	sysctls  sysctls
	settled  bool // the rule, the route and the sysctls are as they should be
	dirty    map[servicemodel.FrontendKey]bool
	stale    []ipvsnl.ServiceKey
	leaving  map[drainKey]time.Time // when a destination began to drain
	looks    ration.Ration          // at the companion tables, for what was changed by hand
}

// errMoved says that an address is not where it was found.
var errMoved = errors.New("it was moved meanwhile")

type drainKey struct {
	svc  ipvsnl.ServiceKey
	dest ipvsnl.DestinationKey
}

// New opens a backend. Errors that wrap fs.ErrPermission say that privileges are missing; those
// that wrap errors.ErrUnsupported, that this is not Linux or that the kernel has no IPVS.
func New(cfg *Config) (*Backend, error) {
	c, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	b := newBackend(c)
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

func newBackend(c Config) *Backend {
	return &Backend{cfg: c, instance: instanceFlag(c.Table), comp: newCompanion(),
		leaving: map[drainKey]time.Time{},
		sysctls: sysctls{wanted: wantedSysctls(c.StrictARP)}, looks: ration.New(8, 20)}
}

// Name returns "ipvs".
func (b *Backend) Name() string { return Name }

// Plan renders what Commit would send.
func (b *Backend) Plan(c *servicemodel.ChangeSet) (dataplane.Plan, error) {
	if !b.observed {
		return nil, errNotObserved
	}
	return b.plan(c), nil
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
