package main

import (
	"runtime"
	"runtime/metrics"
	"time"
)

// peakHeap runs f and returns the greatest size of the heap meanwhile, in MB: of all objects that
// were not swept yet, those of the state and garbage counted. It is what the program has at that
// moment, as the garbage collector is set by default (GOGC=100), looked at every few milliseconds.
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

// heapSize is the size of the live and not yet swept heap. Reading this metric does not stop the
// program.
func heapSize() uint64 {
	s := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}
