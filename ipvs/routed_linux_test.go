package ipvs_test

import (
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/test/nstest"
	"github.com/kernlb/kernlb/ipvs"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// routed returns the service web. Its packets are forwarded unchanged to endpoints that have its
// addresses.
func routed(how sm.Forwarding, edit ...func(*sm.Service)) *sm.Service {
	s := web(edit...)
	s.Forwarding = how
	s.Ports = []sm.ServicePort{{Name: "t", Protocol: sm.TCP, Port: 80},
		{Name: "u", Protocol: sm.UDP, Port: 80}}
	return s
}

// routedState returns a state with the service and endpoints at its own port. The endpoints in
// other are on another node.
func (k *kernel) routedState(svc *sm.Service, pods, other []string) sm.State {
	var l []sm.Endpoint
	add := func(node string, names []string) {
		for _, p := range names {
			for _, a := range []netip.Addr{k.pods[p].IPv4, k.pods[p].IPv6} {
				l = append(l, sm.Endpoint{Addr: a, Node: node,
					Ports: []sm.EndpointPort{{Name: "t", Protocol: sm.TCP,
						Port: 80}, {Name: "u", Protocol: sm.UDP, Port: 80}}})
			}
		}
	}

	add("this", pods)
	add("other", other)
	return sm.State{}.WithNode(sm.Node{Name: "this"}).WithService(svc).WithEndpoints(svc.Name, l)
}

// inside runs a command in the namespace of a host, and returns its output.
func (k *kernel) inside(h *netnstest.Host, args ...string) string {
	k.t.Helper()
	return (&kernel{Cluster: &netnstest.Cluster{Node: h}, t: k.t}).run(args...)
}

// holdAddresses adds the addresses to a pod, and starts servers there.
func (k *kernel) holdAddresses(pod string, addrs ...netip.Addr) {
	k.t.Helper()
	h := k.pods[pod]
	for _, a := range addrs {
		if a.Is4() {
			k.inside(h, "ip", "address", "add", a.String()+"/32", "dev", "lo")
		} else {
			k.inside(h, "ip", "address", "add", a.String()+"/128", "dev", "lo", "nodad")
		}

		for _, proto := range []sm.Protocol{sm.TCP, sm.UDP} {
			ok(h.NS.Serve(pod, proto, netip.AddrPortFrom(a, 80)))(k.t)
		}
	}
}

// requireAnswers requires that one of the servers answers each client at the address, and sees the
// client's own address.
func (k *kernel) requireAnswers(to netip.Addr, clients []*netnstest.Host, servers ...string) {
	k.t.Helper()
	var probes []netnstest.Probe
	for _, c := range clients {
		for _, proto := range []sm.Protocol{sm.TCP, sm.UDP} {
			for range 4 {
				probes = append(probes, netnstest.Probe{From: c, Proto: proto,
					To: netip.AddrPortFrom(to, 80), Timeout: 3 * time.Second})
			}
		}
	}

	for i, out := range netnstest.SendAll(k.t.Context(), probes) {
		require.Equal(k.t, netnstest.Answered, out.Kind, "%v: %v", probes[i], out)
		require.Contains(k.t, servers, out.Server, "%v: %v", probes[i], out)
		if from := probes[i].From; from != k.Node {
			require.Equal(k.t, from.Addr(to), out.Source.Addr(), "%v: %v", probes[i], out)
		}
	}
}

// requireConns requires that connections from a client are alive.
func (k *kernel) requireConns(from *netnstest.Host, to netip.Addr) {
	k.t.Helper()
	conns := ok(netnstest.OpenConns(k.t.Context(), from, netip.AddrPortFrom(to, 80), 4))(k.t)
	defer conns.Close()
	for range 3 {
		require.Equal(k.t, 4, conns.Ping(time.Minute).Answered)
	}
}

// Clients outside and pods have different endpoints, even if packets are forwarded unchanged.
func TestKernelDirectRoutingToLocalEndpoints(t *testing.T) {
	t.Parallel()
	k := newKernel(t, ipvs.Config{})
	external := []netip.Addr{netip.MustParseAddr("203.0.113.10"),
		netip.MustParseAddr("2001:db8:113::10")}
	for _, p := range []string{"pod2", "pod3"} {
		k.holdAddresses(p, external...)
	}
	svc := routed(sm.ForwardDirect, func(s *sm.Service) {
		s.ExternalIPs, s.ExternalTrafficPolicy = external, sm.PolicyLocal
	})
	k.apply(k.routedState(svc, []string{"pod2"}, []string{"pod3"}))
	for _, a := range external {
		k.requireAnswers(a, []*netnstest.Host{k.Outside[0]}, "pod2")
		k.requireAnswers(a, []*netnstest.Host{k.Node, k.pods["pod1"]}, "pod2", "pod3")
		for _, c := range []*netnstest.Host{k.Node, k.pods["pod1"], k.Outside[0]} {
			k.requireConns(c, a)
		}
	}
}

// Answers never pass the node, so it sees half of each connection.
func TestKernelDirectRoutingPastTheNode(t *testing.T) {
	t.Parallel()
	k := newKernel(t, ipvs.Config{})
	k.holdAddresses("pod2", webAddrs...)
	k.apply(k.routedState(routed(sm.ForwardDirect), []string{"pod2"}, nil))
	client, server := k.Outside[0], k.pods["pod2"]
	shortcut(t, server, client)
	count := k.counters(server, "6", "17") // TCP, UDP
	for _, a := range webAddrs {
		k.requireAnswers(a, []*netnstest.Host{client}, "pod2")
		k.requireConns(client, a)
	}

	for _, protocol := range []string{"6", "17"} {
		sent, answers := count(protocol)
		require.Positive(t, sent, protocol)
		require.Zero(t, answers, "%s answers passed the node", protocol)
	}
}

// counters counts the packets of some protocols (by number) between the node and a host, in each
// direction.
func (k *kernel) counters(h *netnstest.Host, protocols ...string) func(string) (to, from int) {
	k.t.Helper()
	rules := "table inet count {\nchain to { type filter hook postrouting priority 0\n"
	const rule = "%s %s meta l4proto %s counter comment \"%s\"\n"
	for _, p := range protocols {
		rules += fmt.Sprintf(rule, "oifname", h.NodeInterface, p, p)
	}
	rules += "}\nchain from { type filter hook prerouting priority 0\n"
	for _, p := range protocols {
		rules += fmt.Sprintf(rule, "iifname", h.NodeInterface, p, p)
	}
	nstest.NFT(k.t, k.Node.NS, rules+"}\n}\n")
	return func(protocol string) (to, from int) {
		k.t.Helper()
		counted := regexp.MustCompile(`packets (\d+) bytes \d+ comment "`+protocol+`"`).
			FindAllStringSubmatch(k.run("nft", "list", "table", "inet", "count"), -1)
		require.Len(k.t, counted, 2)
		return ok(strconv.Atoi(counted[0][1]))(k.t), ok(strconv.Atoi(counted[1][1]))(k.t)
	}
}

// shortcut creates a link from a server to a client. The server answers on this link.
func shortcut(t *testing.T, server, client *netnstest.Host) {
	t.Helper()
	at := func(h *netnstest.Host) *netlink.Handle {
		handle := ok(netlink.NewHandleAt(netns.NsHandle(h.NS.Fd()), unix.NETLINK_ROUTE))(t)
		t.Cleanup(handle.Close)
		return handle
	}

	here, there := at(server), at(client)
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "direct0"
	require.NoError(t, here.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "direct1"}))
	peer := ok(here.LinkByName("direct1"))(t)
	require.NoError(t, here.LinkSetNsFd(peer, client.NS.Fd()))
	for h, name := range map[*netlink.Handle]string{here: "direct0", there: "direct1"} {
		l := ok(h.LinkByName(name))(t)
		require.NoError(t, h.LinkSetUp(l))
	}

	link := ok(here.LinkByName("direct0"))(t)
	peer = ok(there.LinkByName("direct1"))(t)
	for _, a := range []netip.Addr{client.IPv4, client.IPv6} {
		dst := netlink.NewIPNet(a.AsSlice())
		require.NoError(t, here.RouteReplace(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: dst,
			Scope: netlink.SCOPE_LINK}))
		require.NoError(t,
			here.NeighSet(&netlink.Neigh{LinkIndex: link.Attrs().Index, IP: a.AsSlice(),
				HardwareAddr: peer.Attrs().HardwareAddr,
				State:        netlink.NUD_PERMANENT}))
	}
}

