package netnstest

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/servicemodel"
)

// send sends one probe.
func send(from *Host, proto servicemodel.Protocol, addr netip.Addr, port uint16) Outcome {
	return Probe{From: from, Proto: proto, To: netip.AddrPortFrom(addr, port)}.Send(
		context.Background())
}

func TestAHostWithoutSCTPRefuses(t *testing.T) {
	t.Parallel()
	c := Start(t, Options{})
	for _, from := range []*Host{c.Pods[1], c.Node, c.Outside[0], c.RemotePods[0]} {
		for _, addr := range addrsOf(c.Pods[0]) {
			o := send(from, servicemodel.SCTP, addr, 9)
			require.Equal(t, Refused, o.Kind, "no server at all: %s", o)
		}
	}
}

func TestAHostThatProbesItselfIsAnsweredOrRefused(t *testing.T) {
	t.Parallel()
	c := Start(t, Options{})
	for _, h := range []*Host{c.Node, c.Pods[0]} {
		for _, addr := range addrsOf(h) {
			for _, proto := range Protocols() {
				o := send(h, proto, addr, 8080)
				require.Equal(t, Refused, o.Kind, "%s from %s to itself: %s", proto, h.Name, o)
				s := ok(h.NS.Serve("self", proto, netip.AddrPortFrom(addr, 8080)))(t)
				o = send(h, proto, addr, 8080)
				require.Equal(t, Answered, o.Kind, "%s from %s to itself: %s", proto, h.Name, o)
				require.Equal(t, addr, o.Source.Addr())
				require.NoError(t, s.Close())
			}
		}
	}
}

// verdictRules give each destination port its own fate, for packets from everywhere.
const verdictRules = `
table inet verdicts {
	chain verdicts {
		tcp dport 101 reject with tcp reset
		th dport { 101, 102 } reject
		th dport 103 reject with icmpx type admin-prohibited
		th dport 104 reject with icmpx type host-unreachable
		th dport 105 drop
	}
	chain forward { type filter hook forward priority 0; jump verdicts; }
	chain output { type filter hook output priority 0; jump verdicts; }
}
`

func TestRulesDecideOutcomes(t *testing.T) {
	t.Parallel()
	c := Start(t, Options{})
	nft(t, c.Node.NS, verdictRules)
	serveAll(t, c, 100)
	serveAll(t, c, 105)
	kinds := map[uint16]OutcomeKind{
		100: Answered, 101: Refused, 102: Refused, 103: Unreachable, 104: Unreachable, 105: Dropped,
		106: Refused, // closed, without a rule
	}
	var probes []Probe
	for port := range kinds {
		for _, from := range []*Host{c.Pods[1], c.Node, c.Outside[0], c.RemotePods[0]} {
			for _, addr := range addrsOf(c.Pods[0]) {
				for _, proto := range Protocols() {
					probes = append(probes, Probe{From: from, Proto: proto,
						To: netip.AddrPortFrom(addr, port)})
				}
			}
		}
	}

	for i, o := range SendAll(context.Background(), probes) {
		port, proto := probes[i].To.Port(), probes[i].Proto
		require.Equal(t, kinds[port], o.Kind, "%s: %s", probes[i], o)
		byICMP := port > 101 && port < 105 || port == 101 && proto != servicemodel.TCP ||
			port == 106 && proto == servicemodel.UDP
		require.Equal(t, byICMP, o.ICMP != nil, "%s: %s", probes[i], o)
		if byICMP {
			require.Equal(t, o.Kind == Refused, o.ICMP.PortUnreachable(), "%s: %s", probes[i], o)
		}
		if port == 106 && byICMP {
			require.Equal(t, probes[i].To.Addr(), o.ICMP.From)
		}
	}
}

// serviceRules translate addresses as a service does: 80 to pod1, 81 to remote1, 82 to pod1
// masqueraded, 83 to remote1 masqueraded.
const serviceRules = `
table ip service {
	chain translate {
		ip daddr != 10.96.0.10 return
		th dport { 82, 83 } meta mark set 1
		meta l4proto { tcp, udp, sctp } th dport { 80, 82 } dnat to 10.244.1.1:8080
		meta l4proto { tcp, udp, sctp } th dport { 81, 83 } dnat to 10.244.2.1:8080
	}
	chain prerouting { type nat hook prerouting priority -100; jump translate; }
	chain output { type nat hook output priority -100; jump translate; }
	chain postrouting {
		type nat hook postrouting priority 100; meta mark 1 masquerade fully-random;
	}
}
table ip6 service {
	chain translate {
		ip6 daddr != fd00:10:96::10 return
		th dport { 82, 83 } meta mark set 1
		meta l4proto { tcp, udp, sctp } th dport { 80, 82 } dnat to [fd00:10:244:1::1]:8080
		meta l4proto { tcp, udp, sctp } th dport { 81, 83 } dnat to [fd00:10:244:2::1]:8080
	}
	chain prerouting { type nat hook prerouting priority -100; jump translate; }
	chain output { type nat hook output priority -100; jump translate; }
	chain postrouting {
		type nat hook postrouting priority 100; meta mark 1 masquerade fully-random;
	}
}
`

