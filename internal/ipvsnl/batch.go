package ipvsnl

import (
	"slices"

	"github.com/kernlb/kernlb/internal/rawnl"
)

const (
	version    = 1  // IPVS_GENL_VERSION
	headersLen = 20 // struct nlmsghdr and struct genlmsghdr
)

// Batch is a list of encoded commands that change services and destinations. The zero value is
// ready for use; Reset empties it and keeps the memory. A Batch must not be used by two goroutines
// at once. It does not check its arguments: the kernel does.
type Batch struct {
	wire    rawnl.Batch
	modules []string // modules to load before the batch is sent; see module
}

// Reset makes the batch empty and keeps its memory.
func (b *Batch) Reset() {
	b.wire.Reset()
	b.modules = b.modules[:0]
}

// Len returns the number of commands.
func (b *Batch) Len() int { return b.wire.Len() }

// NewService adds a service. It fails with [ErrExists] if a service has the same key, and with
// [ErrNoModule] if the kernel has no such scheduler or persistence engine.
func (b *Batch) NewService(s Service) { b.Add(CommandNewService, s, Destination{}) }

// SetService gives an existing service all settings of s. Its connections go on. It fails with
// [ErrNoService] and [ErrNoModule].
//
// A change of the scheduler costs an RCU grace period, some milliseconds, during which new
// connections to the service are refused with an ICMP error (ip_vs_edit_service; ip_vs_leave).
func (b *Batch) SetService(s Service) { b.Add(CommandSetService, s, Destination{}) }

// DelService removes a service with all its destinations. It fails with [ErrNoService]. Its
// connections break: the kernel remembers them, but drops their packets until their destinations
// are added again.
func (b *Batch) DelService(k ServiceKey) {
	b.Add(CommandDelService, Service{ServiceKey: k}, Destination{})
}

// NewDestination adds a destination to a service. It fails with [ErrNoService] and [ErrExists].
func (b *Batch) NewDestination(k ServiceKey, d Destination) {
	b.Add(CommandNewDestination, Service{ServiceKey: k}, d)
}

// SetDestination gives an existing destination all settings of d. Its connections keep the
// forwarding method that they began with. It fails with [ErrNoService] and [ErrNoDestination].
func (b *Batch) SetDestination(k ServiceKey, d Destination) {
	b.Add(CommandSetDestination, Service{ServiceKey: k}, d)
}

// DelDestination removes a destination from a service. It fails with [ErrNoService] and
// [ErrNoDestination]. Its connections break, as with DelService.
func (b *Batch) DelDestination(k ServiceKey, d DestinationKey) {
	b.Add(CommandDelDestination, Service{ServiceKey: k}, Destination{DestinationKey: d})
}

// Add adds one of these commands. Commands that only name a service or a destination use nothing
// but the key of s or d.
func (b *Batch) Add(cmd Command, s Service, d Destination) {
	begin(&b.wire, cmd)
	service := b.wire.Nest(CmdAttrService)
	if cmd == CommandNewService || cmd == CommandSetService {
		if m := module(s.Scheduler); m != "" && !slices.Contains(b.modules, m) {
			b.modules = append(b.modules, m)
		}
		PutService(&b.wire, s)
	} else {
		putKey(&b.wire, s.ServiceKey)
	}
	b.wire.End(service)
	if cmd < CommandNewDestination {
		return
	}
	destination := b.wire.Nest(CmdAttrDestination)
	if cmd == CommandDelDestination {
		putDestinationKey(&b.wire, d.DestinationKey)
	} else {
		PutDestination(&b.wire, d)
	}
	b.wire.End(destination)
}

// module returns the module that must be in the kernel before a service uses the scheduler. The
// kernel loads modules of schedulers by itself, but while it holds the lock of IPVS. The modules of
// these two schedulers wait for pernet_ops_rwsem when they start. A process that removes any
// network namespace holds this semaphore and the lock of all network devices. It also needs the
// lock of IPVS, to tell IPVS about the devices that go. Then all of them wait for ever
// (ip_vs_scheduler_get, ip_vs_lblc_init, cleanup_net, ip_vs_dst_event). Seen on 6.1. Kernels where
// each namespace has its own lock of IPVS, such as 7.2, do not have this deadlock.
func module(scheduler string) string {
	switch scheduler {
	case "lblc":
		return "ip_vs_lblc"
	case "lblcr":
		return "ip_vs_lblcr"
	}
	return ""
}

// begin begins a message with a command.
func begin(b *rawnl.Batch, cmd Command) {
	b.Command(uint8(cmd), version, 0, rawnl.Object{Verb: cmd.String(), Part: cmd})
}
