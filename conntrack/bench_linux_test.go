package conntrack

import (
	"context"
	"fmt"
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

// benchFlows is the number of flows on the machine, from the environment variable KERNLB_BENCH_FLOWS. A namespace holds no
// more than nf_conntrack_max, which only the initial one can raise; but all share one hash table, so the rest goes to others:
// a walk over the table costs the same, and what a pass over more flows would cost can be told from the flows of one.
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
			f := Flow{Protocol: TCP, TCP: TCPEstablished, Status: StatusSeenReply | StatusAssured, Timeout: time.Hour}
			if i%4 == 0 {
				f.Protocol, f.TCP = UDP, TCPNone
			}
			f.Original = Tuple{
				Src: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 16), byte(i >> 8)}), uint16(1024+i&0xff)),
				Dst: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, 0, byte(i % 100)}), 53),
			}
			f.Reply = Tuple{
				Src: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(i % 100), byte(i / 100 % 10)}), 5353),
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

// meter adds up what runs of f allocate and the time of the CPU they take, the kernel's work for them included, which a
// busy machine distorts less than the time on the clock.
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
	m.cpu += float64(after.Utime.Nano()+after.Stime.Nano()-before.Utime.Nano()-before.Stime.Nano()) / 1e6
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
	frontend, backends := Frontend{addr("10.96.0.4"), 53, UDP}, []netip.AddrPort{}
	for i := range 9 {
		backends = append(backends, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 4, byte(i)}), 5353))
	}
	m, err := NewMatcher(Change{Claims: []Claim{{Frontend: frontend, Backends: backends, Untranslated: true}}})
	require.NoError(b, err)
	for _, c := range []struct {
		name string
		opts CleanOptions
	}{{"narrow", CleanOptions{Scan: ScanNarrow}}, {"protocol", CleanOptions{Scan: ScanProtocol}}, {"all", CleanOptions{Scan: ScanAll}}} {
		b.Run(c.name, func(b *testing.B) {
			var use meter
			for b.Loop() {
				b.StopTimer()
				var stale []Flow
				for f, err := range table.Flows(context.Background(), Filter{ReplySrc: addr("10.244.4.9")}) {
					require.NoError(b, err)
					stale = append(stale, f)
				}
				var got Cleaned
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

// BenchmarkMirrorClean is BenchmarkClean with the help of a mirror, and for one flow in place of all that went to an endpoint.
func BenchmarkMirrorClean(b *testing.B) {
	table, own := benchTable(b)
	start := time.Now()
	mirror := startMirror(b, table, MirrorOptions{})
	listed := time.Since(start)
	frontend := Frontend{addr("10.96.0.4"), 53, UDP}
	stale := Filter{Protocol: UDP, ReplySrc: addr("10.244.4.4")}
	var all []Flow
	for f, err := range table.Flows(context.Background(), stale) {
		require.NoError(b, err)
		all = append(all, f)
	}
	m, err := NewMatcher(Change{Claims: []Claim{{Frontend: frontend, Gone: aps("10.244.4.4:5353")}}})
	require.NoError(b, err)
	for _, n := range []int{len(all), 1, 0} {
		_, err := table.Delete(context.Background(), table.Flows(context.Background(), stale))
		require.NoError(b, err)
		_, err = table.Create(context.Background(), All(all[:n]...))
		require.NoError(b, err)
		b.Run(fmt.Sprintf("%d stale", n), func(b *testing.B) {
			var use meter
			for b.Loop() {
				var got Cleaned
				use.run(func() { got, err = mirror.Clean(context.Background(), m, CleanOptions{}) })
				b.StopTimer()
				require.NoError(b, err)
				require.Equal(b, n, got.Deleted)
				require.Zero(b, got.Dumps)
				_, err = table.Create(context.Background(), All(all[:n]...))
				require.NoError(b, err)
				b.StartTimer()
			}
			use.report(b)
			b.ReportMetric(float64(listed.Milliseconds()), "ms-to-begin")
			b.ReportMetric(float64(own), "flows-in-table")
			b.ReportMetric(float64(mirror.Stats().Flows), "flows-noted")
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

func BenchmarkJudge(b *testing.B) {
	c := Change{NodeAddrs: []netip.Addr{addr("192.0.2.10")}}
	for i := range 10_000 {
		c.Claims = append(c.Claims, Claim{
			Frontend: Frontend{netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), 53, UDP},
			Backends: aps("10.244.0.5:5353", "10.244.0.6:5353"),
		})
	}
	m, err := NewMatcher(c)
	require.NoError(b, err)
	f := flow(UDP, client, "10.96.0.10:53", "10.244.0.5:5353", "")
	b.ReportAllocs()
	for b.Loop() {
		if m.Judge(&f) != Current {
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
		cut, err := table.Cut(context.Background(), table.Flows(context.Background(), Filter{OriginalDst: addr("10.96.0.10")}))
		require.NoError(b, err)
		require.Equal(b, Cut{Deleted: n, Reset: n}, cut)
	}
	b.ReportMetric(n*float64(b.N)/b.Elapsed().Seconds(), "connections/s")
}

// What a mirror takes for a flow, and how long for its coming and going.
func BenchmarkMirrorIndex(b *testing.B) {
	const n = 1_000_000
	for _, c := range []struct {
		name string
		flow func(i int) Flow
	}{
		{"IPv4, 100 frontends of 10 endpoints", func(i int) Flow { return indexed(i, 10, 96, byte(i%100), i/100%10) }},
		{"IPv4, all to different places", func(i int) Flow { return indexed(i, byte(20+i>>16), byte(i>>8), byte(i), -1) }},
		{"IPv6, 100 frontends of 10 endpoints", func(i int) Flow { return over6(indexed(i, 10, 96, byte(i%100), i/100%10)) }},
	} {
		b.Run(c.name, func(b *testing.B) {
			var adding, removing time.Duration
			var size uint64
			for b.Loop() {
				var before, after runtime.MemStats
				runtime.GC()
				runtime.ReadMemStats(&before)
				x := newFlowIndex()
				start := time.Now()
				for i := range n {
					f := c.flow(i)
					x.add(&f)
				}
				adding += time.Since(start)
				require.Equal(b, n, x.len())
				runtime.GC()
				runtime.ReadMemStats(&after)
				size = after.HeapAlloc - before.HeapAlloc
				start = time.Now()
				for i := range n {
					f := c.flow(i)
					x.remove(&f)
				}
				removing += time.Since(start)
				require.Zero(b, x.len())
				require.Zero(b, x.v4.lanes.n+x.v6.lanes.n)
			}
			b.ReportMetric(float64(size)/n, "B/flow")
			b.ReportMetric(float64(adding.Nanoseconds())/float64(b.N)/n, "ns/added")
			b.ReportMetric(float64(removing.Nanoseconds())/float64(b.N)/n, "ns/removed")
		})
	}
}

// indexed returns a UDP flow to 10.96.0.0 and so on; to an endpoint, or to nobody's if that is negative.
func indexed(i int, a, b, c byte, endpoint int) Flow {
	f := Flow{Protocol: UDP, ID: uint32(i) * 0x9e3779b1}
	f.Original.Src = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 16), byte(i >> 8)}), uint16(1024+i&0xff))
	f.Original.Dst = netip.AddrPortFrom(netip.AddrFrom4([4]byte{a, b, 0, c}), 53)
	if endpoint < 0 {
		f.Original.Dst = netip.AddrPortFrom(netip.AddrFrom4([4]byte{9, a, b, c}), 53)
	}
	f.Reply = Tuple{Src: f.Original.Dst, Dst: f.Original.Src}
	if endpoint >= 0 {
		f.Reply.Src = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, c, byte(endpoint)}), 5353)
	}
	return f
}

// over6 returns a flow with IPv6 addresses that end in those of f.
func over6(f Flow) Flow {
	for _, a := range []*netip.AddrPort{&f.Original.Src, &f.Original.Dst, &f.Reply.Src, &f.Reply.Dst} {
		b := a.Addr().As16()
		b[0], b[10], b[11] = 0xfd, 0, 0
		*a = netip.AddrPortFrom(netip.AddrFrom16(b), a.Port())
	}
	return f
}

// What a mirror costs where flows are made by packets: 200,000 datagrams over loopback, each of a flow of its own.
func BenchmarkNewFlows(b *testing.B) {
	for _, c := range []struct {
		name   string
		mirror *MirrorOptions
	}{
		{"nobody listens", nil},
		{"mirror of UDP", &MirrorOptions{}},
		{"mirror of SCTP", &MirrorOptions{Protocols: []Protocol{SCTP}}},
	} {
		b.Run(c.name, func(b *testing.B) {
			const n = 200_000
			var m meter
			var took time.Duration
			noted, losses := 0, 0
			for b.Loop() {
				table, ns := newTable(b)
				rules(b, ns, "", "ct state new accept")
				require.NoError(b, ns.Do(func() error { return sendEach(1, 0) }))
				stop := func() {}
				var mirror *Mirror
				if c.mirror != nil {
					var err error
					mirror, err = NewMirror(table, *c.mirror)
					require.NoError(b, err)
					stop = runMirror(b, mirror)
					waitSynced(b, mirror)
				}
				m.run(func() {
					start := time.Now()
					require.NoError(b, ns.Do(func() error { return sendEach(n, 1) }))
					took += time.Since(start)
					if mirror != nil {
						time.Sleep(100 * time.Millisecond) // it reads the rest
						noted, losses = mirror.Stats().Flows, mirror.Stats().Losses
					}
				})
				u, err := table.Usage(context.Background())
				require.NoError(b, err)
				require.GreaterOrEqual(b, int(u.Count), n)
				stop()
			}
			b.ReportMetric(n*float64(b.N)/took.Seconds(), "flows/s")
			b.ReportMetric(1000*m.cpu/m.runs/n, "cpu-us/flow")
			b.ReportMetric(float64(noted), "noted")
			b.ReportMetric(float64(losses), "losses")
		})
	}
}

// sendEach sends a datagram to each of n addresses of the loopback network.
func sendEach(n, from int) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	sink := &unix.SockaddrInet4{Port: 5353}
	if err := unix.Bind(fd, sink); err != nil { // it takes them itself, and drops what does not fit
		return err
	}
	for i := from; i < from+n; i++ {
		to := &unix.SockaddrInet4{Port: 5353, Addr: [4]byte{127, byte(1 + i>>16), byte(i >> 8), byte(i)}}
		if err := unix.Sendto(fd, []byte{0}, 0, to); err != nil {
			return err
		}
	}
	return nil
}
