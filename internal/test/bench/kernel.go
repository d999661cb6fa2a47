package main

import (
	"errors"
	"runtime"
	"runtime/metrics"
	"sync"
	"time"

	"github.com/kernlb/kernlb/dataplane/netns"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	wire "github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/test/busywriter"
)

// kernelShare measures the minimum time of the kernel for a change, with prepared messages: a
// transaction that changes nothing, and a transaction that replaces an element of a map.
func (b *benchmark) kernelShare() {
	if b.err != nil {
		return
	}
	conn, err := rawnl.Dial(nil)
	if err != nil {
		b.err = err
		return
	}

	const table = "kernlb-bench"
	commit := func(write func(e *wire.Encoder)) (took time.Duration, err error) {
		var batch rawnl.Batch
		write(wire.NewEncoder(&batch, wire.IPv4, table))
		start := time.Now()
		err = conn.Commit(b.ctx, &batch, 0)
		return time.Since(start), err
	}

	fields := append(wire.IPv4.FrontendFields(false), wire.FieldSlot)
	m := &wire.Set{Name: "endpoints", Key: fields, Size: 1 << 17, Flags: wire.SetMap, Typeof: true,
		Data: []wire.Field{wire.IPv4.Addr, wire.FieldPort}}
	elem := func(i int) *wire.ElemList {
		l := &wire.ElemList{}
		l.Add(wire.Elem{Key: make([]byte, 16),
			Data: []byte{byte(i >> 8), byte(i), 0, 0, 0, 80, 0, 0}})
		return l
	}

	_, err = commit(func(e *wire.Encoder) {
		e.AddTable()
		e.AddSet(m)
		e.Elements(wire.Add, m, elem(0))
	})
	var nothing, element []time.Duration
	for i := 0; i < smallRuns && err == nil; i++ {
		var empty, one time.Duration
		empty, err = commit((*wire.Encoder).EnsureTable)
		if err == nil {
			one, err = commit(func(e *wire.Encoder) {
				e.Elements(wire.Delete, m, elem(i))
				e.Elements(wire.Add, m, elem(i+1))
			})
		}

		nothing, element = append(nothing, empty), append(element, one)
	}

	b.note("kernel_empty_transaction", "  an empty transaction", newTiming(nothing, 1))
	b.note("kernel_bare_element", "  a bare element", newTiming(element, 2))
	_, gone := commit((*wire.Encoder).DeleteTable)
	b.err = errors.Join(err, gone, conn.Close())
}

// peakHeap runs f and returns the maximum size of the heap during f, in MB. The heap includes the
// state and garbage that is not swept yet. The garbage collector has its default setting
// (GOGC=100). The size is sampled every few milliseconds.
func peakHeap(f func()) float64 {
	runtime.GC()
	peak, done := heapSize(), make(chan struct{})
	var sampler sync.WaitGroup
	sampler.Go(func() {
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				peak = max(peak, heapSize())
			case <-done:
				return
			}
		}
	})

	f()
	close(done)
	sampler.Wait()
	return float64(max(peak, heapSize())) / (1 << 20)
}

// heapSize returns the size of live and unswept objects. Reading this metric does not stop the
// program.
func heapSize() uint64 {
	s := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}

// besideNeighbour measures while a neighbour commits to nf_tables 50 times a second.
func (b *benchmark) besideNeighbour() {
	start := time.Now()
	var small timing
	var adopt large
	waits := b.beside("", func() {
		small = b.small(pacedRuns, b.replaceAtPace)
		adopt = b.large(adoptRuns, b.replaceEndpoint)
	})
	commits := perSecond(float64(len(waits)) / time.Since(start).Seconds())
	b.note("neighbour_commits_per_second", "beside a neighbour that commits", commits)
	b.note("busy_one_endpoint_paced", paced, small)
	b.note("busy_adopt", "adopt, one replaced", adopt)
}

// holdingUp measures the duration of a neighbour's commits during full syncs, in the same network
// namespace and in another namespace.
func (b *benchmark) holdingUp() {
	if b.err != nil {
		return
	}
	ns, err := netnstest.NewNS("neighbour")
	if err != nil {
		b.err = err
		return
	}

	var sync large
	all := map[netns.Namespace][]time.Duration{}
	for _, at := range []netns.Namespace{"", ns.NetNS()} {
		for i := 0; i < syncRuns && b.err == nil; i++ {
			_, b.err = b.engine.Cleanup(b.ctx)
			b.close() // waits until the kernel has freed the tables
			all[at] = append(all[at], b.beside(at, func() {
				sync = b.large(1, b.same)
			})...)
		}
	}

	if b.err == nil {
		b.note("busy_full_sync", "full sync", sync)
		b.note("neighbour_during_full_sync", "commits beside it", newTiming(all[""], 0))
		b.note("neighbour_elsewhere_during_full_sync", "  of other namespaces",
			newTiming(all[ns.NetNS()], 0))
	}

	b.err = errors.Join(b.err, ns.Close())
}

// beside calls measure while a neighbour commits in a network namespace, and returns the durations
// of the neighbour's commits.
func (b *benchmark) beside(ns netns.Namespace, measure func()) []time.Duration {
	if b.err != nil {
		return nil
	}
	n, err := busywriter.Start(b.ctx, ns)
	if err != nil {
		b.err = err
		return nil
	}

	measure()
	waits, err := n.Close()
	b.err = errors.Join(b.err, err)
	return waits
}
