package servicemodel_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	sm "github.com/kernlb/kernlb/servicemodel"
)

//revive:disable:line-length-limit a step cannot be wrapped

// traces are packets to the web service, and the expected explanations.
var traces = []struct {
	name      string
	service   func(*sm.Service)
	endpoints []sm.Endpoint
	from, to  func(*sm.Packet)
	want      string
}{
	{"a pod to the cluster IP, with affinity", func(s *sm.Service) { s.SessionAffinity.ClientIP = true },
		[]sm.Endpoint{localEndpoint, remoteEndpoint, endpoint("10.64.0.3", notReady),
			endpoint("10.64.0.4", terminating), endpoint("10.64.0.5", httpNamed("htpp", sm.TCP)),
			endpoint("fd64::1"), endpoint("10.64.0.2", notReady)},
		from("10.64.0.1"), to("10.96.0.1:80"), `
10.64.0.1 -> 10.96.0.1:80/tcp
  source       10.64.0.1 is a pod, by the range 10.64.0.0/16
  destination  10.96.0.1:80/tcp is a cluster IP of default/web:http
  policy       internalTrafficPolicy is Cluster: endpoints anywhere
  endpoints    2 of 7 endpoints are used
  excluded     10.64.0.3:8080 on elsewhere is not ready
  excluded     10.64.0.4:8080 on elsewhere is terminating, others are ready
  excluded     10.64.0.5 on elsewhere has no such port
  excluded     fd64::1 on elsewhere is of the other family
  excluded     10.64.0.2:8080 on elsewhere is listed again
  affinity     the client stays with the endpoint that it is given, until it has made no connection for 3h0m0s
  masquerade   the endpoint sees 10.64.0.1, but for itself: then it sees an address of this node
  outcome      balanced over 10.64.0.1:8080 (1 of 3), 10.64.0.2:8080 (2 of 3)
`},
	{"a client of a prefix, with affinity for the whole service", func(s *sm.Service) {
		s.SessionAffinity = sm.SessionAffinity{ClientIP: true, Bits4: 24, WholeService: true}
	}, []sm.Endpoint{localEndpoint}, from("10.64.0.1"), to("10.96.0.1:80"), `
10.64.0.1 -> 10.96.0.1:80/tcp
  source       10.64.0.1 is a pod, by the range 10.64.0.0/16
  destination  10.96.0.1:80/tcp is a cluster IP of default/web:http
  policy       internalTrafficPolicy is Cluster: endpoints anywhere
  endpoints    1 of 1 endpoint is used
  affinity     the clients in 10.64.0.0/24 stay with the endpoint that one is given at all ports of the service, until they have made no connection for 3h0m0s
  masquerade   the endpoint sees 10.64.0.1, but for itself: then it sees an address of this node
  outcome      balanced over 10.64.0.1:8080 (1 of 1)
`},
	{"outside to a node port, Local", externalLocal, []sm.Endpoint{localEndpoint, remoteEndpoint}, fromOutside,
		to("192.0.2.1:30080"), `
198.51.100.7 -> 192.0.2.1:30080/tcp
  source       198.51.100.7 is outside: no pod, and no address of this node
  destination  192.0.2.1:30080/tcp is a node port of default/web:http
  policy       externalTrafficPolicy is Local: endpoints on this node only
  endpoints    1 of 2 endpoints are used
  excluded     10.64.0.2:8080 on elsewhere is not on this node
  masquerade   the endpoint sees 198.51.100.7
  outcome      balanced over 10.64.0.1:8080 (1 of 1)
`},
	{"the node to a node port, Local", externalLocal, []sm.Endpoint{remoteEndpoint}, fromHost, to("192.0.2.1:30080"), `
192.0.2.1 -> 192.0.2.1:30080/tcp
  source       192.0.2.1 is an address of this node
  destination  192.0.2.1:30080/tcp is a node port of default/web:http
  policy       externalTrafficPolicy is Local, which is for clients outside: this one gets endpoints anywhere
  endpoints    1 of 1 endpoint is used
  masquerade   the endpoint sees an address of this node: what comes from host to a node port is masqueraded
  outcome      balanced over 10.64.0.2:8080 (1 of 1)
`},
	{"dropped, none here", externalLocal, []sm.Endpoint{remoteEndpoint}, fromOutside, to("192.0.2.1:30080"), `
198.51.100.7 -> 192.0.2.1:30080/tcp
  source       198.51.100.7 is outside: no pod, and no address of this node
  destination  192.0.2.1:30080/tcp is a node port of default/web:http
  policy       externalTrafficPolicy is Local: endpoints on this node only
  endpoints    0 of 1 endpoint is used
  excluded     10.64.0.2:8080 on elsewhere is not on this node
  outcome      dropped: externalTrafficPolicy is Local and no ready endpoint is on node here; 1 endpoint is elsewhere
`},
	{"hints", anyService, []sm.Endpoint{endpoint("10.64.0.1", zones("z1")), endpoint("10.64.0.2", zones("z2"))},
		fromOutside, to("10.96.0.1:80"), `
198.51.100.7 -> 10.96.0.1:80/tcp
  source       198.51.100.7 is outside: no pod, and no address of this node
  destination  10.96.0.1:80/tcp is a cluster IP of default/web:http
  policy       internalTrafficPolicy is Cluster: endpoints anywhere
  endpoints    1 of 2 endpoints are used
  excluded     10.64.0.2:8080 on elsewhere is hinted for other zones
  masquerade   the endpoint sees an address of this node: what comes from outside to a cluster IP is masqueraded
  outcome      balanced over 10.64.0.1:8080 (1 of 1)
`},
	{"a source that may not connect", func(s *sm.Service) { everywhere(s); sourcesRestricted(s) },
		[]sm.Endpoint{localEndpoint}, from("192.0.2.77"), to("203.0.113.1:80"), `
192.0.2.77 -> 203.0.113.1:80/tcp
  source       192.0.2.77 is outside: no pod, and no address of this node
  destination  203.0.113.1:80/tcp is a load balancer IP of default/web:http
  sources      only 198.51.100.0/24 may connect
  outcome      dropped: 192.0.2.77 may not connect, only 198.51.100.0/24
`},
	{"another port", everywhere, []sm.Endpoint{localEndpoint}, fromPod, to("10.96.0.1:8080"), `
10.64.0.9 -> 10.96.0.1:8080/tcp
  source       10.64.0.9 is a pod, by the range 10.64.0.0/16
  destination  10.96.0.1 is default/web, which has port 80/tcp, not 8080/tcp
  outcome      rejected: 10.96.0.1 is default/web, which has port 80/tcp, not 8080/tcp
`},
	{"another protocol of an external IP", everywhere, []sm.Endpoint{localEndpoint}, fromOutside,
		func(p *sm.Packet) { to("198.51.100.1:80")(p); over(sm.UDP)(p) }, `
198.51.100.7 -> 198.51.100.1:80/udp
  source       198.51.100.7 is outside: no pod, and no address of this node
  destination  198.51.100.1 is default/web, which has port 80/tcp, not 80/udp
  outcome      untouched: no service answers there
`},
	{"a node port elsewhere", everywhere, []sm.Endpoint{localEndpoint}, fromOutside, to("192.0.2.9:30080"), `
198.51.100.7 -> 192.0.2.9:30080/tcp
  source       198.51.100.7 is outside: no pod, and no address of this node
  destination  30080/tcp is a node port of default/web:http, but 192.0.2.9 is no address of this node
  outcome      untouched: no service answers there
`},
	{"a node port at loopback", everywhere, []sm.Endpoint{localEndpoint}, from("127.0.0.1", sentHere), to("127.0.0.1:30080"), `
127.0.0.1 -> 127.0.0.1:30080/tcp
  source       127.0.0.1 is an address of this node
  destination  30080/tcp is a node port of default/web:http, but none at loopback addresses
  outcome      untouched: no service answers there
`},
	{"an endpoint itself", everywhere, []sm.Endpoint{localEndpoint}, fromPod, to("10.64.0.1:8080"), `
10.64.0.9 -> 10.64.0.1:8080/tcp
  source       10.64.0.9 is a pod, by the range 10.64.0.0/16
  destination  10.64.0.1:8080/tcp is an endpoint of default/web:http, and reached without the service
  outcome      untouched: no service answers there
`},
	{"a load balancer in front", func(s *sm.Service) {
		s.LoadBalancerIPs = []sm.LoadBalancerIP{{Addr: ip("203.0.113.9"), Proxy: true}}
	}, nil, fromPod, to("203.0.113.9:80"), `
10.64.0.9 -> 203.0.113.9:80/tcp
  source       10.64.0.9 is a pod, by the range 10.64.0.0/16
  destination  203.0.113.9 is a load balancer IP of default/web, which the load balancer replaces (ipMode Proxy)
  outcome      untouched: no service answers there
`},
	{"an address without a family", func(s *sm.Service) { s.ExternalIPs = addrs("2001:db8::9") }, nil, from("fd64::9"),
		to("[2001:db8::9]:80"), `
fd64::9 -> [2001:db8::9]:80/tcp
  source       fd64::9 is a pod, by the range fd64::/16
  destination  2001:db8::9 is an address of default/web, which has no cluster IP of family IPv6
  outcome      untouched: no service answers there
`},
	{"nothing", everywhere, nil, fromPod, to("192.0.2.77:80"), `
10.64.0.9 -> 192.0.2.77:80/tcp
  source       10.64.0.9 is a pod, by the range 10.64.0.0/16
  destination  no service has 192.0.2.77
  outcome      untouched: no service answers there
`},
}

