package conntrack

import (
	"context"
	"iter"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/internal/netnstest"
)

// benchFlows is the number of flows on the machine, from the environment variable
// KERNLB_BENCH_FLOWS. A namespace holds no more than nf_conntrack_max, which only the initial one
// can raise; but all share one hash table, so the rest goes to others: a walk over the table costs
// the same, and what a pass over more flows would cost can be told from the flows of one.
func benchFlows(b *testing.B) int {
	s := os.Getenv("KERNLB_BENCH_FLOWS")
	if s == "" {
		return 100_000
	}
	n, err := strconv.Atoi(s)
	require.NoError(b, err)
	return n
}

// fill makes n flows, three of four TCP, to 100 frontends with 10 endpoints each.
func fill(n int) iter.Seq2[Flow, error] {
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

// benchTable returns a table with its share of the flows of the machine, and how many these are.
func benchTable(b *testing.B) (*Table, int) {
	b.Helper()
	const share = 250_000
	var first *Table
	own := 0
	for rest := benchFlows(b); rest > 0; rest -= share {
		table, _ := newTable(b)
		c, err := table.Create(context.Background(), fill(min(rest, share)))
		require.NoError(b, err)
		if first == nil {
			first, own = table, c.Created
		}
	}
	return first, own
}

// meter adds up what runs of f allocate and the time of the CPU they take, the kernel's work for
// them included, which a busy machine distorts less than the time on the clock.
type meter struct{ cpu, allocated, runs float64 }

func (m *meter) run(f func()) {
	var mem runtime.MemStats
	var before, after unix.Rusage
	runtime.GC()
	runtime.ReadMemStats(&mem)
	allocated := mem.TotalAlloc
	unix.Getrusage(unix.RUSAGE_SELF, &before) //nolint:errcheck // cannot fail
	f()
	unix.Getrusage(unix.RUSAGE_SELF, &after) //nolint:errcheck // cannot fail
	runtime.ReadMemStats(&mem)
	m.cpu += float64(
		after.Utime.Nano()+after.Stime.Nano()-before.Utime.Nano()-before.Stime.Nano()) / 1e6
	m.allocated += float64(mem.TotalAlloc-allocated) / 1e6
	m.runs++
}

func (m *meter) report(b *testing.B) {
	b.ReportMetric(m.cpu/m.runs, "cpu-ms/op")
	b.ReportMetric(m.allocated/m.runs, "MB-allocated/op")
}

func BenchmarkFlows(b *testing.B) {
	table, own := benchTable(b)
	frontend := Filter{Protocol: UDP, OriginalDst: addr("10.96.0.4"), OriginalDstPort: 53}
	nobody := frontend
	nobody.OriginalDst = addr("10.97.0.1")
	for _, c := range []struct {
		name   string
		filter Filter
	}{
		{"all", Filter{}},
		{"protocol", Filter{Family: IPv4, Protocol: UDP}},
		{"frontend", frontend},
		{"endpoint", Filter{Protocol: UDP, ReplySrc: addr("10.244.4.3"), ReplySrcPort: 5353}},
		{"nothing", nobody},
	} {
		b.Run(c.name, func(b *testing.B) {
			var m meter
			n := 0
			for b.Loop() {
				m.run(func() {
					n = 0
					for _, err := range table.Flows(context.Background(), c.filter) {
						require.NoError(b, err)
						n++
					}
				})
			}
			m.report(b)
			b.ReportMetric(float64(n), "flows")
			b.ReportMetric(float64(own), "flows-in-table")
		})
	}
}

func BenchmarkClean(b *testing.B) {
	table, _ := benchTable(b)
	frontend, endpoints := FrontendKey{addr("10.96.0.4"), 53, UDP}, []netip.AddrPort{}
	for i := range 9 {
		endpoints = append(endpoints,
			netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 4, byte(i)}), 5353))
	}
	m, err := NewMatcher(
		Change{Frontends: []Frontend{{Key: frontend, Endpoints: endpoints, Untranslated: true}}})
	require.NoError(b, err)
	for _, c := range []struct {
		name string
		opts CleanOptions
	}{{"narrow", CleanOptions{Scan: ScanNarrow}}, {"protocol", CleanOptions{Scan: ScanProtocol}},
		{"all", CleanOptions{Scan: ScanAll}}} {
		b.Run(c.name, func(b *testing.B) {
			var use meter
			for b.Loop() {
				b.StopTimer()
				var stale []Flow
				for f, err := range table.Flows(context.Background(),
					Filter{ReplySrc: addr("10.244.4.9")}) {
					require.NoError(b, err)
					stale = append(stale, f)
				}
				var got CleanResult
				b.StartTimer()
				use.run(func() { got, err = table.Clean(context.Background(), m, c.opts) })
				b.StopTimer()
				require.NoError(b, err)
				require.Equal(b, len(stale), got.Deleted)
				b.ReportMetric(float64(got.Deleted), "deleted")
				b.ReportMetric(float64(got.Seen), "seen")
				_, err = table.Create(context.Background(), All(stale...))
				require.NoError(b, err)
				b.StartTimer()
			}
			use.report(b)
		})
	}
}

