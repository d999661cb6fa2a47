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
	// enough is a time: inputs no longer grow once a run has taken this time.
	enough = 40 * time.Millisecond
	// tangible is the minimum time of compared runs. Shorter runs vary too much.
	tangible = time.Millisecond
	// mostTime and mostBytes limit the factors by which cost grows for an input that is four times
	// as large. Linear cost grows 4 times, and a little more for sorting; quadratic cost grows 16
	// times. Time also grows if the larger input no longer fits into a cache: a factor of 9.3 was
	// seen.
	mostTime, mostBytes = 12, 9
	// tries is the number of runs, of which the cheapest counts, because the machine may be busy.
	tries = 3
	// doubts is the number of repeated comparisons if the cost seems to grow too fast.
	doubts = 8
)

// Linear requires that run takes at most linear time and memory. input returns an input of a size.
// The sizes begin at 64 and double up to the largest, or until a run takes forty milliseconds.
// Nothing else in the process should run at the same time, so the test must not be parallel.
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
// that part, %d is replaced by the number of the repetition, from 1, and %x by that number in
// hexadecimal.
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

// cost is the cost of a run.
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

// best returns the minimum cost of several runs. A short run is not repeated.
func best[T any](in T, run func(T)) cost {
	out := measure(in, run)
	for try := 1; try < tries && out.time >= tangible/2; try++ {
		out = out.lesser(measure(in, run))
	}
	return out
}

// measure returns the cost of one run. If the system reports it, the time is the processor time of
// this thread. That time includes neither other processes nor the garbage collector.
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