//revive:enable:line-length-limit

func TestTraces(t *testing.T) {
	t.Parallel()
	for _, tt := range traces {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			table := tableOf(t, thisNode, webService(tt.service), tt.endpoints...)
			trace := table.Trace(packet(tt.from, tt.to), nodeAddrs)
			require.Equal(t, tt.want, "\n"+trace.String())
		})
	}
}

func TestTraceOfAConflict(t *testing.T) {
	t.Parallel()
	thief := webService(named("thief"), func(s *sm.Service) {
		s.ClusterIPs, s.ExternalIPs = addrs("10.96.0.2"), addrs("10.96.0.1")
	})
	s := stateOf(thisNode, webService(), localEndpoint).WithService(thief)
	trace := mustResolve(t, nil, s).Trace(packet(fromPod, to("10.96.0.1:80")), nodeAddrs)
	require.Contains(t, trace.Steps, sm.Step{Kind: "conflict",
		Text: "default/thief:http claims it too, as an external IP, and does not get it"})
}

// A trace agrees with Decide, for the resolved table and for the one that a kernel would return.
// Its steps are in order and end with the outcome. Every unused endpoint has a step.
func TestTracesAgreeWithDecisions(t *testing.T) {
	t.Parallel()
	r := newSource(t)
	for range 300 {
		s := r.state()
		table := mustResolve(t, nil, s)
		here := sm.Locality(some(r, 4, func() netip.Addr { return r.addr(r.family(), 192, 6) }))
		read := ok(sm.NewTable(sm.Contents{Rules: table.Rules(),
			Frontends: slices.Collect(table.Frontends()), Pools: slices.Collect(table.Pools()),
			ClusterIPs: slices.Collect(table.ClusterIPs()),
			Hairpins:   slices.Collect(table.Hairpins())}))(t)
		for range 60 {
			p := r.packet(s, here)
			trace := table.Trace(p, here)
			require.Equal(t, table.Decide(p, here), trace.Decision)
			requireSteps(t, s, trace)
			other := read.Trace(p, here)
			require.Equal(t, trace.Decision.Outcome, other.Decision.Outcome)
			require.Equal(t, trace.Decision.Candidates, other.Decision.Candidates)
		}
	}
}

