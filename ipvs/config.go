package ipvs

import (
	"fmt"
	"hash/fnv"
	"log/slog"
	"regexp"
	"time"

	"github.com/kernlb/kernlb/servicemodel"
)

// Name is the name of this backend.
const Name = "ipvs"

// DefaultTable is the name of the companion tables if [Config.Table] is empty.
const DefaultTable = "kernlb-ipvs"

// DefaultDrainLimit is how long a TCP endpoint that left is waited for if [Config.DrainLimit] is zero.
const DefaultDrainLimit = 15 * time.Minute

// Config says where and how a Backend works. A nil *Config is the zero Config.
type Config struct {
	// NetNS is a file descriptor of the network namespace to work in, used only while the backend is opened. Zero means that of the
	// calling thread.
	NetNS int
	// Table is the name of the companion tables of nf_tables in the families ip and ip6, and so the instance. Empty means
	// [DefaultTable]. It starts with a letter and has letters, digits, "_", "-" and "." only, at most 63 of them.
	Table string
	// Scheduler is the scheduler of services that leave it to the backend. Empty means "wrr": round robin, by weight.
	Scheduler servicemodel.Scheduler
	// DrainLimit is how long an endpoint that left keeps its TCP connections at most. Zero means [DefaultDrainLimit]; negative means
	// not at all. It counts anew after a restart of the program.
	DrainLimit time.Duration
	// Logger gets a debug record for each commit. Nil means silence.
	Logger *slog.Logger
}

var tableName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]{0,62}$`)

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
		return r, fmt.Errorf("ipvs: table name %q: want a letter, then letters, digits, \"_\", \"-\" or \".\", 63 in all at most", r.Table)
	}
	if r.Scheduler == servicemodel.SchedulerDefault {
		r.Scheduler = servicemodel.WeightedRR
	}
	if !schedulers[r.Scheduler] {
		return r, fmt.Errorf("ipvs: scheduler %q: not one of IPVS", r.Scheduler)
	}
	if r.DrainLimit == 0 {
		r.DrainLimit = DefaultDrainLimit
	}
	if r.Logger == nil {
		r.Logger = slog.New(slog.DiscardHandler)
	}
	return r, nil
}

// schedulers are those of IPVS (net/netfilter/ipvs/ip_vs_*.c).
var schedulers = map[servicemodel.Scheduler]bool{
	servicemodel.RoundRobin: true, servicemodel.WeightedRR: true, servicemodel.LeastConn: true, servicemodel.WeightedLC: true,
	servicemodel.LocalityLC: true, servicemodel.LocalityLCR: true, servicemodel.SourceHash: true, servicemodel.DestHash: true,
	servicemodel.ShortestDelay: true, servicemodel.NeverQueue: true, servicemodel.Maglev: true, servicemodel.Failover: true,
	servicemodel.Overflow: true,
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
