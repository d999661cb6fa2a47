package ipvs

import (
	"fmt"
	"hash/fnv"
	"log/slog"
	"regexp"
	"time"

	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/servicemodel"
)

// Name is the name of this backend.
const Name = "ipvs"

// DefaultTable is the name of the companion tables if [Config.Table] is empty.
const DefaultTable = "kernlb-ipvs"

// DefaultDrainLimit is how long a TCP endpoint that left is waited for if [Config.DrainLimit] is
// zero.
const DefaultDrainLimit = 15 * time.Minute

// Config says where and how a Backend works. A nil *Config is the zero Config.
type Config struct {
	// NetNS is a file descriptor of the network namespace to work in, used only while the backend
	// is opened. Zero means that of the calling thread.
	NetNS int
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

// affinityMask is the netmask of persistence in a family.
func (c *Config) affinityMask(f ipvsnl.Family) ipvsnl.Netmask {
	bits := c.AffinityMask4
	if f == ipvsnl.FamilyIPv6 {
		bits = c.AffinityMask6
	}
	// It was checked to be a prefix of the family, or 0, which means the whole address just as the
	// zero netmask does.
	m, err := ipvsnl.PrefixNetmask(f, bits)
	if bits == 0 || err != nil {
		return ipvsnl.Netmask{}
	}
	return m
}

// withDefaults checks the configuration and fills it in.
func (c *Config) withDefaults() (Config, error) {
	var r Config
	if c != nil {
		r = *c
	}
	if r.Table == "" {
		r.Table = DefaultTable
	}
	if !tableName.MatchString(r.Table) {
		return r,
			fmt.Errorf(
				"ipvs: table name %q: want a letter, then letters, digits, \"_\", \"-\" or \".\", "+
					"63 in all at most", r.Table)
	}
	if r.Scheduler == servicemodel.SchedulerDefault {
		r.Scheduler = servicemodel.WeightedRR
	}
	if !hasScheduler(r.Scheduler) {
		return r, fmt.Errorf("ipvs: scheduler %q: not one of IPVS", r.Scheduler)
	}
	if r.AffinityMask4 < 0 || r.AffinityMask4 > 32 {
		return r, fmt.Errorf("ipvs: AffinityMask4: %d: want 1 to 32, or 0 for all bits",
			r.AffinityMask4)
	}
	if r.AffinityMask6 < 0 || r.AffinityMask6 > 128 {
		return r, fmt.Errorf("ipvs: AffinityMask6: %d: want 1 to 128, or 0 for all bits",
			r.AffinityMask6)
	}
	if r.Device != "" && !deviceName.MatchString(r.Device) {
		return r,
			fmt.Errorf(
				"ipvs: Device: %q: want a name of 1 to 15 letters, digits, \"_\", \"-\" or \".\"",
				r.Device)
	}
	if r.StrictARP && r.Device == "" {
		return r,
			fmt.Errorf(
				"ipvs: StrictARP: without a Device, nobody answers ARP for the addresses of " +
					"services")
	}
	if r.DrainLimit == 0 {
		r.DrainLimit = DefaultDrainLimit
	}
	if r.Logger == nil {
		r.Logger = slog.New(slog.DiscardHandler)
	}
	return r, nil
}

// instanceFlag is the mark of an instance in the high half of a virtual server's flags: never zero.
func instanceFlag(table string) uint32 {
	h := fnv.New32a()
	h.Write([]byte(table))
	v := h.Sum32()
	v = (v ^ v<<16) & 0xffff0000
	if v == 0 {
		v = 0x6b6c0000
	}
	return v
}
