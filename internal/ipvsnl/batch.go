package ipvsnl

import (
	"fmt"
	"slices"
)

// Batch is a list of commands that change services and destinations, already encoded. The zero
// value is ready for use; Reset empties it and keeps the memory. A Batch must not be used by two
// goroutines at once.
//
// What is added is validated. The first mistake sticks to the batch: [Client.Submit] returns it and
// sends nothing.
type Batch struct {
	buf     []byte
	at      []int    // where each command begins in buf
	modules []string // those to load before the batch is sent; see module
	err     error
}

// Reset makes the batch empty and keeps its memory.
func (b *Batch) Reset() { *b = Batch{buf: b.buf[:0], at: b.at[:0], modules: b.modules[:0]} }

// Len returns the number of commands.
func (b *Batch) Len() int { return len(b.at) }

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
		b.end(appendServiceKey(b.buf, k))
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
		b.end(appendDestinationKey(appendServiceKey(b.buf, k), d))
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
	b.end(appendService(b.buf, s))
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
		b.end(appendDestination(appendServiceKey(b.buf, k), d))
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
	b.at = append(b.at, len(b.buf))
	b.buf = appendFrame(b.buf, flagRequest, uint8(cmd))
	return true
}

// end ends the command begun last. buf is the buffer with its attributes.
func (b *Batch) end(buf []byte) { b.buf = endMessage(buf, b.at[len(b.at)-1]) }

// endOf returns where command i ends in the buffer.
func (b *Batch) endOf(i int) int {
	if i+1 < len(b.at) {
		return b.at[i+1]
	}
	return len(b.buf)
}

// failure returns the error about command i.
func (b *Batch) failure(i int, v verdict) *CommandError {
	e := &CommandError{Index: i, Errno: v.errno, Text: v.text}
	e.Command, e.Service, e.Destination = describe(b.buf[b.at[i]:b.endOf(i)])
	return e
}

// describe returns what a request is about, from its bytes. What it cannot read it leaves zero.
func describe(request []byte) (cmd Command, k ServiceKey, d DestinationKey) {
	m, _, err := nextMessage(request)
	if err != nil {
		return
	}
	code, data, err := m.command()
	if err != nil {
		return
	}
	a := attrs{what: "request", rest: data}
	for a.next() {
		switch a.typ {
		case cmdAttrService:
			if w, err := decodeService(a.data); err == nil {
				k, _ = w.key()
			}
		case cmdAttrDestination:
			if w, err := decodeDestination(a.data); err == nil {
				d, _ = w.key(k.Family)
			}
		}
	}
	return Command(code), k, d
}
