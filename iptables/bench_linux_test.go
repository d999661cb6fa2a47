package iptables

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/internal/netnstest"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// cpu returns the processor time of the process, with what the kernel does for it.
func cpu() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// opened returns a backend in a namespace of its own, and what it observes there.
func opened(tb testing.TB, cfg Config) (*Backend, *netnstest.NS, *sm.Table) {
	tb.Helper()
	netnstest.Require(tb)
	ns, err := netnstest.NewNS("iptables")
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, ns.Close()) })
	cfg.NetNS = ns.Fd()
	b, err := New(&cfg)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, b.Close()) })
	o, err := b.Observe(context.Background())
	require.NoError(tb, err)
	require.Empty(tb, o.Drift)
	return b, ns, o.Table
}

func BenchmarkKernel(bench *testing.B) {
	for _, n := range []int{10, 1000, 10000} {
		s := manyServices(n, 10)
		table := resolve(bench, nil, s)
		bench.Run(fmt.Sprintf("full/%d", n), func(bench *testing.B) {
			var used time.Duration
			for bench.Loop() {
				bench.StopTimer()
				b, _, empty := opened(bench, Config{})
				c := sm.Diff(empty, table)
				bench.StartTimer()
				start := cpu()
				_, err := b.Commit(context.Background(), c)
				used += cpu() - start
				require.NoError(bench, err)
			}
			bench.ReportMetric(float64(used.Milliseconds())/float64(bench.N), "cpu-ms/op")
		})
		b, _, empty := opened(bench, Config{})
		_, err := b.Commit(context.Background(), sm.Diff(empty, table))
		require.NoError(bench, err)
		bench.Run(fmt.Sprintf("change/%d", n), func(bench *testing.B) {
			i, name := 0, svcName("service-3")
			start := cpu()
			for bench.Loop() {
				eps := append([]sm.Endpoint{}, s.Endpoints(name)...)
				eps[3].Addr = endpoint(3, 20+i%20)
				i++
				s = s.WithEndpoints(name, eps)
				next := resolve(bench, table, s)
				_, err := b.Commit(context.Background(), sm.Diff(table, next))
				require.NoError(bench, err)
				table = next
			}
			bench.ReportMetric(float64((cpu()-start).Microseconds())/1000/float64(bench.N), "cpu-ms/op")
		})
		bench.Run(fmt.Sprintf("observe/%d", n), func(bench *testing.B) {
			start := cpu()
			for bench.Loop() {
				o, err := b.Observe(context.Background())
				require.NoError(bench, err)
				require.Empty(bench, o.Drift)
			}
			bench.ReportMetric(float64((cpu()-start).Microseconds())/1000/float64(bench.N), "cpu-ms/op")
		})
	}
}
