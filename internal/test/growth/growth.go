// Package growth tests that the cost of a parser grows no faster than its input.
package growth

import (
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"
)

const (
	// enough is the time of a run that ends the growth of inputs.
	enough = 40 * time.Millisecond
	// tangible is the least time of runs that are compared. Shorter runs vary too much.
	tangible = time.Millisecond
	// mostTime and mostBytes limit the cost of an input that is four times as large, as multiples.
	// Linear cost grows 4 times, and a little more for sorting; quadratic cost grows 16 times. Time
	// also grows where the larger input no longer fits into a cache: 9.3 times was seen.
	mostTime, mostBytes = 12, 9
	// tries is how often a run is repeated for its least cost, because the machine may be busy.
	tries = 3
	// doubts is how often a comparison is repeated if the cost seems to grow too fast.
	doubts = 8
)

// Linear requires that run takes at most linear time and memory. input makes inputs of a size. The
// sizes begin at 64 and double up to the largest, or until one run takes forty milliseconds.
// Nothing else of the process should run meanwhile, so the test must not be parallel.
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

// Texts is [Linear] for texts, by their names. The part of a text between « and » is repeated. In
// that part, %d stands for its number, from 1 on, and %x for the number in hexadecimal.
func Texts(t *testing.T, largest int, texts map[string]string, run func(text string)) {
	for name, text := range texts {
		t.Run(name, func(t *testing.T) {
			before, rest, _ := strings.Cut(text, "«")
			part, after, _ := strings.Cut(rest, "»")
			Linear(t, largest, func(size int) string {
				var b strings.Builder
				for i := range size {
					b.WriteString(strings.NewReplacer("%d", strconv.Itoa(i+1),
						"%x", strconv.FormatInt(int64(i+1), 16)).Replace(part))
				}

				return before + b.String() + after
			}, run)
		})
	}
}

// cost is what a run takes.
type cost struct {
	time  time.Duration
	bytes uint64 // allocated in all
}

// grewMore reports whether an input that is four times as large costs more than linear growth
// explains. Costs that are too small to compare count as not grown.
func (c cost) grewMore(quarter cost) bool {
	return quarter.time >= tangible && c.time > mostTime*quarter.time ||
		quarter.bytes >= 1<<20 && c.bytes > mostBytes*quarter.bytes
}

func (c cost) lesser(o cost) cost { return cost{min(c.time, o.time), min(c.bytes, o.bytes)} }

// best returns the least cost of several runs. A short run is not repeated.
func best[T any](in T, run func(T)) cost {
	out := measure(in, run)
	for try := 1; try < tries && out.time >= tangible/2; try++ {
		out = out.lesser(measure(in, run))
	}
	return out
}

// measure returns the cost of one run. If the system tells it, the time is processor time of this
// thread. So it has neither other processes in it nor the garbage collector.
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
