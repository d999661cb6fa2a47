package main

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/servicemodel"
)

// compared are the ports of the container whose outcomes are compared.
var compared = []mapping{
	{HostPort: 8080, ContainerPort: 80, Protocol: "tcp"},
	{HostPort: 5353, ContainerPort: 53, Protocol: "udp"},
	{HostPort: 9000, ContainerPort: 90, Protocol: "sctp"},
	{HostPort: 8081, ContainerPort: 80, Protocol: "tcp", HostIP: netnstest.Net.NodeSecondaryIPv4},
	{HostPort: 8082, ContainerPort: 80, Protocol: "tcp", HostIP: netnstest.Net.NodeSecondaryIPv6},
	{HostPort: 8083, ContainerPort: 80, Protocol: "tcp", HostIP: "127.0.0.1"},
	{HostPort: 8084, ContainerPort: 80, Protocol: "tcp", HostIP: "0.0.0.0"},
	{HostPort: 8085, ContainerPort: 80, Protocol: "tcp", HostIP: "::"},
	{HostPort: 5354, ContainerPort: 53, Protocol: "udp", HostIP: netnstest.Net.NodeIPv4},
}

// places are the hosts that send packets to the published ports.
func (h *host) places(web, neighbour *container) map[string]*netnstest.Host {
	return map[string]*netnstest.Host{"outside": h.Outside[0], "host": h.Node,
		"itself": &web.Host, "neighbour": &neighbour.Host}
}

// outcomes publishes the compared ports. It returns the outcome of a packet from each place to each
// address and port.
func outcomes(t *testing.T, h *host) map[string]string {
	web, neighbour := h.newContainer("web", compared...), h.newContainer("neighbour")
	h.mustAdd("net", web)
	h.mustAdd("net", neighbour)
	web.serve(t, servicemodel.TCP, 80)
	web.serve(t, servicemodel.UDP, 53)
	web.serve(t, servicemodel.SCTP, 90)
	addrs := []netip.Addr{netip.IPv6Loopback(), web.IPv4, web.IPv6}
	for _, a := range []string{"127.0.0.1", netnstest.Net.NodeIPv4, netnstest.Net.NodeSecondaryIPv4,
		netnstest.Net.NodeIPv6, netnstest.Net.NodeSecondaryIPv6} {
		addrs = append(addrs, netip.MustParseAddr(a))
	}

	protocols := map[string]servicemodel.Protocol{"tcp": servicemodel.TCP, "udp": servicemodel.UDP,
		"sctp": servicemodel.SCTP}
	got := map[string]string{}

	// The kernel refuses SCTP unless a raw socket of that protocol is connected to the packet's
	// source. The host probes its own addresses through such a socket, and probes there as well. So
	// SCTP ports are probed one after the other, and no other place probes at the same time.
	for place, from := range h.places(web, neighbour) {
		var names []string
		var probes []netnstest.Probe
		for _, addr := range addrs {
			if addr.IsLoopback() && from != h.Node {
				continue
			}
			for _, m := range append([]mapping{{HostPort: 7, Protocol: "tcp"}}, compared...) {
				name := fmt.Sprintf("%s from %s to %v port %d", m.Protocol, place, addr,
					m.HostPort)
				p := netnstest.Probe{From: from, Proto: protocols[m.Protocol],
					To: netip.AddrPortFrom(addr, uint16(m.HostPort))}
				if from == h.Node && m.Protocol == "sctp" {
					got[name] = h.describe(p.Send(t.Context()))
					continue
				}

				names, probes = append(names, name), append(probes, p)
			}
		}

		for i, o := range netnstest.SendAll(t.Context(), probes) {
			got[names[i]] = h.describe(o)
		}
	}

	return got
}

// describe describes the outcome of a packet. All addresses of the host count as the same.
func (h *host) describe(o netnstest.Outcome) string {
	gateways := []string{"10.88.0.1", "fd00:10:88::1"}
	switch source := o.Source.Addr(); {
	case o.Kind != netnstest.Answered:
		return string(o.Kind)
	case h.IsNodeAddr(source) || slices.Contains(gateways, source.String()):
		return o.Server + " answers the host"
	case source == o.Local.Addr():
		return o.Server + " answers the client"
	}

	return fmt.Sprint(o)
}

// expected returns the plugin's expected outcome for portmap's outcome theirs.
func expected(kind string, fields object, name, theirs string) string {
	switch {
	case strings.Contains(name, "from host to ::1 ") && theirs == "dropped":
		return "refused" // portmap translates packets that Linux then does not route
	case fields["snat"] == false && (theirs == "dropped" || theirs == "failed") &&
		(strings.Contains(name, "from itself") || strings.Contains(name, "from host to 127.0.0.1")):
		return "web answers the host" // with portmap they fail
	case !strings.Contains(name, "from neighbour"):
	case kind == "ptp" && theirs == "web answers the host":
		return "web answers the client" // portmap with iptables masquerades the whole network
	case kind == "bridge" && (theirs == "web answers the client" || theirs == "dropped"):
		return "web answers the host" // portmap with nftables leaves it to bridge-nf-call-iptables
	}

	return theirs
}

// The outcome of each packet is the same as with portmap, for both of its backends.
func TestSameOutcomeAsPortmap(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		kind     string
		backends []string
		filtered string // whether packets between ports of a bridge pass the rules
		fields   object
	}{
		"bridge":            {"bridge", []string{"iptables", "nftables"}, "1", nil},
		"bridge unfiltered": {"bridge", []string{"nftables"}, "0", nil},
		"ptp":               {"ptp", []string{"iptables", "nftables"}, "1", nil},
		"masqAll":           {"bridge", []string{"iptables"}, "0", object{"masqAll": true}},
		"without SNAT":      {"ptp", []string{"iptables"}, "1", object{"snat": false}},
		"conditions of iptables": {"ptp", []string{"iptables"}, "1",
			object{"conditionsV4": []string{"-d", netnstest.Net.NodeIPv4}}},
		"conditions of nftables": {"ptp", []string{"nftables"}, "1",
			object{"conditionsV6": []string{"ip6", "daddr", netnstest.Net.NodeSecondaryIPv6}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			with := func(publish object) map[string]string {
				n := network(t, "net", "1.1.0", publish)
				if test.kind == "ptp" {
					n = overPTP(n)
				}
				h := newHost(t, n)

				// The kernel refuses SCTP by ICMP errors, and sends each host only a few of them
				// per second.
				require.NoError(t, h.Node.NS.SetSysctl("net/ipv4/icmp_ratelimit", "0"))
				require.NoError(t, h.Node.NS.SetSysctl("net/ipv6/icmp/ratelimit", "0"))
				for _, sysctl := range []string{"iptables", "ip6tables"} {
					err := h.Node.NS.SetSysctl("net/bridge/bridge-nf-call-"+sysctl, test.filtered)
					if err != nil && test.filtered == "1" && test.kind == "bridge" {
						t.Skip("the kernel lacks br_netfilter: ", err)
					}
				}

				return outcomes(t, h)
			}

			got := with(ours(test.fields))
			require.Contains(t, got["tcp from outside to 192.0.2.10 port 8080"], "web answers")
			for _, backend := range test.backends {
				fields := object{"backend": backend}
				maps.Copy(fields, test.fields)
				theirs := with(publisher("portmap", fields))
				for _, name := range slices.Sorted(maps.Keys(got)) {
					if want := expected(test.kind, fields, name, theirs[name]); got[name] != want {
						t.Errorf("%s: %s, portmap with %s: %s", name, got[name], backend,
							theirs[name])
					}
				}
			}
		})
	}
}
