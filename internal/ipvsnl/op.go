package ipvsnl

import (
	"fmt"
	"syscall"

	"github.com/kernlb/kernlb/internal/rawnl"
)

// version is IPVS_GENL_VERSION.
const version = 1

// Op is a command. The functions below return the commands that change services and destinations.
// They do not check their arguments: the kernel does.
type Op struct {
	Command     Command
	Service     Service     // only its key counts unless the command writes the service
	Destination Destination // likewise
}

// NewService adds a service. It fails with [ErrExists] if a service has the same key, and with
// [ErrNoModule] if the kernel has no such scheduler or persistence engine.
func NewService(s Service) Op { return Op{Command: CommandNewService, Service: s} }

// SetService gives an existing service all settings of s. Its connections continue. It fails with
// [ErrNoService] and [ErrNoModule].
//
// A change of the scheduler costs an RCU grace period, some milliseconds, during which new
// connections to the service are refused with an ICMP error (ip_vs_edit_service; ip_vs_leave).
func SetService(s Service) Op { return Op{Command: CommandSetService, Service: s} }

// DelService removes a service with all its destinations. It fails with [ErrNoService]. Its
// connections break: the kernel remembers them, but drops their packets until their destinations
// are added again.
func DelService(k ServiceKey) Op { return on(CommandDelService, k, Destination{}) }

// NewDestination adds a destination to a service. It fails with [ErrNoService], [ErrExists] and
// [ErrNotUnicast].
func NewDestination(k ServiceKey, d Destination) Op { return on(CommandNewDestination, k, d) }

// SetDestination gives an existing destination all settings of d. Its connections keep the
// forwarding method that they began with. It fails with [ErrNoService] and [ErrNoDestination].
func SetDestination(k ServiceKey, d Destination) Op { return on(CommandSetDestination, k, d) }

// DelDestination removes a destination from a service. It fails with [ErrNoService] and
// [ErrNoDestination]. Its connections break, as with DelService.
func DelDestination(k ServiceKey, d DestinationKey) Op {
	return on(CommandDelDestination, k, Destination{DestinationKey: d})
}

func on(cmd Command, k ServiceKey, d Destination) Op {
	return Op{cmd, Service{ServiceKey: k}, d}
}

// put appends the message of a command. o must not change until it is answered.
func (o *Op) put(b *rawnl.Batch) {
	b.Command(uint8(o.Command), version, 0, rawnl.Object{Verb: o.Command.String(), Part: o})
	if o.Service.ServiceKey == (ServiceKey{}) {
		return // it lists all services, or is about the namespace
	}
	service := b.Nest(CmdAttrService)
	if o.Command == CommandNewService || o.Command == CommandSetService {
		PutService(b, o.Service)
	} else {
		putServiceKey(b, o.Service.ServiceKey)
	}

	b.End(service)
	switch o.Command {
	case CommandNewDestination, CommandSetDestination, CommandDelDestination:
		destination := b.Nest(CmdAttrDestination)
		if o.Command == CommandDelDestination {
			putDestinationKey(b, o.Destination.DestinationKey)
		} else {
			PutDestination(b, o.Destination)
		}

		b.End(destination)
	}
}

// module returns the module that must be in the kernel before the command is sent. The kernel
// itself loads modules of schedulers, but while it holds the lock of IPVS. The modules of these two
// schedulers wait for pernet_ops_rwsem when they start. A process that removes any network
// namespace holds this semaphore and the lock of all network devices. It also needs the lock of
// IPVS, to tell IPVS about the removed devices. Then all of these processes wait for ever
// (ip_vs_scheduler_get, ip_vs_lblc_init, cleanup_net, ip_vs_dst_event). Seen on 6.1. Kernels where
// each namespace has its own lock of IPVS, such as 7.2, do not have this deadlock.
func (o *Op) module() string {
	switch o.Service.Scheduler {
	case "lblc", "lblcr":
		return "ip_vs_" + o.Service.Scheduler
	}

	return ""
}

// DescribePart names the service, or the destination and its service: "10.1.0.1:8080 of TCP
// 10.0.0.1:80". The kernel does not point at an attribute.
func (o *Op) DescribePart([]byte, int) string {
	switch {
	case o.Service.ServiceKey == (ServiceKey{}):
		return ""
	case o.Destination.DestinationKey == (DestinationKey{}):
		return o.Service.ServiceKey.String()
	}

	return fmt.Sprintf("%v of %v", o.Destination.DestinationKey, o.Service.ServiceKey)
}

// Explain returns the meaning of the errno with which the kernel refused the command.
func (o *Op) Explain(errno syscall.Errno) error {
	switch errno {
	case syscall.EEXIST:
		return ErrExists
	case syscall.ESRCH:
		return ErrNoService
	case syscall.EINVAL:
		if o.Command == CommandNewDestination {
			return ErrNotUnicast
		}
	case syscall.ENOENT:
		switch o.Command {
		case CommandSetDestination, CommandDelDestination:
			return ErrNoDestination
		case CommandNewService, CommandSetService:
			return ErrNoModule
		}
	}

	return nil
}
