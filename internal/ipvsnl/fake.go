package ipvsnl

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"syscall"
	"time"
)

// Fake is the IPVS of one network namespace, in memory: what answers at the other end of a
// [Transport]. It is for tests that must run where the kernel has no IPVS. It works on the bytes of
// the messages, refuses what net/netfilter/ipvs/ip_vs_ctl.c refuses, with the same errno and in the
// same order of checks, and lists in an order that is as little sorted. It forwards nothing, and so
// knows no connections but those it is told of; a destination that is removed is gone at once.
//
// Its methods, and clients of it, may be used by many goroutines.
type Fake struct {
	mu         sync.Mutex
	services   map[ServiceKey]*fakeService
	order      []*fakeService // newest first
	schedulers map[string]bool
	engines    map[string]bool
	timeouts   Timeouts
	unloaded   bool
	noIPv6     bool
	interrupt  int
	queue      int
	partSize   int
	fault      func(cmd Command, k ServiceKey, d DestinationKey) syscall.Errno
	log        []string
}

// fakeService is a service of a Fake.
type fakeService struct {
	ObservedService
	destinations []*ObservedDestination // newest first
}

const (
	fakeFamily   uint16 = 0x1b     // some number above GENL_ID_CTRL
	fakePart            = 8 << 10  // size of the parts of a dump
	fakeLimit           = 64 << 10 // size of a request
	fakeQueue           = 128      // answers that the receive queue holds
	fakeVersion         = 0x010201 // IP_VS_VERSION_CODE
	fakeConnBits        = 12       // CONFIG_IP_VS_TAB_BITS
)

// NewFake returns the IPVS of a fresh network namespace, of a kernel with all schedulers and the
// engine "sip".
func NewFake() *Fake {
	f := &Fake{
		services: map[ServiceKey]*fakeService{}, schedulers: map[string]bool{},
		engines:  map[string]bool{"sip": true},
		timeouts: Timeouts{TCP: 15 * time.Minute, TCPFin: 2 * time.Minute, UDP: 5 * time.Minute},
		queue:    fakeQueue, partSize: fakePart,
	}
	for _, name := range []string{
		"none", "rr", "wrr", "lc", "wlc", "lblc", "lblcr", "dh", "sh", "sed", "nq", "fo", "ovf",
		"mh", "twos",
	} {
		f.schedulers[name] = true
	}
	return f
}

// Dial returns a client of f. The NetNS of cfg is ignored.
func (f *Fake) Dial(ctx context.Context, cfg *Config) (*Client, error) {
	if cfg == nil {
		cfg = &Config{}
	}
	return NewClient(ctx, &fakeTransport{fake: f}, cfg.Logger)
}

// Unload makes f a kernel without IPVS.
func (f *Fake) Unload() { f.change(func() { f.unloaded = true }) }

// DisableIPv6 makes f a kernel that was booted with ipv6.disable=1.
func (f *Fake) DisableIPv6() { f.change(func() { f.noIPv6 = true }) }

// RemoveScheduler makes f a kernel without the scheduler.
func (f *Fake) RemoveScheduler(name string) { f.change(func() { delete(f.schedulers, name) }) }

// SetQueue limits how many answers a receive queue holds. At first, it is 128.
func (f *Fake) SetQueue(answers int) { f.change(func() { f.queue = answers }) }

// InterruptDumps makes the next n dumps say that they were interrupted.
func (f *Fake) InterruptDumps(n int) { f.change(func() { f.interrupt = n }) }

// SetFault makes commands about services and destinations fail with the errno that fault returns,
// if not 0. It is called before anything else is looked at, with the lock of f held: it must not
// use f. Nil means no faults.
func (f *Fake) SetFault(fault func(cmd Command, k ServiceKey, d DestinationKey) syscall.Errno) {
	f.change(func() { f.fault = fault })
}

