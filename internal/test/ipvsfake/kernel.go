// Package ipvsfake is an IPVS in memory, for tests on kernels without IPVS.
package ipvsfake

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/test/rawnltest"
)

// Kernel is the IPVS of one network namespace. It reads and writes the bytes of messages, and lists
// the newest object first. Like net/netfilter/ipvs/ip_vs_ctl.c, it refuses objects that do not
// exist, exist already, or lack attributes, but it does not check values. It forwards no packets,
// so it has only the connections that [Kernel.SetStats] sets. A removed destination disappears at
// once.
//
// Its methods, and clients of it, may be used by many goroutines.
type Kernel struct {
	mu        sync.Mutex
	services  map[ipvsnl.ServiceKey]*service
	order     []*service // newest first
	timeouts  ipvsnl.Timeouts
	unloaded  bool
	broadcast netip.Addr
	lacking   []string
	interrupt int
	log       []string
}

// service is a service of a Kernel.
type service struct {
	ipvsnl.ObservedService
	destinations []*ipvsnl.ObservedDestination // newest first
}

// New returns the IPVS of a fresh network namespace.
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
	return &rawnltest.Kernel{Answer: k.Answer, Size: 64 << 10}
}

// Unload makes k a kernel without IPVS.
func (k *Kernel) Unload() { k.change(func() { k.unloaded = true }) }

// SetBroadcast makes an address a broadcast address of the machine, which cannot be a destination.
func (k *Kernel) SetBroadcast(a netip.Addr) { k.change(func() { k.broadcast = a }) }

// SetLacking makes k a kernel without some schedulers.
func (k *Kernel) SetLacking(schedulers ...string) { k.change(func() { k.lacking = schedulers }) }

// InterruptDumps makes the next n dumps say that they were interrupted.
func (k *Kernel) InterruptDumps(n int) { k.change(func() { k.interrupt = n }) }

// SetStats sets the statistics of a destination, or of its service if d is the zero key. The
// destination or service must exist.
func (k *Kernel) SetStats(svc ipvsnl.ServiceKey, d ipvsnl.DestinationKey, s ipvsnl.Stats) {
	k.change(func() {
		if is := k.services[svc]; d == (ipvsnl.DestinationKey{}) {
			is.Stats = s
		} else {
			is.destinations[is.index(d)].Stats = s
		}
	})
}

// Log returns the commands that the kernel executed since the last ResetLog, in their order, one on
// each line: "new destination 10.1.0.1:8080 of TCP 10.0.0.1:80: weight 1 masquerade".
func (k *Kernel) Log() (log []string) {
	k.change(func() { log = slices.Clone(k.log) })
	return log
}

// ResetLog makes the log empty.
func (k *Kernel) ResetLog() { k.change(func() { k.log = nil }) }

// Keys returns the keys of all services in their order.
func (k *Kernel) Keys() (keys []ipvsnl.ServiceKey) {
	k.change(func() { keys = slices.SortedFunc(maps.Keys(k.services), ipvsnl.ServiceKey.Compare) })
	return keys
}

// change calls do with the lock held.
func (k *Kernel) change(do func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	do()
}

// index returns the place of a destination, or -1.
func (s *service) index(d ipvsnl.DestinationKey) int {
	return slices.IndexFunc(s.destinations, func(o *ipvsnl.ObservedDestination) bool {
		return o.DestinationKey == d
	})
}

// schedulers are the schedulers of the kernel.
var schedulers = []string{"none", "rr", "wrr", "lc", "wlc", "lblc", "lblcr", "dh", "sh", "sed",
	"nq", "fo", "ovf", "mh"}

// do executes a command that is not a dump: ip_vs_genl_set_cmd and ip_vs_genl_get_cmd. A body is a
// reply.
func (k *Kernel) do(cmd ipvsnl.Command, attrs []byte) (body []byte, errno syscall.Errno) {
	switch cmd {
	case ipvsnl.CommandGetConfig:
		return Body(ipvsnl.CommandSetConfig, func(b *rawnl.Batch) {
			ipvsnl.PutTimeouts(b, k.timeouts)
		}), 0
	case ipvsnl.CommandSetConfig:
		t, err := ipvsnl.ParseTimeouts(attrs)
		if err != nil {
			return nil, syscall.EINVAL
		}
		old := k.timeouts // a timeout of zero stays
		k.timeouts = ipvsnl.Timeouts{TCP: cmp.Or(t.TCP, old.TCP),
			TCPFin: cmp.Or(t.TCPFin, old.TCPFin), UDP: cmp.Or(t.UDP, old.UDP)}
		return nil, 0
	}

	w, err := ipvsnl.Parse(attrs)
	if err != nil {
		return nil, syscall.EINVAL
	}
	key, err := w.Service.Key()
	if err != nil {
		return nil, syscall.EINVAL
	}
	found := k.services[key]
	if found == nil && cmd != ipvsnl.CommandNewService {
		return nil, syscall.ESRCH
	}
	switch cmd {
	case ipvsnl.CommandGetService:
		return ServiceBody(found.ObservedService), 0
	case ipvsnl.CommandNewService, ipvsnl.CommandSetService:
		return nil, k.putService(cmd, found, w.Service)
	case ipvsnl.CommandDelService:
		delete(k.services, key)
		k.order = slices.DeleteFunc(k.order, func(s *service) bool { return s == found })
		k.logf("%v %v", cmd, key)
		return nil, 0
	}

	return nil, k.aboutDestination(cmd, found, w.Destination)
}

