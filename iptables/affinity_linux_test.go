package iptables

import (
	"context"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/flows"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/nft"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// sticky gives a service affinity.
func sticky(timeout time.Duration) func(*sm.Service, *sm.Node) {
	return func(s *sm.Service, _ *sm.Node) {
		s.SessionAffinity = sm.SessionAffinity{ClientIP: true, Timeout: timeout}
	}
}

// only returns the state with only these pods as endpoints of the service.
func only(c *netnstest.Cluster, s sm.State, port sm.EndpointPort, pods ...int) sm.State {
	var eps []sm.Endpoint
	for _, i := range pods {
		for _, a := range []netip.Addr{c.Pods[i].IPv4, c.Pods[i].IPv6} {
			eps = append(eps, sm.Endpoint{
				Addr: a, Ready: true, Serving: true, Node: "node", Ports: []sm.EndpointPort{port},
			})
		}
	}
	return s.WithEndpoints(svcName("web"), eps)
}

var httpPort = sm.EndpointPort{Name: "http", Protocol: sm.TCP, Port: backendPort}

// A SYN goes to a dead pod, and is sent again after the pod was removed. The connection keeps its
// endpoint, and no new connection of the client goes there.
func TestASynSentAgainRemembersNothing(t *testing.T) {
	t.Parallel()
	for _, to := range []string{"10.96.0.10:80", "[fd00:10:96::a]:80"} {
		t.Run(to, func(t *testing.T) {
			t.Parallel()
			c, b := clusterOf(t)
			for _, tool := range []string{"iptables", "ip6tables"} {
				runTool(t, c.Pods[0].NS, "", tool, "-A", "INPUT", "-p", "tcp", "--dport", "8080",
					"-j", "DROP")
			}
			e := dataplane.New(b, nil)
			s := podService(c, 3, sticky(time.Minute))
			applied(t, e, only(c, s, httpPort, 0))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			for range 3 {
				go netnstest.Probe{
					From: c.Outside[0], Proto: sm.TCP, To: netip.MustParseAddrPort(to),
					Timeout: 5 * time.Second,
				}.Send(ctx)
			}
			time.Sleep(300 * time.Millisecond) // the first SYN is sent; the second comes after 1 s
			applied(t, e, only(c, s, httpPort, 1, 2))
			first := dial(t, c.Outside[0], to)
			require.Equal(t, netnstest.Answered, first.Kind, "%s", first)
			for range 10 {
				time.Sleep(100 * time.Millisecond)
				o := dial(t, c.Outside[0], to)
				require.Equal(t, first.Server, o.Server, "%s", o)
			}
			// Another process does not find anything to repair, either.
			other := another(t, c.Node.NS)
			applied(t, dataplane.New(other, nil), only(c, s, httpPort, 1, 2))
			require.Equal(t, first.Server, dial(t, c.Outside[0], to).Server)
		})
	}
}

// Neither an entry that is about to expire nor one that is seldom renewed outlives the endpoint.
func TestShortTimeouts(t *testing.T) {
	t.Parallel()
	c, _, e := engineIn(t)
	s := podService(c, 3, sticky(time.Second))
	for _, to := range []string{"10.96.0.10:80", "[fd00:10:96::a]:80"} {
		for _, age := range []time.Duration{0, 700 * time.Millisecond, 950 * time.Millisecond,
			time.Second} {
			applied(t, e, only(c, s, httpPort, 0))
			require.Equal(t, c.Pods[0].Name, dial(t, c.Outside[0], to).Server)
			time.Sleep(age)
			applied(t, e, only(c, s, httpPort, 1, 2))
			for range 3 {
				require.NotEqual(t, c.Pods[0].Name, dial(t, c.Outside[0], to).Server,
					"%s, after %s", to, age)
			}
		}
	}
}

// As with kube-proxy, an endpoint that was removed and comes back has no clients. Clients that were
// given another endpoint meanwhile keep it.
func TestAnEndpointThatComesBackKnowsNobody(t *testing.T) {
	t.Parallel()
	c, b, e := engineIn(t)
	s := podService(c, 3, sticky(time.Minute))
	name := sm.PortName{Name: svcName("web"), Port: "http", Protocol: sm.TCP}
	for i, f := range nft.Families {
		to := []string{"10.96.0.10:80", "[fd00:10:96::a]:80"}[i]
		ep := netip.AddrPortFrom(c.Pods[0].Addr(f.Loopback.Addr()), backendPort)
		applied(t, e, only(c, s, httpPort, 0))
		for _, client := range c.Outside {
			require.Equal(t, c.Pods[0].Name, dial(t, client, to).Server)
		}
		require.NotEmpty(t, remembered(t, c.Node.NS, b, name, ep))
		applied(t, e, only(c, s, httpPort, 1))
		require.Equal(t, c.Pods[1].Name, dial(t, c.Outside[0], to).Server)
		applied(t, e, only(c, s, httpPort, 0, 1))
		require.Empty(t, remembered(t, c.Node.NS, b, name, ep))
		for range 5 {
			require.Equal(t, c.Pods[1].Name, dial(t, c.Outside[0], to).Server)
		}
	}
}

// remembered returns what xt_recent remembers of an endpoint's clients.
func remembered(
	t *testing.T, ns *netnstest.NS, b *backend, name sm.PortName, ep netip.AddrPort,
) string {
	t.Helper()
	var text []byte
	require.NoError(t, ns.Do(func() (err error) {
		list := b.l.names.affinityList(name, ep, affinity{})
		text, err = os.ReadFile("/proc/thread-self/net/xt_recent/" + list)
		return err
	}))
	return string(text)
}

// A client sends datagrams from one port, and nobody answers. After its endpoint was removed and
// its flow forgotten, the datagrams go to another endpoint, and stay there.
func TestDatagramsOneWayLeaveWithTheEndpoint(t *testing.T) {
	t.Parallel()
	c, b := clusterOf(t)
	table := ok(conntrack.Open(&conntrack.Config{NetNS: c.Node.NS.Fd()}))(t)
	defer table.Close()
	keeper := ok(flows.New(table, nil))(t)
	e := dataplane.New(b, &dataplane.Config{Flows: keeper})
	udp := sm.EndpointPort{Name: "log", Protocol: sm.UDP, Port: 514}
	s := podService(c, 3, func(s *sm.Service, n *sm.Node) {
		sticky(time.Minute)(s, n)
		s.Ports = []sm.ServicePort{{Name: "log", Protocol: sm.UDP, Port: 514}}
	})
	for _, to := range []string{"10.96.0.10:514", "[fd00:10:96::a]:514"} {
		applied(t, e, only(c, s, udp, 0))
		var got [2]atomic.Int64
		for i := range got {
			listen(t, c.Pods[i], netip.MustParseAddrPort(to), &got[i])
		}
		stop := sendOneWay(t, c.Outside[0], to)
		require.Eventually(t, func() bool {
			return got[0].Load() > 20
		}, 5*time.Second, time.Millisecond)
		applied(t, e, only(c, s, udp, 1))
		time.Sleep(20 * time.Millisecond) // datagrams that were under way have arrived
		before := got[0].Load()
		n := got[1].Load()
		require.Eventually(t, func() bool {
			return got[1].Load() > n+100
		}, 5*time.Second, time.Millisecond)
		require.Equal(t, before, got[0].Load(), to)
		stop()
	}
}

// listen counts the datagrams that a pod gets on port 514 and never answers.
func listen(t *testing.T, h *netnstest.Host, like netip.AddrPort, got *atomic.Int64) {
	t.Helper()
	var conn *net.UDPConn
	require.NoError(t, h.NS.Do(func() (err error) {
		at := net.UDPAddrFromAddrPort(netip.AddrPortFrom(h.Addr(like.Addr()), 514))
		conn, err = net.ListenUDP("udp", at)
		return err
	}))
	t.Cleanup(func() { _ = conn.Close() })
	go func() {
		buf := make([]byte, 16)
		for {
			if _, _, err := conn.ReadFromUDPAddrPort(buf); err != nil {
				return
			}
			got.Add(1)
		}
	}()
}

// sendOneWay sends a datagram each millisecond from one port until it is stopped.
func sendOneWay(t *testing.T, from *netnstest.Host, to string) (stop func()) {
	t.Helper()
	var conn *net.UDPConn
	require.NoError(t, from.NS.Do(func() (err error) {
		conn, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.MustParseAddrPort(to)))
		return err
	}))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			_, _ = conn.Write([]byte("x"))
			time.Sleep(time.Millisecond)
		}
		_ = conn.Close()
	}()
	return func() { cancel(); <-done }
}
