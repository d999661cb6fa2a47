package ipvs_test

import (
	"context"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/flows"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/test/must"
	"github.com/kernlb/kernlb/ipvs"
	"github.com/kernlb/kernlb/servicemodel"
)

// sticky makes a service remember clients for a while.
func sticky(timeout time.Duration) func(*servicemodel.Service) {
	return func(s *servicemodel.Service) {
		s.SessionAffinity = servicemodel.SessionAffinity{ClientIP: true, Timeout: timeout}
	}
}

// After an endpoint was removed, no new connection of its clients goes there: in both families,
// however short the timeout is, and while connections to it drain.
func TestKernelAffinityForgetsEndpointsThatGo(t *testing.T) {
	t.Parallel()
	k := newKernel(t, ipvs.Config{})
	server := func(from *netnstest.Host, to netip.Addr) string {
		t.Helper()
		out := netnstest.Probe{From: from, Proto: servicemodel.TCP, To: netip.AddrPortFrom(to, 80),
			Timeout: 5 * time.Second}.Send(t.Context())
		require.Equal(t, netnstest.Answered, out.Kind, out)
		return out.Server
	}
	for _, timeout := range []time.Duration{time.Second, 3 * time.Hour} {
		svc := web(sticky(timeout))
		k.apply(k.state(svc, "pod2", "pod3"))
		conns := ok(netnstest.OpenConns(t.Context(), k.pods["pod1"],
			netip.AddrPortFrom(webAddrs[0], 80), 3))(t)
		for range 4 {
			for _, a := range webAddrs {
				for _, c := range []*netnstest.Host{k.pods["pod1"], k.Outside[0]} {
					gone := server(c, a)
					stays := map[string]string{"pod2": "pod3", "pod3": "pod2"}[gone]
					k.apply(k.state(svc, stays))
					for range 5 {
						require.Equal(t, stays, server(c, a), "%v, timeout %v", a, timeout)
					}
					k.apply(k.state(svc, "pod2", "pod3"))
					if timeout > time.Minute { // a second may have passed
						require.Equal(t, stays, server(c, a))
					}
				}
			}
		}
		require.Equal(t, 3, conns.Ping(10*time.Second).Answered, "what was open drains")
		require.NoError(t, conns.Close())
	}
}

// The endpoint of a client does not answer. When it is removed, the client is given another, even
// if its first packet is sent again.
func TestKernelAffinityForgetsDeadEndpoints(t *testing.T) {
	t.Parallel()
	k := newKernel(t, ipvs.Config{})
	svc := web(sticky(time.Hour))
	k.inside(k.pods["pod2"], "nft", "add table inet mute")
	k.inside(k.pods["pod2"], "nft",
		"add chain inet mute input { type filter hook input priority 0 ; }")
	k.inside(k.pods["pod2"], "nft", "add rule inet mute input tcp dport 8080 drop")
	k.apply(k.state(svc, "pod2"))
	var fd int
	client := k.pods["pod1"]
	require.NoError(t, client.NS.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
		if err == nil {
			err = unix.Connect(fd, &unix.SockaddrInet4{Port: 80, Addr: webAddrs[0].As4()})
		}
		if err == unix.EINPROGRESS {
			err = nil
		}
		return err
	}))
	defer unix.Close(fd)
	time.Sleep(100 * time.Millisecond)
	k.apply(k.state(svc, "pod3"))
	for range 4 {
		out := netnstest.Probe{From: client, Proto: servicemodel.TCP,
			To: netip.AddrPortFrom(webAddrs[0], 80), Timeout: 5 * time.Second}.Send(t.Context())
		require.Equal(t, "pod3", out.Server, out)
		time.Sleep(500 * time.Millisecond) // the first packet is sent again meanwhile
	}
}

// sink receives datagrams at a port of a host, and answers none.
func sink(t *testing.T, h *netnstest.Host, port uint16) *atomic.Int64 {
	t.Helper()
	n := &atomic.Int64{}
	require.NoError(t, h.NS.Do(func() error {
		for _, a := range []netip.Addr{h.IPv4, h.IPv6} {
			p, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, port)))
			if err != nil {
				return err
			}
			t.Cleanup(func() { p.Close() })
			go func() {
				var buf [100]byte
				for {
					if _, err := p.Read(buf[:]); err != nil {
						return
					}
					n.Add(1)
				}
			}()
		}
		return nil
	}))
	return n
}

// flood sends datagrams from pod1 to the addresses of web without pause.
func (k *kernel) flood(ctx context.Context, port uint16) {
	k.t.Helper()
	require.NoError(k.t, k.pods["pod1"].NS.Do(func() error {
		for _, a := range webAddrs {
			c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, port)))
			if err != nil {
				return err
			}
			k.t.Cleanup(func() { c.Close() })
			go func() {
				for ctx.Err() == nil {
					// nolint:errcheck // a refused or lost datagram does not matter
					c.Write([]byte("x"))
					time.Sleep(5 * time.Millisecond)
				}
			}()
		}
		return nil
	}))
}

// Nobody answers these datagrams. From the moment the apply returns, they go to the present
// endpoint, even with affinity.
func TestKernelOneWayDatagramsFollowTheEndpoint(t *testing.T) {
	t.Parallel()
	k := newKernel(t, ipvs.Config{})
	table := ok(conntrack.Open(&conntrack.Config{NetNS: k.Node.NS.Fd()}))(t)
	defer table.Close()
	keeper := ok(flows.New(table, nil))(t)
	b := ok(ipvs.New(&ipvs.Config{NetNS: k.Node.NS.Fd()}))(t)
	defer b.Close()
	e := dataplane.New(b, &dataplane.Config{Flows: keeper})
	svc := web(sticky(time.Second))
	svc.Ports = []servicemodel.ServicePort{{Protocol: servicemodel.UDP, Port: 514}}
	state := func(pod string) servicemodel.State {
		var l []servicemodel.Endpoint
		for _, a := range []netip.Addr{k.pods[pod].IPv4, k.pods[pod].IPv6} {
			l = append(l, servicemodel.Endpoint{Addr: a, Ready: true, Serving: true,
				Ports: []servicemodel.EndpointPort{{Protocol: servicemodel.UDP, Port: 514}}})
		}
		return servicemodel.State{}.WithNode(servicemodel.Node{Name: "this"}).WithService(svc).
			WithEndpoints(svc.Name, l)
	}
	sinks := map[string]*atomic.Int64{"pod2": sink(t, k.pods["pod2"], 514),
		"pod3": sink(t, k.pods["pod3"], 514)}
	ok(e.Apply(t.Context(), state("pod2")))(t)

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	k.flood(ctx, 514)
	is, other := "pod2", "pod3"
	for range 6 {
		require.Eventually(t, func() bool { return sinks[is].Load() > 20 }, 10*time.Second,
			5*time.Millisecond)
		ok(e.Apply(t.Context(), state(other)))(t)
		time.Sleep(20 * time.Millisecond) // datagrams that have arrived are read
		before := sinks[is].Load()
		sinks[other].Store(0)
		require.Eventually(t, func() bool { return sinks[other].Load() > 20 }, 10*time.Second,
			5*time.Millisecond)
		require.Equal(t, before, sinks[is].Load())
		is, other = other, is
	}
}

func ok[T any](v T, err error) func(testing.TB) T { return must.OK(v, err) }
