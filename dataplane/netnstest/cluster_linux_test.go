package netnstest

import (
	"context"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/servicemodel"
)

// serveAll starts servers for all protocols on every host.
func serveAll(tb testing.TB, c *Cluster, port uint16) {
	tb.Helper()
	for _, h := range c.Hosts() {
		for _, proto := range Protocols() {
			require.NoError(tb, h.Serve(proto, port))
		}
	}
}

// addrsOf returns both addresses of a host.
func addrsOf(h *Host) []netip.Addr { return []netip.Addr{h.IPv4, h.IPv6} }

func TestEveryHostReachesEveryOtherDirectly(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]Options{
		"routed":  {},
		"bridged": {Bridge: "cni0"},
		"larger":  {Pods: 6, RemotePods: 5, OutsideClients: 4, PodInterfacePrefix: "cali"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := Start(t, opts)
			const port = 8080
			serveAll(t, c, port)
			var probes []Probe
			var servers []string
			for _, from := range c.Hosts() {
				for _, to := range c.Hosts() {
					if from == to {
						continue
					}
					for _, addr := range addrsOf(to) {
						for _, proto := range Protocols() {
							probes = append(probes, Probe{From: from, Proto: proto,
								To: netip.AddrPortFrom(addr, port)})
							servers = append(servers, to.Name)
						}
					}
				}
			}

			for i, o := range SendAll(context.Background(), probes) {
				require.Equal(t, Answered, o.Kind, "%s: %s", probes[i], o)
				require.Equal(t, servers[i], o.Server, "%s", probes[i])
				require.Equal(t, o.Local, o.Source, "%s: the source address must arrive unchanged",
					probes[i])
				if from := probes[i].From; from != c.Node {
					require.Equal(t, from.Addr(o.Source.Addr()), o.Source.Addr(), "%s", probes[i])
				}
			}
		})
	}
}

func TestTheInternetAnswersForEveryOtherAddress(t *testing.T) {
	t.Parallel()
	c := Start(t, Options{})
	var probes []Probe
	for _, from := range c.Hosts() {
		for _, to := range []string{"10.96.0.1:80", "203.0.113.9:443", "[fd00:10:96::1]:53",
			"[2001:db8:113::9]:443"} {
			for _, proto := range Protocols() {
				probes = append(probes, Probe{From: from, Proto: proto,
					To: netip.MustParseAddrPort(to)})
			}
		}
	}

	for i, o := range SendAll(context.Background(), probes) {
		require.Equal(t, Answered, o.Kind, "%s: %s", probes[i], o)
		require.Equal(t, Net.Internet, o.Server)
		require.Equal(t, o.Local, o.Source)
		require.Equal(t, probes[i].From.Addr(probes[i].To.Addr()), o.Source.Addr())
	}
}

func TestNodeAddressesAnswerAsOneHost(t *testing.T) {
	t.Parallel()
	c := Start(t, Options{Bridge: "cni0"})
	require.Len(t, c.NodeAddrs(), 10)
	require.Equal(t, []netip.Addr{c.Node.IPv4}, c.NodeAddrs()[:1])
	for _, addr := range c.NodeAddrs() {
		require.True(t, c.IsNodeAddr(addr))
		ok(c.Node.NS.Serve("host", servicemodel.UDP, netip.AddrPortFrom(addr, 53)))(t)
		for _, from := range c.Hosts() {
			p := Probe{From: from, Proto: servicemodel.UDP, To: netip.AddrPortFrom(addr, 53)}
			o := p.Send(context.Background())
			require.Equal(t, Answered, o.Kind, "%s: %s", p, o)
		}
	}

	require.False(t, c.IsNodeAddr(c.Pods[0].IPv4))
}

func TestOptionsThatCannotBeBuiltAreRefused(t *testing.T) {
	t.Parallel()
	for field, opts := range map[string]Options{
		"Pods":               {Pods: maxHosts + 1},
		"RemotePods":         {RemotePods: maxHosts + 1},
		"OutsideClients":     {OutsideClients: maxHosts + 1},
		"PodInterfacePrefix": {PodInterfacePrefix: "averylongprefix"},
		"Bridge":             {Bridge: "averylongbridgename"},
	} {
		_, err := New(context.Background(), opts)
		require.ErrorContains(t, err, field)
	}
}

func TestAClusterMayHaveOnlyANode(t *testing.T) {
	t.Parallel()
	c := Start(t, Options{Pods: -1, RemotePods: -1, OutsideClients: -1, Bridge: "cni0"})
	require.Len(t, c.Hosts(), 2)
	o := Probe{From: c.Node, Proto: servicemodel.TCP,
		To: netip.MustParseAddrPort("10.96.0.1:80")}.Send(
		context.Background())
	require.Equal(t, Net.Internet, o.Server, "%s", o)
}
