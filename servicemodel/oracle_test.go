package servicemodel_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/test/golden"
	sm "github.com/kernlb/kernlb/servicemodel"
)

var nodeAddrs = sm.Locality(addrs("192.0.2.1", "2001:db8::1"))

func from(src string, edits ...func(*sm.Packet)) func(*sm.Packet) {
	return func(p *sm.Packet) {
		p.Src = netip.AddrPortFrom(ip(src), 40000)
		for _, edit := range edits {
			edit(p)
		}
	}
}

func to(dst string) func(*sm.Packet) {
	return func(p *sm.Packet) { p.Dst, p.Protocol = netip.MustParseAddrPort(dst), sm.TCP }
}

func over(proto sm.Protocol) func(*sm.Packet) { return func(p *sm.Packet) { p.Protocol = proto } }

func sentHere(p *sm.Packet) { p.FromThisNode = true }

func through(name string) func(*sm.Packet) { return func(p *sm.Packet) { p.InInterface = name } }

func packet(edits ...func(*sm.Packet)) sm.Packet {
	var p sm.Packet
	for _, edit := range edits {
		edit(&p)
	}
	return p
}

var (
	localEndpoint  = endpoint("10.64.0.1", here)
	remoteEndpoint = endpoint("10.64.0.2", func(e *sm.Endpoint) { e.Weight = 2 })
	weighted       = []sm.Endpoint{localEndpoint, remoteEndpoint}
	onlyLocal      = []sm.Endpoint{localEndpoint}

	fromPod, fromOutside = from("10.64.0.9"), from("198.51.100.7")
	fromHost             = from("192.0.2.1", sentHere)
)

func sourcesRestricted(s *sm.Service) {
	s.LoadBalancerSourceRanges = prefixes("198.51.100.0/24")
}

// packets are packets to the web service. testdata/packets.txt has the decision about each packet,
// and the explanation.
var packets = []struct {
	name      string
	service   func(*sm.Service)
	endpoints []sm.Endpoint
	from, to  func(*sm.Packet)
}{
	{"pod to cluster IP", everywhere, weighted, fromPod, to("10.96.0.1:80")},
	{"outside to cluster IP", everywhere, weighted, fromOutside, to("10.96.0.1:80")},
	{"host to cluster IP", everywhere, weighted, fromHost, to("10.96.0.1:80")},
	{"a pod that is its own endpoint is masqueraded to itself only", everywhere, weighted,
		from("10.64.0.1"), to("10.96.0.1:80")},
	{"an endpoint elsewhere does not come back to itself through here", everywhere, weighted,
		from("10.64.0.2"), to("10.96.0.1:80")},
	{"pod to node port", everywhere, weighted, fromPod, to("192.0.2.1:30080")},
	{"pod to node port, external Local", externalLocal, weighted, fromPod, to("192.0.2.1:30080")},
	{"host to node port, external Local", externalLocal, weighted, fromHost, to("192.0.2.1:30080")},
	{"outside to node port, external Local", externalLocal, weighted, fromOutside,
		to("192.0.2.1:30080")},
	{"outside to load balancer, external Local, none here", externalLocal,
		[]sm.Endpoint{remoteEndpoint}, fromOutside, to("203.0.113.1:80")},
	{"outside to external IP, no endpoint", everywhere, nil, fromOutside, to("198.51.100.1:80")},
	{"a source that may not", sourcesRestricted, onlyLocal, fromPod, to("203.0.113.1:80")},
	{"a source that may not, without endpoints", sourcesRestricted, nil, fromPod,
		to("203.0.113.1:80")},
	{"a source that may", sourcesRestricted, onlyLocal, fromOutside, to("203.0.113.1:80")},
	{"external IPs and node ports are not restricted", sourcesRestricted, onlyLocal, fromPod,
		to("192.0.2.1:30080")},

	{"another port of the cluster IP", everywhere, nil, fromPod, to("10.96.0.1:81")},
	{"another protocol to the cluster IP", everywhere, nil, fromPod,
		func(p *sm.Packet) { to("10.96.0.1:0")(p); over(1)(p) }},
	{"an address of the service CIDR that nobody has", everywhere, nil, fromPod,
		to("10.97.0.1:80")},
	{"another port of an external IP", everywhere, nil, fromOutside, to("198.51.100.1:81")},
	{"another protocol of an external IP", everywhere, onlyLocal, fromOutside,
		func(p *sm.Packet) { to("198.51.100.1:80")(p); over(sm.UDP)(p) }},
	{"another port of the node", everywhere, nil, fromOutside, to("192.0.2.1:22")},
	{"another address of the node's network", everywhere, nil, fromPod, to("192.0.2.77:80")},
	{"a node port at loopback", everywhere, onlyLocal, from("127.0.0.1", sentHere),
		to("127.0.0.1:30080")},
	{"a node port at an address that is not the node's", everywhere, onlyLocal, fromOutside,
		to("192.0.2.9:30080")},
	{"a node port over the wrong protocol", everywhere, onlyLocal, fromOutside,
		func(p *sm.Packet) { to("192.0.2.1:30080")(p); over(sm.UDP)(p) }},
	{"a node port of the family without cluster IP", everywhere, onlyLocal, from("2001:db8::7"),
		to("[2001:db8::1]:30080")},
	{"the unspecified address is no node port", everywhere, onlyLocal, fromOutside,
		to("0.0.0.0:30080")},

	{"affinity, and endpoints of all sorts", sticky, []sm.Endpoint{localEndpoint, remoteEndpoint,
		endpoint("10.64.0.3", notReady), endpoint("10.64.0.4", terminating),
		endpoint("10.64.0.5", httpNamed("htpp", sm.TCP)), endpoint("fd64::1"),
		endpoint("10.64.0.2", notReady)}, from("10.64.0.1"), to("10.96.0.1:80")},
	{"a client of a prefix, with affinity for the whole service", func(s *sm.Service) {
		s.SessionAffinity = sm.SessionAffinity{ClientIP: true, Bits4: 24, WholeService: true}
	}, onlyLocal, from("10.64.0.1"), to("10.96.0.1:80")},
	{"hints", anyService, []sm.Endpoint{endpoint("10.64.0.1", zones("z1")),
		endpoint("10.64.0.2", zones("z2"))}, fromOutside, to("10.96.0.1:80")},
	{"an endpoint itself", everywhere, onlyLocal, fromPod, to("10.64.0.1:8080")},
	{"a load balancer in front", func(s *sm.Service) {
		s.LoadBalancerIPs = []sm.LoadBalancerIP{{Addr: ip("203.0.113.9"), Proxy: true}}
	}, nil, fromPod, to("203.0.113.9:80")},
	{"an address without a family", func(s *sm.Service) { s.ExternalIPs = addrs("2001:db8::9") },
		nil, from("fd64::9"), to("[2001:db8::9]:80")},
}

