package ipvs_test

import (
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/dataplanetest/scenario"
	"github.com/kernlb/kernlb/dataplane/netns"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/test/dataplanetest"
	"github.com/kernlb/kernlb/ipvs"
	sm "github.com/kernlb/kernlb/servicemodel"
)

const testDevice = "kernlb0"

var withDevice = ipvs.Config{Device: testDevice}

// onDevice returns the output lines of ip for the addresses of a device, by address, without
// link-local addresses.
func (k *kernel) onDevice(name string) map[string]string {
	k.t.Helper()
	m := map[string]string{}
	for line := range strings.Lines(k.run("ip", "-o", "address", "show", "dev", name)) {
		w := strings.Fields(line)
		if !strings.HasPrefix(w[3], "fe80:") {
			m[w[3]] = strings.Join(w[4:], " ")
		}
	}

	return m
}

// requireBound requires that the device has exactly these addresses.
func (k *kernel) requireBound(addrs ...string) {
	k.t.Helper()
	var got []string
	for a := range k.onDevice(testDevice) {
		got = append(got, a)
	}
	require.ElementsMatch(k.t, addrs, got)
}

// requireServed requires that pod 2 or 3 answers each client over TCP at the addresses.
func (k *kernel) requireServed(port uint16, addrs ...netip.Addr) {
	k.t.Helper()
	var probes []netnstest.Probe
	for _, a := range addrs {
		for _, c := range []*netnstest.Host{k.pods["pod1"], k.pods["pod2"], k.Outside[0],
			k.OtherNode, k.Node} {
			for range 3 {
				probes = append(probes, netnstest.Probe{From: c, Proto: sm.TCP,
					To: netip.AddrPortFrom(a, port), Timeout: 5 * time.Second})
			}
		}
	}

	for i, out := range netnstest.SendAll(k.t.Context(), probes) {
		require.Equal(k.t, netnstest.Answered, out.Kind, "%v: %v", probes[i], out)
		require.Contains(k.t, []string{"pod2", "pod3"}, out.Server, "%v: %v", probes[i], out)
	}
}

// pinged reports whether an address answers an echo request.
func pinged(t *testing.T, from *netnstest.Host, to netip.Addr) bool {
	t.Helper()
	var answered bool
	require.NoError(t, from.NS.Do(func() error {
		network, request, reply := "ip4:icmp", byte(8), byte(0)
		if to.Is6() {
			network, request, reply = "ip6:ipv6-icmp", 128, 129
		}
		c, err := net.DialIP(network, nil, &net.IPAddr{IP: to.AsSlice()})
		if err != nil {
			return err
		}
		defer c.Close()
		msg := []byte{request, 0, 0, 0, 0x6b, 0x6c, 0, 1}
		sum := ^(uint32(request)<<8 + 0x6b6c + 1)
		binary.BigEndian.PutUint16(msg[2:], uint16(sum)) // for ICMPv6 the kernel computes it
		if _, err := c.Write(msg); err != nil {
			return err
		}
		if err := c.SetReadDeadline(time.Now().Add(3 * time.Second)); err != nil {
			return err
		}
		for buf := make([]byte, 1500); ; {
			n, _, err := c.ReadFromIP(buf)
			if err != nil {
				return nil // no answer, or an error message
			}
			if n >= 8 && buf[0] == reply && buf[4] == 0x6b && buf[5] == 0x6c {
				answered = true
				return nil
			}
		}
	}))

	return answered
}

// The device has the addresses of web. They serve web and answer to ping, and accept no node ports.
func TestKernelDeviceHoldsTheAddresses(t *testing.T) {
	t.Parallel()
	k := newKernel(t, withDevice)
	k.apply(k.state(web(), "pod2", "pod3"))
	k.requireBound("10.96.0.10/32", "fd00:10:96::10/128")
	require.Contains(k.t, k.run("ip", "-d", "link", "show", testDevice), "dummy")
	require.Contains(k.t, k.onDevice(testDevice)["10.96.0.10/32"], "scope host")
	require.NotContains(k.t, k.onDevice(testDevice)["fd00:10:96::10/128"], "tentative")
	k.requireServed(80, webAddrs...)
	for _, a := range webAddrs {
		for _, h := range []*netnstest.Host{k.pods["pod1"], k.Outside[0], k.Node} {
			require.True(k.t, pinged(k.t, h, a), "%s pings %v", h.Name, a)
		}
	}

	_, err := k.vs.Service(k.t.Context(), ipvsnl.AddressService(ipvsnl.TCP,
		netip.AddrPortFrom(webAddrs[0], 30080)))
	require.ErrorIs(k.t, err, ipvsnl.ErrNoService)
	k.requireServed(30080, k.Node.IPv4, k.Node.IPv6)
}

