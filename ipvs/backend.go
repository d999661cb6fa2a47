package ipvs

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/netns"
	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/rendering"
	"github.com/kernlb/kernlb/internal/wait"
	"github.com/kernlb/kernlb/servicemodel"
)

// Name is the name of this backend.
const Name = "ipvs"

// defaultTable is the name of the companion tables if [Config.Table] is empty.
const defaultTable = "kernlb-ipvs"

// defaultDrainLimit limits the time for which TCP connections to a removed endpoint may drain if
// [Config.DrainLimit] is zero.
const defaultDrainLimit = 15 * time.Minute

// defaultCompareShare is the share of one CPU's time for the comparison of virtual servers if
// [Config.CompareShare] is zero.
const defaultCompareShare = 0.0008

// Config configures a backend. A nil *Config is the zero Config.
type Config struct {
	// NetNS names the network namespace of the services.
	NetNS netns.Namespace
	// Table is the name of the companion tables of nf_tables in the families ip and ip6, and
	// identifies the instance. Empty means "kernlb-ipvs". It starts with a letter and consists of
	// letters, digits, "_", "-" and ".", at most 63 characters.
	Table string
	// Scheduler is the scheduler, with its options, of services that do not request one. Empty
	// means "wrr": round robin, by weight.
	Scheduler servicemodel.Scheduler
	// DrainLimit limits the time for which a removed endpoint may keep its TCP connections. Zero
	// means 15 minutes; a negative value means that connections do not drain. When the program
	// restarts, this time starts over.
	DrainLimit time.Duration
	// AffinityMask4 and AffinityMask6 are the numbers of leading bits of a client's address that
	// identify the client for session affinity: clients with the same leading bits share an
	// endpoint. 1 to 32 and 1 to 128; zero means all bits. They have no effect if pods and the host
	// have separate endpoints.
	AffinityMask4, AffinityMask6 int
	// Device is the name of a dummy device that has the addresses of services: cluster IPs,
	// external IPs and load-balancer IPs. The backend creates the device if it does not exist. If
	// the kernel lacks the module dummy, the error is a [kernelerr.ErrMissingModule]. Empty, the
	// default, means no device; services do not need one. The package documentation describes what
	// a device changes.
	Device string
	// StrictARP prevents the node from answering ARP for the addresses of Device, on all links:
	// net.ipv4.conf.all.arp_ignore is set to 1 and arp_announce to 2. It requires Device: without a
	// device, the node never answers ARP for the addresses of services.
	StrictARP bool
	// TakeOver claims virtual servers of programs other than kernlb at addresses of services. They
	// keep their connections, and are changed in place. Use TakeOver to take over from kube-proxy's
	// ipvs mode. kube-proxy must have been stopped. While a scheduler is replaced, a virtual server
	// refuses new connections for an RCU grace period (ip_vs_edit_service in
	// net/netfilter/ipvs/ip_vs_ctl.c). This does not happen if Scheduler is the scheduler that they
	// already have, kube-proxy's "rr". By default, such virtual servers are not touched, and the
	// service is refused with a [backends.CollisionError].
	TakeOver bool
	// CompareShare is the share of one CPU's time, at most 1, that checks ([dataplane.RunOptions])
	// may use to compare virtual servers with those in the kernel, because the kernel does not
	// report changes. Zero means 0.0008. The package documentation says how soon a manual edit is
	// then noticed.
	CompareShare float64
	// Timeouts are the times for which IPVS keeps idle connections. Zero leaves a timeout
	// unchanged.
	Timeouts Timeouts
	// Mark is the lowest packet mark of the instance: 0xc0000000 or above, and a multiple of
	// 0x100000. All packets whose mark has the same twelve upper bits belong to the instance. Zero
	// means a mark derived from Table. Set Mark if the logger warns that another program uses these
	// marks.
	Mark uint32
	// Logger gets a debug record for each commit. It also gets a warning if policy rules of other
	// programs match the instance's marks, or precede the instance's own rule. Nil disables
	// logging.
	Logger *slog.Logger
}

// Timeouts are the times for which IPVS keeps idle connections, for all virtual servers of the
// network namespace. Each is a whole number of seconds; zero leaves a timeout unchanged. In a new
// namespace they are 15 minutes, 2 minutes and 5 minutes (net/netfilter/ipvs/ip_vs_proto_tcp.c,
// ip_vs_proto_udp.c).
type Timeouts struct {
	TCP    time.Duration // of established TCP connections
	TCPFin time.Duration // of TCP connections after a FIN
	UDP    time.Duration // of UDP flows
}

const maxDevice = 15 // IFNAMSIZ without the NUL (include/uapi/linux/if.h)

// inNames are the characters of names.
const inNames = rendering.Letters + rendering.Digits + "_.-"

// withDefaults checks the configuration and fills in defaults.
func (c *Config) withDefaults() (Config, error) {
	var r Config
	if c != nil {
		r = *c
	}
	r.Table = cmp.Or(r.Table, defaultTable)
	r.Scheduler = cmp.Or(r.Scheduler, servicemodel.WeightedRR)
	r.DrainLimit = cmp.Or(r.DrainLimit, defaultDrainLimit)
	r.CompareShare = cmp.Or(r.CompareShare, defaultCompareShare)
	r.Mark = cmp.Or(r.Mark, allMarks|instanceFlag(r.Table)>>22<<20)
	r.Logger = cmp.Or(r.Logger, slog.New(slog.DiscardHandler))
	return r, r.validate()
}