// putService is ip_vs_add_service and ip_vs_edit_service.
func (k *Kernel) putService(cmd ipvsnl.Command, found *service,
	w ipvsnl.WireService) syscall.Errno {
	o, err := w.Observed()
	add := cmd == ipvsnl.CommandNewService
	switch {
	case err != nil:
		return syscall.EINVAL
	case add && found != nil:
		return syscall.EEXIST
	case !slices.Contains(schedulers, o.Scheduler), slices.Contains(k.lacking, o.Scheduler),
		o.PersistenceEngine != "" && o.PersistenceEngine != "sip":
		return syscall.ENOENT
	case add:
		found = &service{}
		k.services[o.ServiceKey] = found
		k.order = slices.Insert(k.order, 0, found)
	}

	found.Service = o.Service
	k.logf("%v %v: %s", cmd, o.ServiceKey, o.Scheduler)
	return 0
}

// aboutDestination is ip_vs_add_dest, ip_vs_edit_dest and ip_vs_del_dest.
func (k *Kernel) aboutDestination(cmd ipvsnl.Command, of *service,
	w ipvsnl.WireDestination) syscall.Errno {
	key, err := w.Key(of.Family)
	o, whole := w.Observed(of.Family)
	i, add := of.index(key), cmd == ipvsnl.CommandNewDestination
	switch {
	case err != nil, whole != nil && cmd != ipvsnl.CommandDelDestination,
		add && key.Addr == k.broadcast:
		return syscall.EINVAL
	case add && i >= 0:
		return syscall.EEXIST
	case !add && i < 0:
		return syscall.ENOENT
	}

	switch cmd {
	case ipvsnl.CommandNewDestination:
		of.destinations = slices.Insert(of.destinations, 0,
			&ipvsnl.ObservedDestination{Destination: o.Destination})
	case ipvsnl.CommandSetDestination:
		of.destinations[i].Destination = o.Destination
	case ipvsnl.CommandDelDestination:
		of.destinations = slices.Delete(of.destinations, i, i+1)
		k.logf("%v %v of %v", cmd, key, of.ServiceKey)
		return 0
	}

	k.logf("%v %v of %v: weight %d %v", cmd, key, of.ServiceKey, o.Weight, o.Forward)
	return 0
}

// logf adds a line to the log.
func (k *Kernel) logf(format string, args ...any) {
	k.log = append(k.log, fmt.Sprintf(format, args...))
}

// Sockopt reads a socket option of IPVS into b: the IPv4 services, or the destinations of a
// service. b begins with the request, which limits the number of objects.
func (k *Kernel) Sockopt(option int, b []byte) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	start, size, at := ipvsnl.OutlinesStart, ipvsnl.OutlineSize, 0
	var entries [][]byte
	switch option {
	case ipvsnl.GetServices:
		for _, s := range k.order {
			if s.Family == ipvsnl.FamilyIPv4 {
				o := ipvsnl.OutlineOf(s.Service, len(s.destinations))
				entries = append(entries, o[:])
			}
		}
	case ipvsnl.GetDestinations:
		start, size, at = ipvsnl.DestinationsStart, ipvsnl.DestinationSize, 16
		i := slices.IndexFunc(k.order, func(s *service) bool {
			var key [16]byte
			ipvsnl.PutOutlineKey(key[:], s.ServiceKey)
			return s.Family == ipvsnl.FamilyIPv4 && [16]byte(b) == key
		})
		if i < 0 {
			return syscall.ESRCH
		}
		for _, d := range k.order[i].destinations {
			if d.Addr.Is4() {
				o := ipvsnl.OutlineDestinationOf(d.Destination)
				entries = append(entries, o[:])
			}
		}
	}

	if len(b) < start || len(b) != start+size*int(binary.NativeEndian.Uint32(b[at:])) {
		return syscall.EINVAL
	}
	for i := 0; i < len(entries) && start+i*size < len(b); i++ {
		copy(b[start+i*size:], entries[i])
	}
	return nil
}
