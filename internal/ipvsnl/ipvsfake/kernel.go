// Package ipvsfake is the IPVS of a network namespace in memory, for tests that must run where the
// kernel has none.
package ipvsfake

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/rawnl/rawnltest"
)

// Kernel is the IPVS of one network namespace. It works on the bytes of the messages, refuses what
// net/netfilter/ipvs/ip_vs_ctl.c refuses, with the same errno and in the same order of checks, and
// lists in an order that is as little sorted. It forwards nothing, and so knows no connections but
// those it is told of; a destination that is removed is gone at once.
//
// Its methods, and clients of it, may be used by many goroutines.
type Kernel struct {
	mu         sync.Mutex
	services   map[ipvsnl.ServiceKey]*service
	order      []*service // newest first
	schedulers map[string]bool
	engines    map[string]bool
	timeouts   ipvsnl.Timeouts
	unloaded   bool
	noIPv6     bool
	interrupt  int
	queue      int
	fault      Fault
	log        []string
}

// Fault returns the errno that a command about a service or a destination fails with, 0 for none.
type Fault func(ipvsnl.Command, ipvsnl.ServiceKey, ipvsnl.DestinationKey) syscall.Errno

// service is a service of a Kernel.
type service struct {
	ipvsnl.ObservedService
	destinations []*ipvsnl.ObservedDestination // newest first
}

const (
	// Family is the number of the generic netlink family.
	Family uint16 = 0x1b
	// RequestLimit is how many bytes a request may have.
	RequestLimit = 64 << 10

	partSize     = 8 << 10  // size of the parts of a dump
	defaultQueue = 128      // answers that the receive queue holds
	answerSize   = 2 << 10  // what a client takes one answer for
	version      = 0x010201 // IP_VS_VERSION_CODE
	connBits     = 12       // CONFIG_IP_VS_TAB_BITS
)

// New returns the IPVS of a fresh network namespace, of a kernel with all schedulers and the engine
// "sip".
func New() *Kernel {
	k := &Kernel{
		services: map[ipvsnl.ServiceKey]*service{}, schedulers: map[string]bool{},
		engines: map[string]bool{"sip": true}, queue: defaultQueue,
		timeouts: ipvsnl.Timeouts{TCP: 15 * time.Minute, TCPFin: 2 * time.Minute,
			UDP: 5 * time.Minute},
	}
	for _, name := range []string{
		"none", "rr", "wrr", "lc", "wlc", "lblc", "lblcr", "dh", "sh", "sed", "nq", "fo", "ovf",
		"mh", "twos",
	} {
		k.schedulers[name] = true
	}
	return k
}

// Dial returns a client of k. The NetNS of cfg is ignored.
func (k *Kernel) Dial(ctx context.Context, cfg *rawnl.Config) (*ipvsnl.Client, error) {
	var c rawnl.Config
	if cfg != nil {
		c = *cfg
	}
	c.Socket = k.Socket()
	return ipvsnl.Dial(ctx, &c)
}

// Socket returns a socket with small buffers.
func (k *Kernel) Socket() *rawnltest.Kernel {
	k.mu.Lock()
	defer k.mu.Unlock()
	return &rawnltest.Kernel{Answer: k.Answer, Size: RequestLimit, Queue: k.queue * answerSize}
}

// Unload makes k a kernel without IPVS.
func (k *Kernel) Unload() { k.change(func() { k.unloaded = true }) }

// DisableIPv6 makes k a kernel that was booted with ipv6.disable=1.
func (k *Kernel) DisableIPv6() { k.change(func() { k.noIPv6 = true }) }

// RemoveScheduler makes k a kernel without the scheduler.
func (k *Kernel) RemoveScheduler(name string) { k.change(func() { delete(k.schedulers, name) }) }

// SetQueue limits how many answers a receive queue holds. At first, it is 128. Clients that exist
// do not learn of it.
func (k *Kernel) SetQueue(answers int) { k.change(func() { k.queue = answers }) }

// InterruptDumps makes the next n dumps say that they were interrupted.
func (k *Kernel) InterruptDumps(n int) { k.change(func() { k.interrupt = n }) }

// SetFault makes commands fail. The fault is asked before anything else is looked at, with the lock
// of k held: it must not use k. Nil means no faults.
func (k *Kernel) SetFault(fault Fault) { k.change(func() { k.fault = fault }) }

// SetConns sets the connections of a destination, which must be there.
func (k *Kernel) SetConns(svc ipvsnl.ServiceKey, d ipvsnl.DestinationKey, active, inactive,
	persistent uint32) {
	k.change(func() {
		o := k.services[svc].find(d)
		o.ActiveConns, o.InactiveConns, o.PersistentConns = active, inactive, persistent
	})
}

// SetStats sets the statistics of a destination, or of its service if d is the zero key. It must be
// there.
func (k *Kernel) SetStats(svc ipvsnl.ServiceKey, d ipvsnl.DestinationKey, s ipvsnl.Stats) {
	k.change(func() {
		if d == (ipvsnl.DestinationKey{}) {
			k.services[svc].Stats = s
		} else {
			k.services[svc].find(d).Stats = s
		}
	})
}

// Log returns what the kernel was asked to change since the last ResetLog, one line for each
// command that it carried out, in their order: "new destination 10.1.0.1:8080 of TCP 10.0.0.1:80:
// weight 1 masquerade".
func (k *Kernel) Log() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.log)
}

// ResetLog makes the log empty.
func (k *Kernel) ResetLog() { k.change(func() { k.log = nil }) }

// Keys returns the keys of all services in their order.
func (k *Kernel) Keys() []ipvsnl.ServiceKey {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.SortedFunc(maps.Keys(k.services), ipvsnl.ServiceKey.Compare)
}

// change calls set with the lock held.
func (k *Kernel) change(set func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	set()
}

// find returns the destination, nil if there is none.
func (s *service) find(d ipvsnl.DestinationKey) *ipvsnl.ObservedDestination {
	i := slices.IndexFunc(s.destinations, func(o *ipvsnl.ObservedDestination) bool {
		return o.DestinationKey == d
	})
	if i < 0 {
		return nil
	}
	return s.destinations[i]
}

// logf adds a line to the log.
func (k *Kernel) logf(format string, args ...any) {
	k.log = append(k.log, fmt.Sprintf(format, args...))
}