// This test is not parallel, so that it runs first: the modules that it loads create devices in
// every namespace, such as tunl0, and other tests list devices.
func TestKernelTunnels(t *testing.T) {
	k := newKernel(t, ipvs.Config{})
	for _, p := range []string{"pod2", "pod3"} {
		k.holdAddresses(p, webAddrs...)
		h := k.pods[p]
		k.inside(h, "ip", "link", "add", "in4", "type", "ipip", "local", h.IPv4.String(),
			"remote", "any")
		k.inside(h, "ip", "link", "set", "in4", "up")
		k.inside(h, "ip", "link", "add", "in6", "type", "ip6tnl", "mode", "ip6ip6", "local",
			h.IPv6.String(), "remote", "any")
		k.inside(h, "ip", "link", "set", "in6", "up")
	}

	k.apply(k.routedState(routed(sm.ForwardTunnel), []string{"pod2", "pod3"}, nil))
	count := k.counters(k.pods["pod2"], "4", "41") // IPPROTO_IPIP, IPPROTO_IPV6
	clients := []*netnstest.Host{k.pods["pod1"], k.Outside[0], k.Node}
	for _, a := range webAddrs {
		k.requireAnswers(a, clients, "pod2", "pod3")
		for _, c := range clients {
			k.requireConns(c, a)
		}
	}

	for _, protocol := range []string{"4", "41"} {
		sent, _ := count(protocol)
		require.Positive(t, sent, protocol)
	}
}