func BenchmarkCreateDelete(b *testing.B) {
	table, _ := newTable(b)
	const n = 50_000
	var creating, deleting time.Duration
	for b.Loop() {
		start := time.Now()
		_, err := table.Create(context.Background(), fill(n))
		require.NoError(b, err)
		creating += time.Since(start)
		var flows []Flow
		for f := range table.Flows(context.Background(), Filter{}) {
			flows = append(flows, f)
		}
		start = time.Now()
		d, err := table.Delete(context.Background(), All(flows...))
		require.NoError(b, err)
		require.Equal(b, n, d.Deleted)
		deleting += time.Since(start)
	}
	b.ReportMetric(float64(b.N)*n/creating.Seconds(), "created/s")
	b.ReportMetric(float64(b.N)*n/deleting.Seconds(), "deleted/s")
}

func BenchmarkParseFlow(b *testing.B) {
	attrs := recordings(b)[0].attrs
	var f Flow
	b.ReportAllocs()
	for b.Loop() {
		if err := parseFlow(attrs, &f, wantAll); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkClassify(b *testing.B) {
	c := Change{NodeAddrs: []netip.Addr{addr("192.0.2.10")}}
	for i := range 10_000 {
		c.Frontends = append(c.Frontends, Frontend{
			Key:       FrontendKey{netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), 53, UDP},
			Endpoints: aps("10.244.0.5:5353", "10.244.0.6:5353"),
		})
	}
	m, err := NewMatcher(c)
	require.NoError(b, err)
	f := flow(UDP, client, "10.96.0.10:53", "10.244.0.5:5353", "")
	b.ReportAllocs()
	for b.Loop() {
		if m.Classify(&f) != Current {
			b.Fatal("the endpoint may keep it")
		}
	}
}

// The ends are pods that know nothing of the connections, and answer with a reset of their own.
func BenchmarkCut(b *testing.B) {
	cluster := netnstest.Start(b, netnstest.Options{RemotePods: -1, OutsideClients: -1})
	table := openIn(b, cluster.Node.NS)
	rules(b, cluster.Node.NS, "", "")
	const n = 5000
	var flows []Flow
	for i := range n {
		f := flow(TCP, "10.244.1.1:1", "10.96.0.10:80", "10.244.1.2:8080", "")
		f.Original.Src = netip.AddrPortFrom(cluster.Pods[0].IPv4, uint16(1024+i))
		f.Reply.Src, f.Reply.Dst = netip.AddrPortFrom(cluster.Pods[1].IPv4, 8080), f.Original.Src
		f.TCP, f.Timeout = TCPEstablished, time.Minute
		flows = append(flows, f)
	}
	for b.Loop() {
		b.StopTimer()
		_, err := table.Delete(context.Background(), table.Flows(context.Background(), Filter{}))
		require.NoError(b, err)
		_, err = table.Create(context.Background(), All(flows...))
		require.NoError(b, err)
		b.StartTimer()
		cut, err := table.Cut(context.Background(), table.Flows(context.Background(),
			Filter{OriginalDst: addr("10.96.0.10")}))
		require.NoError(b, err)
		require.Equal(b, CutResult{Deleted: n, Reset: n}, cut)
	}
	b.ReportMetric(n*float64(b.N)/b.Elapsed().Seconds(), "connections/s")
}