func TestTranslatedAddressesAnswer(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]Options{"routed": {}, "bridged": {Bridge: "cni0"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := Start(t, opts)
			nft(t, c.Node.NS, serviceRules)
			serveAll(t, c, 8080)
			for _, vip := range []string{"10.96.0.10", "fd00:10:96::10"} {
				for _, from := range c.Hosts() {
					for _, proto := range Protocols() {
						requireService(t, c, from, proto, netip.MustParseAddr(vip))
					}
				}
			}
		})
	}
}

// requireService probes the ports of serviceRules.
func requireService(t *testing.T, c *Cluster, from *Host, proto servicemodel.Protocol,
	vip netip.Addr) {
	t.Helper()
	for port, server := range map[uint16]*Host{80: c.Pods[0], 81: c.RemotePods[0], 82: c.Pods[0],
		83: c.RemotePods[0]} {
		if from == server && port < 82 {
			// a host accepts no packet with its own source from a link, so hairpin traffic is
			// masqueraded
			continue
		}

		o := send(from, proto, vip, port)
		require.Equal(t, Answered, o.Kind, "%s from %s to port %d of %s: %s", proto, from.Name,
			port, vip, o)
		require.Equal(t, server.Name, o.Server)
		if port < 82 {
			require.Equal(t, o.Local, o.Source, "%s from %s: the source is kept", proto, from.Name)
		} else {
			require.True(t, c.IsNodeAddr(o.Source.Addr()), "%s from %s: %s is masqueraded", proto,
				from.Name, o.Source)
		}
	}
}

func TestWithoutARouteADestinationIsUnreachable(t *testing.T) {
	t.Parallel()
	Require(t)
	ns := ok(NewNS("island"))(t)
	defer func() { require.NoError(t, ns.Close()) }()
	h := &Host{Name: "island", NS: ns, anySource: true}
	for _, addr := range []string{"10.0.0.1", "fd00::1"} {
		for _, proto := range Protocols() {
			o := send(h, proto, netip.MustParseAddr(addr), 80)
			require.Equal(t, Unreachable, o.Kind, "%s to %s: %s", proto, addr, o)
			require.Error(t, o.Err)
		}
	}
}

func TestProbesThatMakeNoSenseFail(t *testing.T) {
	t.Parallel()
	c := Start(t, Options{})
	to := netip.MustParseAddrPort("10.96.0.1:80")
	for name, p := range map[string]Probe{
		"From":       {Proto: servicemodel.TCP, To: to},
		"Proto":      {From: c.Node, Proto: 1, To: to},
		"To":         {From: c.Node, Proto: servicemodel.TCP},
		"SourceAddr": {From: c.Node, Proto: servicemodel.TCP, To: to, SourceAddr: c.Node.IPv6},
	} {
		o := p.Send(context.Background())
		require.Equal(t, Failed, o.Kind)
		require.ErrorContains(t, o.Err, name)
	}

	o := Probe{From: c.Pods[0], Proto: servicemodel.UDP, To: to, SourceAddr: c.Pods[1].IPv4}.Send(
		context.Background())
	require.Equal(t, Failed, o.Kind, "an address of another host")
}

func TestACancelledContextEndsAProbe(t *testing.T) {
	t.Parallel()
	c := Start(t, Options{})
	nft(t, c.Node.NS, verdictRules)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	for _, proto := range Protocols() {
		p := Probe{From: c.Node, Proto: proto, To: netip.AddrPortFrom(c.Pods[0].IPv4, 105),
			Timeout: time.Hour}
		o := p.Send(ctx)
		require.ErrorIs(t, o.Err, context.DeadlineExceeded, "%s", o)
	}
}

func TestSourceAddressAndPortCanBeChosen(t *testing.T) {
	t.Parallel()
	c := Start(t, Options{})
	serveAll(t, c, 8080)
	for _, proto := range Protocols() {
		for range 3 {
			p := Probe{
				From: c.Node, Proto: proto, To: netip.AddrPortFrom(c.Pods[0].IPv4, 8080),
				SourceAddr: netip.MustParseAddr(Net.NodeSecondaryIPv4), SourcePort: 4321,
			}
			o := p.Send(context.Background())
			require.Equal(t, Answered, o.Kind, "%s: %s", p, o)
			require.Equal(t, netip.AddrPortFrom(p.SourceAddr, 4321), o.Source)
			require.Equal(t, o.Source, o.Local)
		}
	}
}

func TestSourcePortsAreNotReusedSoon(t *testing.T) {
	t.Parallel()
	var ports sourcePorts
	seen := map[uint16]bool{}
	for {
		p := ports.next(servicemodel.TCP)
		if seen[p] {
			require.EqualValues(t, 10000, p, "starts again from the beginning")
			break
		}

		seen[p] = true
		require.False(t, p < 10000 || p >= 30000 && p <= 32767, "%d", p)
	}

	require.Len(t, seen, 52768)
	require.EqualValues(t, 10000, ports.next(servicemodel.UDP), "each protocol has its own")
}
