package ipvsnl

import (
	"fmt"
	"slices"

	"github.com/kernlb/kernlb/internal/rawnl"
)

const (
	version    = 1  // IPVS_GENL_VERSION
	headersLen = 20 // struct nlmsghdr and struct genlmsghdr
)

// Batch is a list of commands that change services and destinations, already encoded. The zero
// value is ready for use; Reset empties it and keeps the memory. A Batch must not be used by two
// goroutines at once.
//
// What is added is validated. The first mistake sticks to the batch: [Client.Submit] returns it and
// sends nothing.
type Batch struct {
	wire    rawnl.Batch
	modules []string // those to load before the batch is sent; see module
	err     error
}

// Reset makes the batch empty and keeps its memory.
func (b *Batch) Reset() {
	b.wire.Reset()
	b.modules, b.err = b.modules[:0], nil
}

// Len returns the number of commands.
func (b *Batch) Len() int { return b.wire.Len() }

// Err returns the first mistake in what was added, an [ErrInvalid].
func (b *Batch) Err() error { return b.err }

// NewService adds a service. It fails with [ErrExists] if there is one with its key, and with
// [ErrNoModule] if the kernel has no such scheduler or persistence engine.
func (b *Batch) NewService(s Service) {
	b.service(CommandNewService, s)
}

// SetService gives an existing service all settings of s. Its connections go on. It fails with
// [ErrNoService] and [ErrNoModule].
//
// A change of the scheduler costs an RCU grace period, some milliseconds, during which new
// connections to the service are refused with an ICMP error (ip_vs_edit_service; ip_vs_leave).
func (b *Batch) SetService(s Service) {
	b.service(CommandSetService, s)
}

// DelService removes a service with all its destinations. It fails with [ErrNoService]. Its
// connections break: they are remembered, but their packets are dropped, until their destinations
// are added again.
func (b *Batch) DelService(k ServiceKey) {
	if b.accept(CommandDelService, k.encodable()) {
		putServiceKey(&b.wire, k)
	}
}

// NewDestination adds a destination to a service. It fails with [ErrNoService] and [ErrExists].
func (b *Batch) NewDestination(k ServiceKey, d Destination) {
	b.destination(CommandNewDestination, k, d)
}

// SetDestination gives an existing destination all settings of d. Its connections keep the
// forwarding method that they began with. It fails with [ErrNoService] and [ErrNoDestination].
func (b *Batch) SetDestination(k ServiceKey, d Destination) {
	b.destination(CommandSetDestination, k, d)
}

// DelDestination removes a destination from a service. It fails with [ErrNoService] and
// [ErrNoDestination]. Its connections break, as with DelService.
func (b *Batch) DelDestination(k ServiceKey, d DestinationKey) {
	err := k.encodable()
	if err == nil {
		err = d.encodable()
	}
	if b.accept(CommandDelDestination, err) {
		putServiceKey(&b.wire, k)
		m := b.wire.Nest(CmdAttrDestination)
		putDestinationKey(&b.wire, d)
		b.wire.End(m)
	}
}

// service adds a command about a whole service.
func (b *Batch) service(cmd Command, s Service) {
	if !b.accept(cmd, s.Validate()) {
		return
	}
	if m := module(s.Scheduler); m != "" && !slices.Contains(b.modules, m) {
		b.modules = append(b.modules, m)
	}
	m := b.wire.Nest(CmdAttrService)
	PutService(&b.wire, s)
	b.wire.End(m)
}

// module returns the module of a scheduler that must be in the kernel before a service asks for it.
// The kernel loads the modules of schedulers itself, but does so holding the lock of IPVS, and the
// modules of these two wait for pernet_ops_rwsem when they start. Whoever takes down any network
// namespace meanwhile holds that, and the lock of all network devices, and wants the lock of IPVS
// to tell it about devices that go: all of them wait for ever (ip_vs_scheduler_get,
// ip_vs_lblc_init, cleanup_net, ip_vs_dst_event). Seen on 6.1. Kernels where each namespace has its
// own lock of IPVS, as 7.2, have no such trouble.
func module(scheduler string) string {
	switch scheduler {
	case "lblc":
		return "ip_vs_lblc"
	case "lblcr":
		return "ip_vs_lblcr"
	}
	return ""
}

// destination adds a command about a whole destination.
func (b *Batch) destination(cmd Command, k ServiceKey, d Destination) {
	err := k.Validate()
	if err == nil {
		err = d.validIn(k)
	}
	if b.accept(cmd, err) {
		putServiceKey(&b.wire, k)
		m := b.wire.Nest(CmdAttrDestination)
		PutDestination(&b.wire, d)
		b.wire.End(m)
	}
}

// accept begins a command, unless its arguments are invalid, as err says.
func (b *Batch) accept(cmd Command, err error) bool {
	if err != nil {
		if b.err == nil {
			b.err = fmt.Errorf("%v: %w", cmd, err)
		}
		return false
	}
	begin(&b.wire, cmd)
	return true
}

// begin begins a message with a command.
func begin(b *rawnl.Batch, cmd Command) {
	b.Command(uint8(cmd), version, 0, rawnl.Object{Verb: cmd.String(), Part: cmd})
}
