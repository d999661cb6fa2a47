// Package growth tests that what a parser costs grows no faster than its input.
package growth

import (
	"runtime"
	"runtime/debug"
	"testing"
	"time"
)

const (
	// enough is the time of one run after which inputs grow no further.
	enough = 40 * time.Millisecond
	// tangible is the time from which runs are compared: shorter ones say nothing.
	tangible = time.Millisecond
	// most limits the cost of an input that is four times as large, as a multiple. Linear cost
	// grows 4 times, and a little more for sorting and caches; quadratic cost grows 16 times.
	most = 9
	// tries is how often a run that counts is repeated: the machine may be busy.
	tries = 3
	// doubts is how often runs are repeated that seem to grow too fast.
	doubts = 8
)

// Linear requires that run takes at most linear time and memory. It gets inputs that input makes of
// sizes from 64 on, each twice the one before, up to the largest size, or until one run takes
// forty milliseconds. Nothing else of the process should run meanwhile, so the test must not be
// parallel.
func Linear[T any](tb testing.TB, largest int, input func(size int) T, run func(T)) {
	tb.Helper()
	if testing.Short() {
		return // the race detector's own work is not linear
	}
	var costs []cost
	for size := 64; size <= largest; size *= 2 {
		took := best(input(size), run)
		costs = append(costs, took)
		if i := len(costs) - 3; i >= 0 {
			quarter := costs[i]
			for try := 0; try < doubts && took.grewMore(quarter); try++ { // the machine was busy
				quarter = quarter.lesser(best(input(size/4), run))
				took = took.lesser(best(input(size), run))
			}
			if took.grewMore(quarter) {
				tb.Errorf("%d items take %v and %d bytes, %d take %v and %d bytes: "+
					"more than linear", size/4, quarter.time, quarter.bytes, size, took.time,
					took.bytes)
				return
			}
		}
		if took.time >= enough {
			return
		}
	}
}

// cost is what a run takes.
type cost struct {
	time  time.Duration
	bytes uint64 // allocated in all
}

// grewMore reports whether an input that is four times as large costs more than linear growth
// explains. Costs that are too small to be compared did not grow.
func (c cost) grewMore(quarter cost) bool {
	return quarter.time >= tangible && c.time > most*quarter.time ||
		quarter.bytes >= 1<<20 && c.bytes > most*quarter.bytes
}

func (c cost) lesser(o cost) cost { return cost{min(c.time, o.time), min(c.bytes, o.bytes)} }

// best returns the least that a run takes. A short one runs once.
func best[T any](in T, run func(T)) cost {
	out := measure(in, run)
	for try := 1; try < tries && out.time >= tangible/2; try++ {
		out = out.lesser(measure(in, run))
	}
	return out
}

// measure returns what one run takes. The time is that of the processor, where the system tells it:
// other processes do not count, and neither does the garbage collector, which works by chance.
func measure[T any](in T, run func(T)) cost {
	runtime.GC()
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start := now()
	run(in)
	took := now() - start
	runtime.ReadMemStats(&after)
	return cost{took, after.TotalAlloc - before.TotalAlloc}
}