// validate returns the first fault of a configuration with defaults.
func (c *Config) validate() error {
	if err := rendering.CheckTable(Name, c.Table); err != nil {
		return err
	}
	switch {
	case !hasScheduler(c.Scheduler):
		return fmt.Errorf("ipvs: scheduler %q: not one of IPVS", c.Scheduler)
	case c.AffinityMask4 < 0 || c.AffinityMask4 > 32:
		return fmt.Errorf("ipvs: AffinityMask4: %d: want 1 to 32, or 0 for all bits",
			c.AffinityMask4)
	case c.AffinityMask6 < 0 || c.AffinityMask6 > 128:
		return fmt.Errorf("ipvs: AffinityMask6: %d: want 1 to 128, or 0 for all bits",
			c.AffinityMask6)
	case c.Device != "" && !rendering.IsName(c.Device, maxDevice,
		rendering.Letters+rendering.Digits+"_", inNames):
		return fmt.Errorf("ipvs: Device: %q: want a name of 1 to 15 letters, digits, \"_\", \"-\" "+
			"or \".\"", c.Device)
	case !(c.CompareShare > 0 && c.CompareShare <= 1):
		return fmt.Errorf("ipvs: CompareShare: %v: want more than 0, up to 1, or 0 for %v",
			c.CompareShare, defaultCompareShare)
	case c.Mark&allMarks != allMarks || c.Mark&^ownMask != 0:
		return fmt.Errorf("ipvs: Mark: 0x%x: "+
			"want 0xc0000000 or above, and a multiple of 0x100000, "+
			"or 0 for one that is made of the table's name", c.Mark)
	case c.StrictARP && c.Device == "":
		return errors.New("ipvs: StrictARP: without a Device, nobody answers ARP for the " +
			"addresses of services")
	}

	if err := ipvsnl.Timeouts(c.Timeouts).Validate(); err != nil {
		return fmt.Errorf("ipvs: Timeouts: %w", err)
	}
	return nil
}

var (
	_ backends.Backend = (*backend)(nil)
	_ backends.Settler = (*backend)(nil)
	_ backends.Locker  = (*backend)(nil)
	_ backends.Blamer  = (*backend)(nil)
	_ backends.Watcher = (*backend)(nil)
)

// errNotObserved says that a caller broke the contract of backends.Backend.
var errNotObserved = errors.New(
	"ipvs: the kernel was not observed since the backend was opened or a commit failed")

// backend keeps the services of one instance in IPVS. Its methods are not safe for concurrent use,
// except Watch.
type backend struct {
	kernel // embedded: without Linux it has the methods that need the kernel
	cfg    Config
	pl     planner
	// observed says that pl describes the contents of the kernel.
	observed bool
	draining draining
	// looks is the budget for checks of the companion tables for manual edits.
	looks wait.Budget
	scrub scrub
	// rivals are the other programs' uses of the instance's marks, as last logged.
	rivals []string
}

// New opens a backend. Its errors match [kernelerr.ErrNoPermission], [kernelerr.ErrMissingModule],
// [kernelerr.ErrKernelTooOld], or errors.ErrUnsupported if the system is not Linux.
// The backend is also a [backends.Settler], a [backends.Locker], a [backends.Blamer], a
// [backends.Watcher] and a [backends.OmitsPools].
//
// The methods are not safe for concurrent use, except Watch.
func New(cfg *Config) (backends.Backend, error) {
	b, err := openBackend(cfg)
	if err != nil {
		return nil, err
	}
	return b, nil
}

func openBackend(cfg *Config) (*backend, error) {
	c, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	b := newBackend(c)
	if err := b.kernel.open(&c); err != nil {
		return nil, fmt.Errorf("ipvs: open: %w", explain(err))
	}
	return b, nil
}

func newBackend(c Config) *backend {
	return &backend{cfg: c, pl: newPlanner(c), draining: draining{}, looks: wait.NewBudget(8, 20),
		scrub: scrub{share: c.CompareShare / 2}}
}

// OmitsPools says that a reading may lack pools: if the node has no address for a node port, the
// node port has no virtual server, and so no endpoints.
func (*backend) OmitsPools() {}

// Name returns "ipvs".
func (b *backend) Name() string { return Name }

// Check returns the errors of the function [Check]. After an observation it also returns the
// virtual servers of other programs that collide with a service, a table of another program with
// the instance's name, IPv6 addresses if the node has IPv6 disabled, endpoints that the kernel has
// refused because they are broadcast addresses of the node, and schedulers that the kernel lacks.
func (b *backend) Check(c *servicemodel.ChangeSet) error {
	return errors.Join(b.pl.foreignTable(), check(c, b.cfg.Scheduler, b.pl.lacking),
		b.pl.disabled(c), b.pl.collisions(c), b.pl.refused(c))
}

// Plan renders the requests of Commit.
func (b *backend) Plan(c *servicemodel.ChangeSet) (backends.Plan, error) {
	if !b.observed {
		return nil, errNotObserved
	}
	return b.pl.plan(c), nil
}

// committed records the contents of the kernel after a plan. ifindex is the index of the device.
func (b *backend) committed(p *plan, ifindex int) {
	now := time.Now()
	for k, s := range p.servers {
		if s != nil {
			b.draining.note(k, s, now)
		}
	}

	b.pl.have.committed(p, ifindex)
}