// sysctlsOfARP returns arp_ignore and arp_announce of the node.
func (k *kernel) sysctlsOfARP() (l []string) {
	k.t.Helper()
	for _, name := range []string{"arp_ignore", "arp_announce"} {
		v := ok(k.Node.NS.Sysctl("net/ipv4/conf/all/" + name))(k.t)
		l = append(l, v)
	}

	return l
}

// answersARP reports whether the node answers a client's ARP request for the address of web on the
// client's link.
func (k *kernel) answersARP(client *netnstest.Host) bool {
	k.t.Helper()
	addr := webAddrs[0].String()
	route := strings.Fields(k.inside(client, "ip", "-o", "route", "get", k.Node.IPv4.String()))
	dev := route[slices.Index(route, "dev")+1]
	k.inside(client, "ip", "route", "replace", addr, "dev", dev)
	defer func() {
		k.inside(client, "ip", "route", "del", addr, "dev", dev)
		k.inside(client, "ip", "neigh", "flush", "to", addr, "dev", dev)
	}()

	out := netnstest.Probe{From: client, Proto: sm.TCP,
		To: netip.AddrPortFrom(webAddrs[0], 80), Timeout: 5 * time.Second}.Send(k.t.Context())
	neigh := k.inside(client, "ip", "neigh", "show", addr)
	require.Equal(k.t, out.Kind == netnstest.Answered, strings.Contains(neigh, "lladdr"),
		"%v: %s", out, neigh)
	return out.Kind == netnstest.Answered
}

// The node answers ARP for the addresses of its device on other links, unless it is strict. Without
// a device it never answers.
func TestKernelStrictARP(t *testing.T) {
	t.Parallel()
	strict := ipvs.Config{Device: testDevice, StrictARP: true}
	k := newKernel(t, strict)
	k.apply(k.state(web(), "pod2", "pod3"))
	require.Equal(t, []string{"1", "2"}, k.sysctlsOfARP())
	require.False(t, k.answersARP(k.Outside[0]), "strict")
	k.requireServed(80, webAddrs...)

	k.restart(withDevice) // it restores the settings of the previous process
	k.apply(k.state(web(), "pod2", "pod3"))
	require.Equal(t, []string{"0", "0"}, k.sysctlsOfARP())
	require.True(t, k.answersARP(k.Outside[0]), "not strict")

	k.restart(strict)
	k.apply(k.state(web(), "pod2", "pod3"))
	require.Equal(t, []string{"1", "2"}, k.sysctlsOfARP())
	k.restart(strict)
	ok(k.engine.Cleanup(t.Context()))(t)
	require.Equal(t, []string{"0", "0"}, k.sysctlsOfARP())

	k.restart(ipvs.Config{})
	k.apply(k.state(web(), "pod2", "pod3"))
	require.False(t, k.answersARP(k.Outside[0]), "no device")
	k.requireServed(80, webAddrs...)
}

// Connections survive changes of the address, the device and the process.
func TestKernelDeviceLeavesConnectionsAlone(t *testing.T) {
	t.Parallel()
	k := newKernel(t, ipvs.Config{})
	s := k.state(web(), "pod2", "pod3")
	k.apply(s)
	conns := k.hold()
	for _, cfg := range []ipvs.Config{withDevice, {Device: testDevice, StrictARP: true}, {}} {
		k.restart(cfg)
		k.apply(s)
		requireAlive(t, conns)
	}
}

// deviceScenarios are scenarios of the conformance suite for each kind of address and verdict.
var deviceScenarios = []string{
	"cluster-ip, policy Cluster, endpoints here and elsewhere, pods by CIDR",
	"cluster-ip, policy Cluster, no endpoints, pods by CIDR",
	"external-ip, policy Local, endpoints here and elsewhere, pods by CIDR",
	"external-ip, policy Local, endpoints elsewhere only, pods by CIDR",
	"a pod that is given itself is masqueraded", "source ranges let in whom they name",
}

