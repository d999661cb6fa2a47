package ipvs

import (
	"slices"

	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/servicemodel"
)

// schedulers are the schedulers of IPVS, without options (net/netfilter/ipvs/ip_vs_*.c). The kernel
// loads the module of a scheduler, "ip_vs_" and its name, on demand. The index of a scheduler is
// part of the format in the kernel: four bits of a virtual server's flags ([schedulerMask]), of
// whose 16 values 14 are used. Append a new scheduler; never move or remove one.
var schedulers = []servicemodel.Scheduler{
	servicemodel.SchedulerDefault, // the model leaves the choice to [Config.Scheduler]
	servicemodel.RoundRobin, servicemodel.WeightedRR, servicemodel.LeastConn,
	servicemodel.WeightedLC, servicemodel.LocalityLC, servicemodel.LocalityLCR,
	servicemodel.SourceHash, servicemodel.DestHash, servicemodel.ShortestDelay,
	servicemodel.NeverQueue, servicemodel.Maglev, servicemodel.Failover, servicemodel.Overflow,
}

// The flags of our virtual servers contain more than the kernel uses: the instance in the upper
// half, and the scheduler that the model requested, as its index in schedulers and its options. The
// kernel keeps flags that it does not know (ip_vs_genl_parse_service, ip_vs_genl_fill_service).
const (
	instanceMask   = 0xffff0000
	schedulerMask  = 0x0f00
	schedulerShift = 8
	askedPort      = 0x1000
	askedFallback  = 0x2000

	// schedulerOptions are the flags of the scheduler's options. The kernel uses them.
	schedulerOptions = ipvsnl.FlagHashPort | ipvsnl.FlagFallback
)

// hasScheduler reports whether IPVS has a named scheduler, with its options. Schedulers that hash
// have the options port and fallback.
func hasScheduler(s servicemodel.Scheduler) bool {
	name, port, fallback := s.Split()
	hashes := name == servicemodel.SourceHash || name == servicemodel.Maglev
	return slices.Index(schedulers, name) > 0 && (hashes || !port && !fallback)
}

// askedFlags returns the flags that store the scheduler that the model requested.
func askedFlags(want servicemodel.Scheduler) ipvsnl.ServiceFlags {
	name, _, _ := want.Split()
	return ipvsnl.ServiceFlags(max(0, slices.Index(schedulers, name))<<schedulerShift) |
		optionFlags(want, askedPort, askedFallback)
}

// optionFlags returns the given flags for the options of a scheduler.
func optionFlags(s servicemodel.Scheduler, hashPort, fallBack ipvsnl.ServiceFlags) (
	f ipvsnl.ServiceFlags) {
	_, port, fallback := s.Split()
	if port {
		f |= hashPort
	}
	if fallback {
		f |= fallBack
	}
	return f
}

// askedScheduler is the inverse of askedFlags.
func askedScheduler(f ipvsnl.ServiceFlags) (s servicemodel.Scheduler) {
	if i := int(f&schedulerMask) >> schedulerShift; i < len(schedulers) {
		s = schedulers[i]
	}
	if f&askedPort != 0 {
		s += "+port"
	}
	if f&askedFallback != 0 {
		s += "+fallback"
	}
	return s
}
