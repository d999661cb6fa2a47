// Package ipvsfake is an IPVS in memory, for tests on kernels without IPVS.
package ipvsfake

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/test/rawnltest"
)

// Kernel is the IPVS of one network namespace. It reads and writes the bytes of messages. It makes
// the same checks as net/netfilter/ipvs/ip_vs_ctl.c, in the same order and with the same errnos,
// and lists the newest object first. It forwards no packets, so it has only the connections that
// [Kernel.SetStats] sets. A removed destination is gone at once.
//
// Its methods, and clients of it, may be used by many goroutines.
type Kernel struct {
	mu        sync.Mutex
	services  map[ipvsnl.ServiceKey]*service
	order     []*service // newest first
	timeouts  ipvsnl.Timeouts
	unloaded  bool
	interrupt int
	log       []string
}

// service is a service of a Kernel.
type service struct {
	ipvsnl.ObservedService
	destinations []*ipvsnl.ObservedDestination // newest first
}

const (
	// Family is the number of the generic netlink family.
	Family uint16 = 0x1b

	partSize   = 8 << 10 // size of the parts of a dump
	queueLen   = 128     // answers that the receive queue holds
	answerSize = 2 << 10 // how much a client reserves for one answer
)

// New returns the IPVS of a fresh network namespace. The kernel has all schedulers and the engine
// "sip".
func New() *Kernel {
	return &Kernel{services: map[ipvsnl.ServiceKey]*service{},
		timeouts: ipvsnl.Timeouts{TCP: 15 * time.Minute, TCPFin: 2 * time.Minute,
			UDP: 5 * time.Minute}}
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
	return &rawnltest.Kernel{Answer: k.Answer, Size: 64 << 10, Queue: queueLen * answerSize}
}

// Unload makes k a kernel without IPVS.
func (k *Kernel) Unload() { k.change(func() { k.unloaded = true }) }

// InterruptDumps makes the next n dumps say that they were interrupted.
func (k *Kernel) InterruptDumps(n int) { k.change(func() { k.interrupt = n }) }

// SetStats sets the statistics of a destination, or of its service if d is the zero key. The
// destination or service must exist.
func (k *Kernel) SetStats(svc ipvsnl.ServiceKey, d ipvsnl.DestinationKey, s ipvsnl.Stats) {
	k.change(func() {
		if d == (ipvsnl.DestinationKey{}) {
			k.services[svc].Stats = s
		} else {
			k.services[svc].find(d).Stats = s
		}
	})
}

// Log returns the commands that the kernel executed since the last ResetLog, in their order, one on
// each line: "new destination 10.1.0.1:8080 of TCP 10.0.0.1:80: weight 1 masquerade".
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
