package counters

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/test/must"
	"github.com/kernlb/kernlb/nftables"
	"github.com/kernlb/kernlb/servicemodel"
)

const benchServices = 10000

// bench is a node with many services of one endpoint each.
type bench struct {
	*testing.B
	c        *netnstest.Cluster
	engine   *dataplane.Engine
	state    servicemodel.State
	counters *Counters
}

func newBench(b *testing.B) *bench {
	netnstest.Require(b)
	c := must.OK(netnstest.New(b.Context(), netnstest.Options{}))(b)
	b.Cleanup(func() { c.Close() })
	backend := must.OK(nftables.New(&nftables.Config{NetNS: c.Node.NS.NetNS()}))(b)
	b.Cleanup(func() { backend.Close() })
	x := &bench{B: b, c: c, engine: dataplane.New(backend, nil)}
	x.state = servicemodel.State{}.WithNode(servicemodel.Node{Name: "this", Addresses: nodes})
	for i := range benchServices {
		svc := &servicemodel.Service{Name: servicemodel.Name{Namespace: "default",
			Name: fmt.Sprint("s", i)}, ClusterIPs: []netip.Addr{serviceIP(i)},
			Ports: []servicemodel.ServicePort{{Protocol: servicemodel.UDP, Port: 80}}}
		x.state = x.state.WithService(svc).WithEndpoints(svc.Name, x.endpoint(0))
	}

	x.apply(x.state)
	x.counters = must.OK(Open(&Config{NetNS: c.Node.NS.NetNS()}))(b)
	b.Cleanup(func() { x.counters.Close() })
	return x
}

func serviceIP(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})
}

func (x *bench) endpoint(pod int) []servicemodel.Endpoint {
	return []servicemodel.Endpoint{{Addr: x.c.Pods[pod].IPv4, Node: "this",
		Ports: []servicemodel.EndpointPort{{Protocol: servicemodel.UDP, Port: 8080}}}}
}

func (x *bench) apply(s servicemodel.State) *servicemodel.Table {
	r := must.OK(x.engine.Apply(x.Context(), s))(x)
	return r.Changes.New
}

// both runs a benchmark with counters off and on, each in its own network, because old conntrack
// entries make packets slower.
func both(b *testing.B, fn func(b *testing.B, x *bench)) {
	for _, name := range []string{"off", "on"} {
		b.Run(name, func(b *testing.B) {
			x := newBench(b)
			if name == "on" {
				require.NoError(b, x.counters.Start(b.Context()))
			}
			b.ResetTimer()
			fn(b, x)
		})
	}
}

// send sends n packets from a pod. to and port are functions of the packet's number. It reports the
// processor time of one packet.
func (x *bench) send(b *testing.B, n int, port func(i int) int, to func(i int) netip.Addr) {
	require.NoError(b, x.c.Pods[1].NS.Do(func() error {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		start := cpuTime(b)
		fd, last := -1, 0
		for i := range n {
			if p := port(i); fd < 0 || p != last {
				if fd >= 0 {
					unix.Close(fd)
				}
				var err error
				if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0); err != nil {
					return err
				}
				if err := unix.Bind(fd, &unix.SockaddrInet4{Port: p}); err != nil {
					return err
				}
				last = p
			}

			err := unix.Sendto(fd, []byte{1}, 0, &unix.SockaddrInet4{Addr: to(i).As4(), Port: 80})
			if err != nil && err != unix.ECONNREFUSED {
				return err
			}
		}

		b.ReportMetric(float64(cpuTime(b)-start)/float64(n), "cpu-ns/packet")
		return unix.Close(fd)
	}))
}

func cpuTime(b *testing.B) time.Duration { return cpuTimeOf(b, unix.RUSAGE_THREAD) }

func cpuTimeOf(b *testing.B, who int) time.Duration {
	var u unix.Rusage
	require.NoError(b, unix.Getrusage(who, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// Packets of one flow, from a pod to a pod.
func BenchmarkPacket(b *testing.B) {
	both(b, func(b *testing.B, x *bench) {
		x.send(b, b.N, func(int) int { return 2000 }, func(int) netip.Addr { return serviceIP(1) })
	})
}

// The first packets of flows to services that have had flows before.
func BenchmarkFlow(b *testing.B) {
	both(b, func(b *testing.B, x *bench) {
		x.send(b, benchServices, func(int) int { return 2000 }, serviceIP)
		x.send(b, b.N, func(i int) int { return 3000 + i/benchServices },
			func(i int) netip.Addr { return serviceIP(i % benchServices) })
	})
}

// The counters of 10,000 services are read and summed up.
func BenchmarkRead(b *testing.B) {
	x := newBench(b)
	table := x.apply(x.state)
	require.NoError(b, x.counters.Start(b.Context()))
	x.send(b, benchServices, func(int) int { return 4000 }, serviceIP)
	b.ResetTimer()
	for b.Loop() {
		r := must.OK(x.counters.Read(b.Context()))(b)
		require.Len(b, r.Pairs, benchServices)
		require.Equal(b, uint64(1), r.Of(table, nodes).Frontend(servicemodel.FrontendKey{
			Addr: serviceIP(77), Protocol: servicemodel.UDP, Port: 80}).Connections)
	}
}

// One endpoint of 10,000 services is replaced.
func BenchmarkApply(b *testing.B) {
	name := servicemodel.Name{Namespace: "default", Name: "s5"}
	both(b, func(b *testing.B, x *bench) {
		// Switching the counters on is a foreign commit, which the engine checks at once.
		x.apply(x.state.WithEndpoints(name, x.endpoint(1)))
		b.ResetTimer()
		start := cpuTimeOf(b, unix.RUSAGE_SELF)
		for i := range b.N {
			x.apply(x.state.WithEndpoints(name, x.endpoint(i%2)))
		}
		b.ReportMetric(float64(cpuTimeOf(b, unix.RUSAGE_SELF)-start)/float64(b.N), "cpu-ns/op")
	})
}
