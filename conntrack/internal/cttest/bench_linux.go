package cttest

//lint:file-ignore ST1001 helpers read like the tests that they serve, which import the package so

import (
	"context"
	"iter"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	. "github.com/kernlb/kernlb/conntrack"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// flowsOnMachine is the number of flows on the machine, from the environment variable
// KERNLB_BENCH_FLOWS. A namespace holds no more than nf_conntrack_max, which only the initial one
// can raise; but all share one hash table, so the rest goes to others: a walk over the table costs
// the same, and what a pass over more flows would cost can be told from the flows of one.
func flowsOnMachine(b *testing.B) int {
	s := os.Getenv("KERNLB_BENCH_FLOWS")
	if s == "" {
		return 100_000
	}
	n, err := strconv.Atoi(s)
	require.NoError(b, err)
	return n
}

// BenchFlows makes n flows, three of four TCP, to 100 frontends with 10 endpoints each.
func BenchFlows(n int) iter.Seq2[Flow, error] {
	return func(yield func(Flow, error) bool) {
		for i := range n {
			f := Flow{Protocol: TCP, TCP: TCPEstablished, Status: StatusSeenReply | StatusAssured,
				Timeout: time.Hour}
			if i%4 == 0 {
				f.Protocol, f.TCP = UDP, TCPNone
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

// BenchTable returns a table with its share of the flows of the machine, and how many these are.
func BenchTable(b *testing.B) (*Table, int) {
	b.Helper()
	const share = 250_000
	var first *Table
	own := 0
	for rest := flowsOnMachine(b); rest > 0; rest -= share {
		table, _ := NewTable(b)
		c, err := table.Create(context.Background(), BenchFlows(min(rest, share)))
		require.NoError(b, err)
		if first == nil {
			first, own = table, c.Created
		}
	}
	return first, own
}

// Run calls f, and adds what that took.
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

// Report reports what a run took on average.
func (m *Meter) Report(b *testing.B) {
	b.ReportMetric(m.CPU/m.Runs, "cpu-ms/op")
	b.ReportMetric(m.Allocated/m.Runs, "MB-allocated/op")
}

// Meter adds up what runs of f allocate and the time of the CPU they take, the kernel's work for
// them included, which a busy machine distorts less than the time on the clock.
type Meter struct{ CPU, Allocated, Runs float64 }
