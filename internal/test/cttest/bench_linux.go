package cttest

//lint:file-ignore ST1001 helpers read like the tests that they serve, which import the package so

import (
	"iter"
	"net/netip"
	"runtime"
	"time"

	. "github.com/kernlb/kernlb/conntrack"
	"golang.org/x/sys/unix"
)

// BenchFlows yields n flows, three of four TCP, to 100 frontends with 10 endpoints each.
func BenchFlows(n int) iter.Seq2[Flow, error] {
	return func(yield func(Flow, error) bool) {
		for i := range n {
			f := Flow{Protocol: TCP, TCP: TCPEstablished, Status: StatusSeenReply | StatusAssured,
				Timeout: time.Hour}
			if i%4 == 0 {
				f.Protocol, f.TCP = UDP, 0
			}
			f.Original = Tuple{
				Src: netip.AddrPortFrom(
					netip.AddrFrom4([4]byte{10, 1, byte(i >> 16), byte(i >> 8)}),
					uint16(1024+i&0xff)),
				Dst: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, 0, byte(i % 100)}), 53),
			}
			f.Reply = Tuple{
				Src: netip.AddrPortFrom(
					netip.AddrFrom4([4]byte{10, 244, byte(i % 100), byte(i / 100 % 10)}), 5353),
				Dst: f.Original.Src,
			}
			if !yield(f, nil) {
				return
			}
		}
	}
}

// Run calls f, and adds the memory and the time that the call took.
func (m *Meter) Run(f func()) {
	var mem runtime.MemStats
	var before, after unix.Rusage
	runtime.GC()
	runtime.ReadMemStats(&mem)
	allocated := mem.TotalAlloc
	unix.Getrusage(unix.RUSAGE_SELF, &before) //nolint:errcheck // cannot fail
	f()
	unix.Getrusage(unix.RUSAGE_SELF, &after) //nolint:errcheck // cannot fail
	runtime.ReadMemStats(&mem)
	m.CPU += float64(
		after.Utime.Nano()+after.Stime.Nano()-before.Utime.Nano()-before.Stime.Nano()) / 1e6
	m.Allocated += float64(mem.TotalAlloc-allocated) / 1e6
	m.Runs++
}

// Meter sums up the allocations and the CPU time of runs of f. The CPU time includes the kernel's
// work for them. A busy machine distorts it less than the time on the clock.
type Meter struct{ CPU, Allocated, Runs float64 }
