package iptables

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/dataplane/netnstest"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// cpu returns the processor time of the process, including the kernel's work for it.
func cpu() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// opened returns a backend in a namespace of its own, and its first observation.
func opened(tb testing.TB, cfg Config) (*backend, *netnstest.NS, *sm.Table) {
	tb.Helper()
	netnstest.Require(tb)
	ns := ok(netnstest.NewNS("iptables"))(tb)
	tb.Cleanup(func() { require.NoError(tb, ns.Close()) })
	cfg.NetNS = ns.Fd()
	b := ok(openBackend(&cfg))(tb)
	tb.Cleanup(func() { require.NoError(tb, b.Close()) })
	o := ok(b.Observe(context.Background(), nil))(tb)
	require.Empty(tb, o.Drift)
	return b, ns, o.Table
}

func BenchmarkKernel(bench *testing.B) {
	for _, n := range []int{10, 1000, 10000} {
		benchmarkKernel(bench, n, manyServices(n, 10))
	}
}

// BenchmarkKernelWithAffinity is the same, but one service in ten has affinity: the kernel keeps a
// list for each of their endpoints.
func BenchmarkKernelWithAffinity(bench *testing.B) {
	for _, n := range []int{10, 1000, 10000} {
		benchmarkKernel(bench, n, withAffinity(manyServices(n, 10), 10))
	}
}

// withAffinity gives affinity to some of the services: one in the given number.
func withAffinity(s sm.State, every int) sm.State {
	i := 0
	for svc := range s.Services() {
		if i++; i%every == 0 {
			sticky := *svc
			sticky.SessionAffinity.ClientIP = true
			s = s.WithService(&sticky)
		}
	}
	return s
}

func benchmarkKernel(bench *testing.B, n int, s sm.State) {
	bench.Helper()
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
	ok(b.Commit(context.Background(), sm.Diff(empty, table)))(bench)
	bench.Run(fmt.Sprintf("change/%d", n), func(bench *testing.B) {
		i, name := 0, svcName("service-3")
		start := cpu()
		for bench.Loop() {
			eps := append([]sm.Endpoint{}, s.Endpoints(name)...)
			eps[3].Addr = endpoint(3, 20+i%20)
			i++
			s = s.WithEndpoints(name, eps)
			next := resolve(bench, table, s)
			ok(b.Commit(context.Background(), sm.Diff(table, next)))(bench)
			table = next
		}
		bench.ReportMetric(float64((cpu()-start).Microseconds())/1000/float64(bench.N), "cpu-ms/op")
	})
	bench.Run(fmt.Sprintf("observe/%d", n), func(bench *testing.B) {
		start := cpu()
		for bench.Loop() {
			o := ok(b.Observe(context.Background(), nil))(bench)
			require.Empty(bench, o.Drift)
		}
		bench.ReportMetric(float64((cpu()-start).Microseconds())/1000/float64(bench.N), "cpu-ms/op")
	})
}

// BenchmarkFirstPacket sends the first packet of a connection to a service among many. Within the
// system call, the kernel carries the packet from the pod through the node to the other pod. So the
// time is that of the rules and of all other work for a packet.
func BenchmarkFirstPacket(bench *testing.B) {
	for _, n := range []int{0, 10, 1000, 10000} {
		bench.Run(fmt.Sprint(n), func(bench *testing.B) {
			benchmarkFirstPacket(bench, n, func(s sm.State) sm.State { return s })
		})
	}
}

// BenchmarkFirstPacketWithAffinity is the same, but one service in ten has affinity, among them the
// one that the packet is for.
func BenchmarkFirstPacketWithAffinity(bench *testing.B) {
	for _, n := range []int{10, 100, 1000, 10000} {
		bench.Run(fmt.Sprint(n), func(bench *testing.B) {
			benchmarkFirstPacket(bench, n, func(s sm.State) sm.State {
				sticky := *s.Service(svcName("dns"))
				sticky.SessionAffinity.ClientIP = true
				return withAffinity(s, 10).WithService(&sticky)
			})
		})
	}
}

// benchmarkFirstPacket sends to a service of one endpoint among n or, if n is 0, directly to its
// endpoint.
func benchmarkFirstPacket(bench *testing.B, n int, change func(sm.State) sm.State) {
	bench.Helper()
	c := netnstest.Start(bench, netnstest.Options{})
	b := ok(openBackend(&Config{NetNS: c.Node.NS.Fd()}))(bench)
	defer b.Close()
	o := ok(b.Observe(context.Background(), nil))(bench)
	to := netip.AddrPortFrom(c.Pods[1].IPv4, 53)
	if n > 0 {
		to = netip.MustParseAddrPort("10.100.7.9:53")
		s := manyServices(n-1, 10).WithService(&sm.Service{
			Name: svcName("dns"), Ports: []sm.ServicePort{{Protocol: sm.UDP, Port: 53}},
			ClusterIPs: []netip.Addr{to.Addr()},
		}).WithEndpoints(svcName("dns"), []sm.Endpoint{
			{Addr: c.Pods[1].IPv4, Ready: true, Serving: true,
				Ports: []sm.EndpointPort{{Protocol: sm.UDP, Port: 53}}},
		})
		ok(b.Commit(context.Background(), sm.Diff(o.Table, resolve(bench, nil, change(s)))))(bench)
	}
	var sink int // receives the packets and never reads them
	require.NoError(bench, c.Pods[1].NS.Do(func() (err error) {
		if sink, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		return unix.Bind(sink, &unix.SockaddrInet4{Port: 53})
	}))
	defer unix.Close(sink)
	require.NoError(bench, c.Pods[0].NS.Do(func() error { return sendFirst(bench, to) }))
}

// sendFirst sends one datagram from each of many sockets, and reports the times.
func sendFirst(bench *testing.B, to netip.AddrPort) error {
	var took []time.Duration
	for bench.Loop() {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		if err := unix.Connect(fd, &unix.SockaddrInet4{Port: int(to.Port()),
			Addr: to.Addr().As4()}); err != nil {
			return err
		}
		start := time.Now()
		_, err = unix.Write(fd, []byte("x"))
		took = append(took, time.Since(start))
		if err := errors.Join(err, unix.Close(fd)); err != nil {
			return err
		}
	}
	slices.Sort(took)
	bench.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1000, "p50-µs")
	bench.ReportMetric(float64(took[len(took)/10].Nanoseconds())/1000, "p10-µs")
	return nil
}