func TestDecisionsAndTraces(t *testing.T) {
	t.Parallel()
	node := thisNode
	node.ServiceCIDRs = prefixes("10.96.0.0/12")
	var all strings.Builder
	for _, tt := range packets {
		table := tableOf(t, node, webService(everywhere, tt.service), tt.endpoints...)
		p := packet(tt.from, tt.to)
		d := table.Decide(p, nodeAddrs)
		fmt.Fprintf(&all, "# %s\n%s\n%s\n", tt.name, d, table.Trace(p, nodeAddrs))
		id, balanced := d.Pool()
		require.Equal(t, d.Outcome == sm.Balanced, balanced)
		if balanced {
			requireCandidates(t, table.Pool(id).Slots, d.Candidates)
		}
	}

	golden.File(t, "testdata/packets.txt", all.String())
}

func sticky(s *sm.Service) { s.SessionAffinity.ClientIP = true }

// requireCandidates requires that the candidates are the slots of a pool.
func requireCandidates(t *testing.T, want []sm.Slot, got []sm.Candidate) {
	t.Helper()
	require.Len(t, got, len(want))
	for i, s := range want {
		require.Equal(t, s, sm.Slot{Endpoint: got[i].Endpoint, Weight: got[i].Weight})
	}
}

func TestOriginsByDetector(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		pods sm.PodDetector
		from func(*sm.Packet)
		want sm.Origins
	}{
		{"CIDR, inside", sm.PodDetector{CIDRs: prefixes("10.64.0.0/16")}, from("10.64.0.1"),
			sm.FromPods},
		{"CIDR, the node's own address in it", sm.PodDetector{CIDRs: prefixes("192.0.2.0/24")},
			from("192.0.2.1", sentHere), sm.FromPods},
		{"CIDR, not inside", sm.PodDetector{CIDRs: prefixes("10.64.0.0/16")}, from("10.65.0.1"),
			sm.FromOutside},
		{"bridge", sm.PodDetector{Bridge: "cbr0"}, from("10.64.0.1", through("cbr0")), sm.FromPods},
		{"another interface", sm.PodDetector{Bridge: "cbr0"}, from("10.64.0.1", through("cbr01")),
			sm.FromOutside},
		{"prefix", sm.PodDetector{InterfacePrefix: "veth"}, from("10.64.0.1", through("veth7")),
			sm.FromPods},
		{"no interface", sm.PodDetector{InterfacePrefix: "veth"}, from("192.0.2.1", sentHere),
			sm.FromHost},
		{"loopback is the host", sm.PodDetector{}, from("127.0.0.1", sentHere), sm.FromHost},
		{"no detector", sm.PodDetector{}, from("10.64.0.1", through("veth7")), sm.FromOutside},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			table := tableOf(t, sm.Node{Name: "here", LocalPods: tt.pods}, webService())
			require.Equal(t, tt.want, table.Decide(packet(tt.from, to("10.96.0.1:80")),
				nodeAddrs).Origin)
		})
	}
}

// The shares of a decision are the shares under the scheduler.
func TestCandidatesHaveTheSharesOfTheirPool(t *testing.T) {
	t.Parallel()
	for _, by := range []sm.Scheduler{sm.Random, sm.RoundRobin, sm.WeightedRR, sm.LeastConn,
		sm.WeightedLC} {
		table := tableOf(t, thisNode, webService(func(s *sm.Service) { s.Scheduler = by }),
			weighted...)
		d := table.Decide(packet(fromPod, to("10.96.0.1:80")), nodeAddrs)
		id, _ := d.Pool()
		require.Len(t, d.Candidates, 2)
		shares := table.Pool(id).Shares()
		require.InDelta(t, shares[1]/shares[0],
			float64(d.Candidates[1].Weight)/float64(d.Candidates[0].Weight), 1e-9, by)
	}
}

func TestATableThatLacksAPoolRejects(t *testing.T) {
	t.Parallel()
	found := ok(sm.NewTable(sm.Contents{Frontends: []*sm.Frontend{{
		Key: sm.FrontendKey{Addr: ip("10.96.0.1"), Protocol: sm.TCP, Port: 80}, Service: webHTTP,
		Internal: sm.BalanceLocal, External: sm.BalanceLocal,
	}}}))(t)
	require.Equal(t,
		"rejected: cluster-ip of default/web:http, from outside, no endpoint can be used: the "+
			"table lacks the pool default/web:http/tcp IPv4 local",
		found.Decide(packet(from("198.51.100.7"), to("10.96.0.1:80")), nil).String())
}
