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
	"github.com/kernlb/kernlb/internal/test/nstest"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// opened returns a backend in its own namespace, and its first observation.
func opened(tb testing.TB, cfg Config) (*backend, *netnstest.NS, *sm.Table) {
	tb.Helper()
	ns := nstest.New(tb)
	cfg.NetNS = ns.NetNS()
	b := ok(openBackend(&cfg))(tb)
	tb.Cleanup(func() { require.NoError(tb, b.Close()) })
	o := ok(b.Observe(context.Background(), nil))(tb)
	require.Empty(tb, o.Drift)
	return b, ns, o.Table
}

// BenchmarkFirstPacket sends the first packet of a connection to a service among many. Within the
// system call, the kernel carries the packet from the pod through the node to the other pod. So the
// measured time is the time of the rules and of all other work for a packet.
func BenchmarkFirstPacket(bench *testing.B) {
	for _, n := range []int{0, 10, 1000, 10000} {
		bench.Run(fmt.Sprint(n), func(bench *testing.B) {
			benchmarkFirstPacket(bench, n)
		})
	}
}

// benchmarkFirstPacket sends to a service with one endpoint, among n services. If n is 0, it sends
// directly to the endpoint.
func benchmarkFirstPacket(bench *testing.B, n int) {
	bench.Helper()
	c := netnstest.Start(bench, netnstest.Options{})
	b := ok(openBackend(&Config{NetNS: c.Node.NS.NetNS()}))(bench)
	defer b.Close()
	o := ok(b.Observe(context.Background(), nil))(bench)
	to := netip.AddrPortFrom(c.Pods[1].IPv4, 53)
	if n > 0 {
		to = netip.MustParseAddrPort("10.100.7.9:53")
		s := manyServices(n-1, 10).WithService(&sm.Service{
			Name: svcName("dns"), Ports: []sm.ServicePort{{Protocol: sm.UDP, Port: 53}},
			ClusterIPs: []netip.Addr{to.Addr()},
		}).WithEndpoints(svcName("dns"), []sm.Endpoint{
			{Addr: c.Pods[1].IPv4,
				Ports: []sm.EndpointPort{{Protocol: sm.UDP, Port: 53}}},
		})
		ok(b.Commit(context.Background(), sm.Diff(o.Table, resolve(bench, nil, s))))(bench)
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
