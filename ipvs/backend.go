package ipvs

import (
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/ration"
	"github.com/kernlb/kernlb/servicemodel"
)

// Name is the name of this backend.
const Name = "ipvs"

// DefaultTable is the name of the companion tables if [Config.Table] is empty.
const DefaultTable = "kernlb-ipvs"

// DefaultDrainLimit is how long a TCP endpoint that left is waited for if [Config.DrainLimit] is
// zero.
const DefaultDrainLimit = 15 * time.Minute

// DefaultCompareShare is how much of a CPU's time comparing virtual servers may take if
// [Config.CompareShare] is zero.
const DefaultCompareShare = 0.0008

// Config says where and how a Backend works. A nil *Config is the zero Config.
type Config struct {
	// NetNS is a file descriptor of the network namespace to work in, and NetNSPath its path, such
	// as "/run/netns/blue" or "/proc/1234/ns/net": either, used only while the backend is opened.
	// Zero and empty mean that of the calling thread.
	NetNS     int
	NetNSPath string
	// Table is the name of the companion tables of nf_tables in the families ip and ip6, and so the
	// instance. Empty means [DefaultTable]. It starts with a letter and has letters, digits, "_",
	// "-" and "." only, at most 63 of them.
	Table string
	// Scheduler is the scheduler of services that leave it to the backend, with its options. Empty
	// means "wrr": round robin, by weight.
	Scheduler servicemodel.Scheduler
	// DrainLimit is how long an endpoint that left keeps its TCP connections at most. Zero means
	// [DefaultDrainLimit]; negative means not at all. It counts anew after a restart of the
	// program.
	DrainLimit time.Duration
	// AffinityMask4 and AffinityMask6 are how many leading bits of a client's address count for
	// session affinity: clients that agree in them share an endpoint. 1 to 32 and 1 to 128; zero
	// means all. They do not matter where pods and the host have endpoints of their own.
	AffinityMask4, AffinityMask6 int
	// Device is the name of a dummy device that holds the addresses of services: cluster IPs,
	// external IPs and load-balancer IPs. It is made if it is not there; a kernel without the
	// module dummy is a [dataplane.ErrMissingModule] then. Empty, the default, means none, and
	// services need none: the package documentation says what is different with one.
	Device string
	// StrictARP keeps the node from answering ARP for the addresses that Device holds, on all
	// links: net.ipv4.conf.all.arp_ignore is set to 1 and arp_announce to 2. It needs Device:
	// without one, nobody answers ARP for the addresses of services.
	StrictARP bool
	// TakeOver makes virtual servers that are not of any instance of kernlb, and are where those of
	// a service must be, the instance's own: with their connections, and what differs is edited in
	// place. It is for taking over from kube-proxy's ipvs mode, which must not run any more. While
	// one scheduler is exchanged for another, a virtual server refuses new connections, for an RCU
	// grace period (ip_vs_edit_service in net/netfilter/ipvs/ip_vs_ctl.c): that does not happen
	// where Scheduler is the one that is there, kube-proxy's "rr". By default they are left alone,
	// and the service is a [dataplane.CollisionError].
	TakeOver bool
	// CompareShare is the part of one CPU's time that looks ([dataplane.RunOptions]) may take for
	// comparing virtual servers with those of the kernel, which tells of no change: at most 1. Zero
	// means [DefaultCompareShare]. The package documentation says how soon a change by hand is
	// noticed with it.
	CompareShare float64
	// Timeouts are how long IPVS keeps idle connections. Zero leaves what the node has.
	Timeouts Timeouts
	// Logger gets a debug record for each commit. Nil means silence.
	Logger *slog.Logger
}

// Timeouts are how long IPVS keeps idle connections, those of all virtual servers of the network
// namespace. Each is a whole number of seconds; zero leaves it as it is. A new namespace has 15
// minutes, 2 minutes and 5 minutes (net/netfilter/ipvs/ip_vs_proto_tcp.c, ip_vs_proto_udp.c).
type Timeouts struct {
	TCP    time.Duration // of established TCP connections
	TCPFin time.Duration // of TCP connections after a FIN
	UDP    time.Duration // of UDP flows
}

var tableName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]{0,62}$`)

// deviceName is what names of interfaces may be, and more strictly: IFNAMSIZ is 16, with the NUL
// (include/uapi/linux/if.h).
var deviceName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,14}$`)

// withDefaults checks the configuration and fills it in.
func (c *Config) withDefaults() (Config, error) {
	var r Config
	if c != nil {
		r = *c
	}
	if r.Table == "" {
		r.Table = DefaultTable
	}
	if r.Scheduler == servicemodel.SchedulerDefault {
		r.Scheduler = servicemodel.WeightedRR
	}
	if r.DrainLimit == 0 {
		r.DrainLimit = DefaultDrainLimit
	}
	if r.CompareShare == 0 {
		r.CompareShare = DefaultCompareShare
	}
	if r.Logger == nil {
		r.Logger = slog.New(slog.DiscardHandler)
	}
	return r, r.validate()
}

// validate reports what is wrong with a configuration that has its defaults.
func (c *Config) validate() error {
	switch {
	case !tableName.MatchString(c.Table):
		return fmt.Errorf("ipvs: table name %q: want a letter, then letters, digits, \"_\", \"-\" "+
			"or \".\", 63 in all at most", c.Table)
	case !hasScheduler(c.Scheduler):
		return fmt.Errorf("ipvs: scheduler %q: not one of IPVS", c.Scheduler)
	case c.AffinityMask4 < 0 || c.AffinityMask4 > 32:
		return fmt.Errorf("ipvs: AffinityMask4: %d: want 1 to 32, or 0 for all bits",
			c.AffinityMask4)
	case c.AffinityMask6 < 0 || c.AffinityMask6 > 128:
		return fmt.Errorf("ipvs: AffinityMask6: %d: want 1 to 128, or 0 for all bits",
			c.AffinityMask6)
	case c.Device != "" && !deviceName.MatchString(c.Device):
		return fmt.Errorf("ipvs: Device: %q: want a name of 1 to 15 letters, digits, \"_\", \"-\" "+
			"or \".\"", c.Device)
	case !(c.CompareShare > 0 && c.CompareShare <= 1):
		return fmt.Errorf("ipvs: CompareShare: %v: want more than 0, up to 1, or 0 for %v",
			c.CompareShare, DefaultCompareShare)
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
	_ dataplane.Backend = (*Backend)(nil)
	_ dataplane.Settler = (*Backend)(nil)
	_ dataplane.Locker  = (*Backend)(nil)
	_ dataplane.Witness = (*Backend)(nil)
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
	scrub scrub
}

// New opens a backend. Its errors match [dataplane.ErrNoPermission], [dataplane.ErrMissingModule],
// [dataplane.ErrKernelTooOld], or errors.ErrUnsupported if this is not Linux.
func New(cfg *Config) (*Backend, error) {
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

func newBackend(c Config) *Backend {
	return &Backend{cfg: c, pl: newPlanner(c), draining: draining{}, looks: ration.New(8, 20),
		scrub: scrub{share: c.CompareShare / 2}}
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

// deleteDrained notes that destinations were deleted.
func (b *Backend) deleteDrained(p *plan) {
	for _, o := range p.down {
		delete(b.pl.have.servers[o.svc.ServiceKey].dests, o.dest.DestinationKey)
		delete(b.draining, drainKey{o.svc.ServiceKey, o.dest.DestinationKey})
	}
	b.pl.have.companion.version = p.versions[stageEnd]
}
