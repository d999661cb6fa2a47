package conntrack_test

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	. "github.com/kernlb/kernlb/conntrack/internal/cttest"
	"github.com/kernlb/kernlb/dataplane/netnstest"

	. "github.com/kernlb/kernlb/conntrack"
)

func BenchmarkFlows(b *testing.B) {
	table, own := BenchTable(b)
	frontend := Filter{Protocol: UDP, OriginalDst: Addr("10.96.0.4"), OriginalDstPort: 53}
	nobody := frontend
	nobody.OriginalDst = Addr("10.97.0.1")
	for _, c := range []struct {
		name   string
		filter Filter
	}{
		{"all", Filter{}},
		{"protocol", Filter{Family: IPv4, Protocol: UDP}},
		{"frontend", frontend},
		{"endpoint", Filter{Protocol: UDP, ReplySrc: Addr("10.244.4.3"), ReplySrcPort: 5353}},
		{"nothing", nobody},
	} {
		b.Run(c.name, func(b *testing.B) {
			var m Meter
			n := 0
			for b.Loop() {
				m.Run(func() {
					n = 0
					for _, err := range table.Flows(context.Background(), c.filter) {
						require.NoError(b, err)
						n++
					}
				})
			}
			m.Report(b)
			b.ReportMetric(float64(n), "flows")
			b.ReportMetric(float64(own), "flows-in-table")
		})
	}
}

func BenchmarkClean(b *testing.B) {
	table, _ := BenchTable(b)
	frontend, endpoints := Key("10.96.0.4:53", UDP), []netip.AddrPort{}
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
			var use Meter
			for b.Loop() {
				b.StopTimer()
				var stale []Flow
				for f, err := range table.Flows(context.Background(),
					Filter{ReplySrc: Addr("10.244.4.9")}) {
					require.NoError(b, err)
					stale = append(stale, f)
				}
				var got CleanResult
				b.StartTimer()
				use.Run(func() { got, err = table.Clean(context.Background(), m, c.opts) })
				b.StopTimer()
				require.NoError(b, err)
				require.Equal(b, len(stale), got.Deleted)
				b.ReportMetric(float64(got.Deleted), "deleted")
				b.ReportMetric(float64(got.Seen), "seen")
				_, err = table.Create(context.Background(), All(stale...))
				require.NoError(b, err)
				b.StartTimer()
			}
			use.Report(b)
		})
	}
}

func BenchmarkCreateDelete(b *testing.B) {
	table, _ := NewTable(b)
	const n = 50_000
	var creating, deleting time.Duration
	for b.Loop() {
		start := time.Now()
		_, err := table.Create(context.Background(), BenchFlows(n))
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

func BenchmarkClassify(b *testing.B) {
	c := Change{NodeAddrs: []netip.Addr{Addr("192.0.2.10")}}
	for i := range 10_000 {
		c.Frontends = append(c.Frontends, Frontend{
			Key: KeyOf(netip.AddrPortFrom(
				netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), 53), UDP),
			Endpoints: AddrPorts("10.244.0.5:5353", "10.244.0.6:5353"),
		})
	}
	m, err := NewMatcher(c)
	require.NoError(b, err)
	f := NewFlow(UDP, Client, "10.96.0.10:53", "10.244.0.5:5353", "")
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
	table := OpenTable(b, cluster.Node.NS)
	Rules(b, cluster.Node.NS, "", "")
	const n = 5000
	var flows []Flow
	for i := range n {
		f := NewFlow(TCP, "10.244.1.1:1", "10.96.0.10:80", "10.244.1.2:8080", "")
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
			Filter{OriginalDst: Addr("10.96.0.10")}))
		require.NoError(b, err)
		require.Equal(b, CutResult{Deleted: n, Reset: n}, cut)
	}
	b.ReportMetric(n*float64(b.N)/b.Elapsed().Seconds(), "connections/s")
}