// With the addresses on a device, services work as without a device. The oracle takes packets of
// the host for packets from outside, because their source is the address of the service.
func TestKernelServicesWithDevice(t *testing.T) {
	t.Parallel()
	under := underTest
	under.Open = func(ns netns.Namespace) (backends.Backend, error) {
		return ipvs.New(&ipvs.Config{NetNS: ns, Device: testDevice})
	}
	var scenarios []scenario.Scenario
	for _, s := range dataplanetest.Scenarios() {
		if !slices.Contains(deviceScenarios, s.Name) {
			continue
		}
		if strings.Contains(s.Name, "Local") {
			s.Steps[0].Checks = slices.DeleteFunc(s.Steps[0].Checks,
				func(c scenario.Check) bool { return c.From == "node" })
		}

		scenarios = append(scenarios, s)
	}

	require.Len(t, scenarios, len(deviceScenarios))
	dataplanetest.RunScenarios(t, under, scenarios...)
}

// The host reaches endpoints anywhere, and a client outside reaches only the endpoints of this
// node.
func TestKernelLocalPolicyAndAffinityWithDevice(t *testing.T) {
	t.Parallel()
	k := newKernel(t, withDevice)
	svc := web(func(s *sm.Service) {
		s.ExternalIPs = []netip.Addr{netip.MustParseAddr("203.0.113.10")}
		s.ExternalTrafficPolicy = sm.PolicyLocal
	})
	s := k.state(svc, "pod2")
	elsewhere := s.Endpoints(svc.Name)
	for i := range elsewhere {
		elsewhere[i].Node = "other"
	}
	k.apply(s.WithEndpoints(svc.Name, elsewhere))
	for from, want := range map[*netnstest.Host]netnstest.OutcomeKind{
		k.Node: netnstest.Answered, k.Outside[0]: netnstest.Dropped} {
		out := netnstest.Probe{From: from, Proto: sm.TCP,
			To: netip.AddrPortFrom(svc.ExternalIPs[0], 80)}.Send(t.Context())
		require.Equal(t, want, out.Kind, "%s: %v", from.Name, out)
	}

	// Session affinity works as without a device.
	sticky := func(s *sm.Service) { s.SessionAffinity.ClientIP = true }
	k.apply(k.state(web(sticky), "pod2", "pod3"))
	for _, to := range webAddrs {
		servers := map[string]bool{}
		for range 6 {
			out := netnstest.Probe{From: k.Outside[0], Proto: sm.TCP,
				To: netip.AddrPortFrom(to, 80), Timeout: 3 * time.Second}.Send(t.Context())
			require.Equal(t, netnstest.Answered, out.Kind, "%v", out)
			servers[out.Server] = true
		}

		require.Len(t, servers, 1, servers)
	}
}

// This is the difference with a device: other ports of the addresses belong to the host. Packets of
// the host to other destinations do not have the address of a service.
func TestKernelDeviceMakesAddressesTheHosts(t *testing.T) {
	t.Parallel()
	k := newKernel(t, withDevice)
	k.apply(k.state(web(), "pod2"))
	require.NoError(t, k.Outside[0].Serve(sm.TCP, 9000))
	for _, a := range webAddrs {
		ask := func(from *netnstest.Host, port uint16) netnstest.Outcome {
			return netnstest.Probe{From: from, Proto: sm.TCP,
				To: netip.AddrPortFrom(a, port), Timeout: 3 * time.Second}.Send(t.Context())
		}

		require.Equal(t, netnstest.Refused, ask(k.pods["pod1"], 81).Kind)
		ok(k.Node.NS.Serve("node", sm.TCP, netip.AddrPortFrom(a, 81)))(t)
		for _, from := range []*netnstest.Host{k.pods["pod1"], k.Outside[0], k.Node} {
			require.Equal(t, "node", ask(from, 81).Server, from.Name)
		}
		to := netip.AddrPortFrom(k.Outside[0].Addr(a), 9000)
		out := netnstest.Probe{From: k.Node, Proto: sm.TCP, To: to,
			Timeout: 3 * time.Second}.Send(t.Context())
		require.Equal(t, netnstest.Answered, out.Kind, "%v", out)
		require.True(t, k.IsNodeAddr(out.Source.Addr()), "%v", out)
	}
}
