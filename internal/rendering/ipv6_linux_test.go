package rendering_test

import (
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/test/must"
	"github.com/kernlb/kernlb/internal/test/nstest"
	"github.com/kernlb/kernlb/iptables"
	"github.com/kernlb/kernlb/ipvs"
	"github.com/kernlb/kernlb/nftables"
	"github.com/kernlb/kernlb/servicemodel"
)

// The addresses of the node and the service in TestWithoutIPv6.
const (
	nodeIP    = "192.0.2.1"
	serviceIP = "198.51.100.1"
)

// TestWithoutIPv6 runs on a kernel that was booted with ipv6.disable=1: each backend serves IPv4,
// even for a service with addresses of both families, and whether or not the node declares that it
// has only one family.
func TestWithoutIPv6(t *testing.T) {
	if _, err := os.Stat("/proc/sys/net/ipv6"); !errors.Is(err, fs.ErrNotExist) {
		t.Skip("needs a kernel that was booted with ipv6.disable=1: make test-vm boots one")
	}
	for i, name := range []string{nftables.Name, iptables.Name, ipvs.Name} {
		t.Run(name, func(t *testing.T) {
			ns := nstest.New(t)
			serve(t, ns)
			b := must.OK([]backends.Candidate{
				nftables.Candidate(&nftables.Config{NetNS: ns.NetNS()}),
				iptables.Candidate(&iptables.Config{NetNS: ns.NetNS()}),
				ipvs.Candidate(&ipvs.Config{NetNS: ns.NetNS()}),
			}[i].Open())(t)
			t.Cleanup(func() { require.NoError(t, b.Close()) })
			e := dataplane.New(b, nil)
			for _, only := range []servicemodel.Family{0, servicemodel.IPv4} {
				s := dualStack(only)
				res := must.OK(e.Apply(t.Context(), s))(t)
				for _, r := range res.Refused {
					require.Equal(t, servicemodel.IPv6, r.Family, "%v", r.Err)
				}
				require.True(t, only == 0 || len(res.Refused) == 0, "%v", res.Refused)
				require.NoError(t, ns.Do(func() error { return dial(t) }))
				again := must.OK(e.Apply(t.Context(), s))(t)
				require.Empty(t, again.Drift)
				require.Zero(t, again.Stats.Messages)
			}

			require.NotContains(t, nstest.Run(t, ns, "nft list tables"), "ip6 ", "the other family")
			must.OK(e.Cleanup(t.Context()))(t)
		})
	}
}

// serve gives a namespace an address, a default route, and a server as the endpoint.
func serve(t *testing.T, ns *netnstest.NS) {
	t.Helper()
	for _, command := range []string{"ip link set lo up", "ip address add " + nodeIP + "/32 dev lo",
		"ip route add default dev lo src " + nodeIP} {
		nstest.Run(t, ns, command)
	}

	var l net.Listener
	require.NoError(t, ns.Do(func() (err error) {
		l, err = (&net.ListenConfig{}).Listen(t.Context(), "tcp4", nodeIP+":8080")
		return err
	}))

	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
}

// dial connects to the service.
func dial(t *testing.T) error {
	c, err := (&net.Dialer{Timeout: 20 * time.Second}).DialContext(t.Context(), "tcp4",
		serviceIP+":80")
	if err != nil {
		return err
	}
	return c.Close()
}

// dualStack is a state with a dual-stack service.
func dualStack(only servicemodel.Family) servicemodel.State {
	svc := &servicemodel.Service{Name: servicemodel.Name{Namespace: "default", Name: "web"},
		ClusterIPs: []netip.Addr{netip.MustParseAddr(serviceIP),
			netip.MustParseAddr("2001:db8:2::1")},
		Ports: []servicemodel.ServicePort{{Name: "http", Protocol: servicemodel.TCP, Port: 80}}}
	var eps []servicemodel.Endpoint
	for _, a := range []string{nodeIP, "2001:db8:1::1"} {
		eps = append(eps, servicemodel.Endpoint{Addr: netip.MustParseAddr(a),
			Ports: []servicemodel.EndpointPort{{Name: "http",
				Protocol: servicemodel.TCP, Port: 8080}}})
	}

	return servicemodel.State{}.WithNode(servicemodel.Node{Name: "this", OnlyFamily: only,
		Addresses: []netip.Addr{netip.MustParseAddr(nodeIP)}}).WithService(svc).
		WithEndpoints(svc.Name, eps)
}