// SetConns sets the connections of a destination.
func (f *Fake) SetConns(k ServiceKey, d DestinationKey, active, inactive, persistent uint32) error {
	return f.edit(k, d, func(o *ObservedDestination) {
		o.ActiveConns, o.InactiveConns, o.PersistentConns = active, inactive, persistent
	})
}

// SetStats sets the statistics of a destination, and of its service if d is the zero key.
func (f *Fake) SetStats(k ServiceKey, d DestinationKey, s Stats) error {
	if d == (DestinationKey{}) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if svc := f.services[k]; svc != nil {
			svc.Stats = s
			return nil
		}
		return fmt.Errorf("%v: %w", k, ErrNoService)
	}
	return f.edit(k, d, func(o *ObservedDestination) { o.Stats = s })
}

// Log returns what the kernel was asked to change since the last ResetLog, one line for each
// command that it carried out, in their order: "new destination 10.1.0.1:8080 of TCP 10.0.0.1:80:
// weight 1 masquerade".
func (f *Fake) Log() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.log)
}

// ResetLog makes the log empty.
func (f *Fake) ResetLog() { f.change(func() { f.log = nil }) }

// Keys returns the keys of all services in their order.
func (f *Fake) Keys() []ServiceKey {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.SortedFunc(maps.Keys(f.services), ServiceKey.Compare)
}

// change calls set with the lock held.
func (f *Fake) change(set func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	set()
}

// edit calls set on a destination.
func (f *Fake) edit(k ServiceKey, d DestinationKey, set func(*ObservedDestination)) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	svc := f.services[k]
	if svc == nil {
		return fmt.Errorf("%v: %w", k, ErrNoService)
	}
	o := svc.find(d)
	if o == nil {
		return fmt.Errorf("%v of %v: %w", d, k, ErrNoDestination)
	}
	set(o)
	return nil
}

// find returns the destination d, nil if there is none.
func (s *fakeService) find(d DestinationKey) *ObservedDestination {
	for _, o := range s.destinations {
		if o.DestinationKey == d {
			return o
		}
	}
	return nil
}

// fakeTransport is a socket of a Fake.
type fakeTransport struct {
	fake   *Fake
	closed bool
}

var _ Transport = (*fakeTransport)(nil)

// Limits returns the limits of a socket with small buffers.
func (t *fakeTransport) Limits() (bytes, answers int) {
	t.fake.mu.Lock()
	defer t.fake.mu.Unlock()
	return fakeLimit, t.fake.queue
}

// LoadModule does nothing: a Fake has what it has.
func (t *fakeTransport) LoadModule(string) {}

// Close closes the socket.
func (t *fakeTransport) Close() error {
	t.closed = true
	return nil
}

// RoundTrip carries out the request and hands out the answer.
func (t *fakeTransport) RoundTrip(request []byte, take func(datagram []byte) (done bool,
	err error)) error {
	if t.closed {
		return ErrClosed
	}
	if len(request) > fakeLimit {
		return syscall.EMSGSIZE
	}
	answer, overflow := t.fake.answer(request)
	for _, datagram := range answer {
		done, err := take(datagram)
		if err != nil {
			return err
		}
		if done && !overflow {
			return nil
		}
	}
	return ErrAnswersLost
}

// answer carries out the request and returns the datagrams of the answer, as many as the receive
// queue holds. The parts of a dump are made as they are read, so they always fit.
func (f *Fake) answer(request []byte) (datagrams [][]byte, overflow bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	queued := 0
	for rest := bytes.Clone(request); len(rest) > 0; {
		m, next, err := nextMessage(rest)
		if err != nil {
			return datagrams, overflow // as netlink_rcv_skb does
		}
		rest = next
		replies, isDump := f.handle(m)
		if isDump {
			datagrams = append(datagrams, replies...)
			continue
		}
		for _, r := range replies {
			if queued == f.queue {
				overflow = true
				break
			}
			queued++
			datagrams = append(datagrams, r)
		}
	}
	return datagrams, overflow
}