// stepKinds are the kinds of steps in their order.
var stepKinds = []string{"source", "destination", "conflict", "sources", "policy", "nearness",
	"endpoints", "excluded", "growing", "affinity", "masquerade", "outcome"}

func requireSteps(t *testing.T, s sm.State, trace sm.Trace) {
	t.Helper()
	excluded, d := 0, trace.Decision
	for i, step := range trace.Steps {
		require.NotEmpty(t, step.Text)
		require.Contains(t, stepKinds, step.Kind)
		require.True(t, i == 0 || slices.Index(stepKinds, trace.Steps[i-1].Kind) <=
			slices.Index(stepKinds, step.Kind), "%v", trace)
		if step.Kind == "excluded" {
			excluded++
		}
	}
	last := trace.Steps[len(trace.Steps)-1]
	require.Equal(t, "outcome", last.Kind)
	require.True(t, strings.HasPrefix(last.Text, string(d.Outcome)))
	require.Contains(t, last.Text, d.Cause.String())
	for _, c := range d.Candidates {
		require.Contains(t, last.Text, c.Endpoint.String())
	}
	if d.Frontend != nil && d.Cause.Kind != "source" {
		require.Equal(t, len(s.Endpoints(d.Frontend.Service.Name)), excluded+len(d.Candidates),
			"%v", trace)
	}
}
