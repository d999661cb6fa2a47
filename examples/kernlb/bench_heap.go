package main

import (
	"runtime"
	"runtime/metrics"
	"time"
)

// peakHeap runs f and returns the maximum size of the heap meanwhile, in MB. The heap includes the
// state and garbage that is not swept yet. The garbage collector has its default setting
// (GOGC=100). The size is sampled every few milliseconds.
func peakHeap(f func()) float64 {
	runtime.GC()
	stop, peak := make(chan struct{}), make(chan uint64)
	go func() {
		t := time.NewTicker(2 * time.Millisecond)
		defer t.Stop()
		greatest := heapSize()
		for {
			select {
			case <-t.C:
				greatest = max(greatest, heapSize())
			case <-stop:
				peak <- max(greatest, heapSize())
				return
			}
		}
	}()
	f()
	close(stop)
	return float64(<-peak) / (1 << 20)
}

// heapSize returns the size of live and unswept objects. Reading this metric does not stop the
// program.
func heapSize() uint64 {
	s := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}
