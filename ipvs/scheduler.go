package ipvs

import (
	"slices"

	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/servicemodel"
)

// scheduler is a scheduler of IPVS. Its kernel module is "ip_vs_" and its name, which the kernel
// loads by itself.
type scheduler struct {
	name   servicemodel.Scheduler // without options
	hashes bool                   // it takes the options port and fallback
}

// schedulers are the schedulers of IPVS (net/netfilter/ipvs/ip_vs_*.c). The index of a scheduler is
// part of the format of what is kept in the kernel: four bits of a virtual server's flags
// ([schedulerMask]), of whose 16 values 14 are used. A new scheduler is appended; none is moved or
// removed.
var schedulers = [...]scheduler{
	{name: servicemodel.SchedulerDefault}, // the model leaves the choice to [Config.Scheduler]
	{name: servicemodel.RoundRobin},
	{name: servicemodel.WeightedRR},
	{name: servicemodel.LeastConn},
	{name: servicemodel.WeightedLC},
	{name: servicemodel.LocalityLC},
	{name: servicemodel.LocalityLCR},
	{name: servicemodel.SourceHash, hashes: true},
	{name: servicemodel.DestHash},
	{name: servicemodel.ShortestDelay},
	{name: servicemodel.NeverQueue},
	{name: servicemodel.Maglev, hashes: true},
	{name: servicemodel.Failover},
	{name: servicemodel.Overflow},
}

// The flags of our virtual servers hold more than the kernel looks at: the instance in the high
// half, and the scheduler that the model asked for, as its index in schedulers and its options. The
// kernel keeps flags that it does not know (ip_vs_genl_parse_service, ip_vs_genl_fill_service).
const (
	instanceMask   = 0xffff0000
	schedulerMask  = 0x0f00
	schedulerShift = 8
	askedPort      = 0x1000
	askedFallback  = 0x2000

	// schedulerOptions are the flags of the scheduler's options that the kernel acts on.
	schedulerOptions = ipvsnl.FlagHashPort | ipvsnl.FlagFallback
)

// schedulerNumber returns the index of a scheduler in schedulers by its name without options; -1 if
// IPVS has none of that name.
func schedulerNumber(name servicemodel.Scheduler) int {
	return slices.IndexFunc(schedulers[:], func(s scheduler) bool { return s.name == name })
}

// hasScheduler reports whether IPVS has a scheduler that is asked for by name, with its options.
func hasScheduler(s servicemodel.Scheduler) bool {
	name, port, fallback := s.Split()
	n := schedulerNumber(name)
	return n > 0 && (schedulers[n].hashes || !port && !fallback)
}

// askedFlags returns the flags that keep which scheduler the model asked for.
func askedFlags(want servicemodel.Scheduler) ipvsnl.ServiceFlags {
	name, port, fallback := want.Split()
	f := ipvsnl.ServiceFlags(max(0, schedulerNumber(name)) << schedulerShift)
	if port {
		f |= askedPort
	}
	if fallback {
		f |= askedFallback
	}
	return f
}

// askedScheduler is the inverse of askedFlags.
func askedScheduler(f ipvsnl.ServiceFlags) (s servicemodel.Scheduler) {
	if i := int(f&schedulerMask) >> schedulerShift; i < len(schedulers) {
		s = schedulers[i].name
	}
	if f&askedPort != 0 {
		s += servicemodel.HashPort
	}
	if f&askedFallback != 0 {
		s += servicemodel.HashFallback
	}
	return s
}
