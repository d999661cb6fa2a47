package ipvs_test

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/ipvs"
	"github.com/kernlb/kernlb/servicemodel"
)

// Connections go on when conntrack forgets them, even if the endpoint then sends first.
func TestKernelConnectionsOutliveTheConntrackTable(t *testing.T) {
	t.Parallel()
	k := newKernel(t, ipvs.Config{})
	const port = 9090
	svc := web()
	var endpoints []servicemodel.Endpoint
	for _, a := range []netip.Addr{k.pods["pod2"].IPv4, k.pods["pod2"].IPv6} {
		endpoints = append(endpoints, servicemodel.Endpoint{Addr: a, Ready: true, Serving: true,
			Ports: []servicemodel.EndpointPort{{Protocol: servicemodel.TCP, Port: port}}})
	}
	k.apply(k.state(svc).WithEndpoints(svc.Name, endpoints))
	for i, first := range []string{"endpoint", "client"} {
		for _, from := range []string{"pod1", "node"} {
			for family, vip := range webAddrs {
				host := k.Node
				if from != "node" {
					host = k.pods[from]
				}
				client, server := k.pair(host, netip.AddrPortFrom(vip, 80),
					netip.AddrPortFrom(endpoints[family].Addr, port))
				ways := [][2]net.Conn{{server, client}, {client, server}}
				require.NoError(t, say(t, client, server))
				time.Sleep(300 * time.Millisecond) // until no acknowledgement is due
				k.run("conntrack", "-F")
				k.run("conntrack", "-F", "-f", "ipv6")
				for range 3 {
					for j := range ways {
						way := ways[(i+j)%2]
						require.NoError(t, say(t, way[0], way[1]),
							"%s from %s, the %s is the first", vip, from, first)
					}
				}
			}
		}
	}
}

// say sends a few bytes from one end of a connection to the other.
func say(t *testing.T, from, to net.Conn) error {
	t.Helper()
	require.NoError(t, to.SetReadDeadline(time.Now().Add(10*time.Second)))
	if _, err := from.Write([]byte("hello")); err != nil {
		return err
	}
	_, err := to.Read(make([]byte, 5))
	return err
}

// pair opens a connection from a host to a service that leads to an endpoint, and listens in the
// endpoint's namespace.
func (k *kernel) pair(from *netnstest.Host, service, endpoint netip.AddrPort) (client,
	server net.Conn) {
	k.t.Helper()
	var l *net.TCPListener
	require.NoError(k.t, k.pods["pod2"].NS.Do(func() (err error) {
		l, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(endpoint))
		return err
	}))
	defer l.Close()
	require.NoError(k.t, from.NS.Do(func() (err error) {
		client, err = net.DialTimeout("tcp", service.String(), 10*time.Second)
		return err
	}))
	k.t.Cleanup(func() { client.Close() })
	require.NoError(k.t, l.SetDeadline(time.Now().Add(10*time.Second)))
	server = ok(l.Accept())(k.t)
	k.t.Cleanup(func() { server.Close() })
	return client, server
}
