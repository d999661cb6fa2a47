package servicemodel_test

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	sm "github.com/kernlb/kernlb/servicemodel"
)

// maxPortName is the longest text of a port's name.
const maxPortName = 191

func ports(list ...sm.ServicePort) func(*sm.Service) {
	return func(s *sm.Service) { s.Ports = list }
}

var longName = strings.Repeat("a", 254)

// invalidServices are services and their problems. Problems of default/web begin with its fields.
var invalidServices = []struct {
	name string
	edit func(*sm.Service)
	want []string
}{
	{"nothing wrong", func(*sm.Service) {}, nil},
	{"a name at its longest", func(s *sm.Service) {
		s.Name.Name = longName[:maxPortName-len("default/:http")]
	}, nil},
	{"a name too long for its port", func(s *sm.Service) {
		s.Name.Name = longName[:maxPortName-len("default/:http")+1]
	}, []string{"service default/" + longName[:maxPortName-len("default/:http")+1] +
		`: ports[0].name: "http": with the service's namespace and name it has 192 bytes, and ` +
		"may have 191"}},
	{"no namespace", func(s *sm.Service) {
		s.Name.Namespace = ""
	}, []string{"service /web: name.namespace: required"}},
	{"no name", func(s *sm.Service) {
		s.Name.Name = ""
	}, []string{"service default/: name.name: required"}},
	{"a name too long",
		func(s *sm.Service) {
			s.Name.Name = longName
		}, []string{"service default/" + longName + `: name.name: "` + longName +
			`": longer than 253 bytes`, "service default/" + longName + `: ports[0].name: ` +
			`"http": with the service's namespace and name it has 267 bytes, and may have 191`}},
	{"characters that names must not have",
		func(s *sm.Service) {
			s.Name = sm.Name{Namespace: "a b", Name: "c/d"}
			s.Ports[0].Name = "e\"f"
		}, []string{
			`service a b/c/d: name.namespace: "a b": only printable ASCII without spaces, ` +
				`"/", ":" and quotes is allowed`,
			`service a b/c/d: name.name: "c/d": only printable ASCII without spaces, "/", ":" ` +
				`and quotes is allowed`,
			`service a b/c/d: ports[0].name: "e\"f": only printable ASCII without spaces, ` +
				`"/", ":" and quotes is allowed`,
		}},
	{"a port of everything zero", ports(sm.ServicePort{}), []string{
		"ports[0].protocol: 0: must be TCP, UDP or SCTP",
		"ports[0].port: 0: must not be zero",
	}},
	{"no ports at all", ports(), nil},
	{"one nameless port", ports(sm.ServicePort{Protocol: sm.UDP, Port: 53}), nil},
	{"two nameless ports", ports(sm.ServicePort{Protocol: sm.UDP, Port: 53},
		sm.ServicePort{Protocol: sm.TCP, Port: 53}), []string{
		"ports[0].name: required if there is more than one port",
		"ports[1].name: required if there is more than one port",
	}},
	{"repeated names, ports and node ports", ports(
		sm.ServicePort{Name: "a", Protocol: sm.TCP, Port: 1, NodePort: 30001},
		sm.ServicePort{Name: "a", Protocol: sm.UDP, Port: 1, NodePort: 30001},
		sm.ServicePort{Name: "b", Protocol: sm.TCP, Port: 1, NodePort: 30001},
		sm.ServicePort{Name: "c", Protocol: sm.TCP, Port: 2}), []string{
		`ports[1].name: "a": is also the name of ports[0]`,
		"ports[2].port: 1: is also the port of ports[0], with the same protocol",
		"ports[2].nodePort: 30001: is also the node port of ports[0], with the same protocol",
	}},
	{"two cluster IPs of a family", func(s *sm.Service) {
		s.ClusterIPs = addrs("10.96.0.1", "fd96::1", "10.96.0.2")
	},
		[]string{
			"clusterIPs[2]: 10.96.0.2: is of the same family as " +
				"clusterIPs[0]; at most one is allowed"}},
	{"cluster IPs of the wrong kind", func(s *sm.Service) {
		s.ClusterIPs = append(addrs("127.0.0.1", "224.0.0.1", "0.0.0.0", "255.255.255.255",
			"::ffff:10.0.0.1", "fe80::1%eth0"), netip.Addr{})
	}, []string{
		"clusterIPs[0]: 127.0.0.1: must not be a loopback address",
		"clusterIPs[1]: 224.0.0.1: must not be a multicast address",
		"clusterIPs[2]: 0.0.0.0: must not be the unspecified address",
		"clusterIPs[3]: 255.255.255.255: must not be the broadcast address",
		"clusterIPs[4]: ::ffff:10.0.0.1: is an IPv4-mapped IPv6 address; give the IPv4 address",
		"clusterIPs[5]: fe80::1%eth0: must not have a zone",
		"clusterIPs[6]: required",
		"clusterIPs[1]: 224.0.0.1: is of the same family as clusterIPs[0]; at most one is allowed",
		"clusterIPs[2]: 0.0.0.0: is of the same family as clusterIPs[0]; at most one is allowed",
		"clusterIPs[3]: 255.255.255.255: is of the same family as " +
			"clusterIPs[0]; at most one is allowed",
		"clusterIPs[4]: ::ffff:10.0.0.1: is of the same family as " +
			"clusterIPs[0]; at most one is allowed",
	}},
	{"link-local cluster and load balancer IPs are fine", func(s *sm.Service) {
		s.ClusterIPs = addrs("169.254.20.10")
		s.LoadBalancerIPs = []sm.LoadBalancerIP{{Addr: ip("169.254.20.11")}}
	}, nil},
	{"external and load balancer IPs of the wrong kind", func(s *sm.Service) {
		s.ExternalIPs = addrs("169.254.0.1", "fe80::1", "::1")
		s.LoadBalancerIPs = []sm.LoadBalancerIP{{}}
	}, []string{
		"externalIPs[0]: 169.254.0.1: must not be a link-local address",
		"externalIPs[1]: fe80::1: must not be a link-local address",
		"externalIPs[2]: ::1: must not be a loopback address",
		"loadBalancerIPs[0].addr: required",
	}},
	{"source ranges", func(s *sm.Service) {
		s.LoadBalancerSourceRanges = append(prefixes("10.0.0.1/8", "::ffff:0:0/96"),
			netip.Prefix{})
	}, []string{
		"loadBalancerSourceRanges[1]: ::ffff:0.0.0.0/96: is a range of " +
			"IPv4-mapped IPv6 addresses; give the IPv4 range",
		"loadBalancerSourceRanges[2]: not a valid range",
	}},
	{"affinity too short", func(s *sm.Service) {
		s.SessionAffinity = sm.SessionAffinity{ClientIP: true, Timeout: time.Millisecond}
	},
		[]string{"sessionAffinity.timeout: 1ms: must be between 1s and 24h0m0s"}},
	{"affinity too long", func(s *sm.Service) {
		s.SessionAffinity = sm.SessionAffinity{ClientIP: true, Timeout: 24*time.Hour + 1}
	},
		[]string{
			"sessionAffinity.timeout: 24h0m0.000000001s: must be between 1s and 24h0m0s"}},
	{"affinity in fractions of a second", func(s *sm.Service) {
		s.SessionAffinity = sm.SessionAffinity{ClientIP: true, Timeout: 1500 * time.Millisecond}
	}, []string{"sessionAffinity.timeout: 1.5s: must be whole seconds"}},
	{"affinity by more bits than addresses have", func(s *sm.Service) {
		s.SessionAffinity = sm.SessionAffinity{ClientIP: true, Bits4: 33, Bits6: 129}
	}, []string{
		"sessionAffinity.bits4: 33: must be between 1 and 32, or 0 for the whole address",
		"sessionAffinity.bits6: 129: must be between 1 and 128, or 0 for the whole address"}},
	{"affinity that is off may say anything", func(s *sm.Service) {
		s.SessionAffinity.Timeout, s.SessionAffinity.Bits4 = -1, 99
	}, nil},
	{"unknown words", func(s *sm.Service) {
		s.InternalTrafficPolicy, s.ExternalTrafficPolicy, s.Scheduler, s.Forwarding = "near",
			"Cluster", "fast", "nat"
	}, []string{
		"internalTrafficPolicy: \"near\": must be Local, or empty for the default",
		"externalTrafficPolicy: \"Cluster\": must be Local, or empty for the default",
		`scheduler: "fast": unknown scheduler`,
		"forwarding: \"nat\": must be direct or tunnel, or empty for the default",
	}},
	{"an unknown preference", func(s *sm.Service) { s.Prefer = "near" }, []string{
		`prefer: "near": must be node or zone, or empty for the default`}},
	{"a preference that a scheduler ignores", func(s *sm.Service) {
		s.Prefer, s.Scheduler = "zone", sm.RoundRobin
	}, []string{`prefer: "zone": works by weights, and the scheduler rr ` +
		"does not follow weights"}},
	{"a slow start that is too short", slowly(time.Second), []string{
		"slowStart: 1s: must be between 5s and 24h0m0s"}},
	{"a slow start in fractions of a second", slowly(5500 * time.Millisecond), []string{
		"slowStart: 5.5s: must be whole seconds"}},
	{"a slow start that a scheduler ignores", func(s *sm.Service) {
		s.SlowStart, s.Scheduler = time.Minute, sm.LeastConn
	}, []string{"slowStart: 1m0s: works by weights, and the scheduler lc does not follow weights"}},
	{"an unknown policy for connections", func(s *sm.Service) { s.Connections.Mode = 4 },
		[]string{"connections.mode: 4: unknown policy for connections"}},
	{"draining in no time", func(s *sm.Service) {
		s.Connections = sm.ConnectionPolicy{Mode: sm.DrainConnections, Drain: time.Millisecond}
	},
		[]string{"connections.drain: 1ms: must be at least 1s"}},
	{"a time to drain that does not count", func(s *sm.Service) {
		s.Connections = sm.ConnectionPolicy{Mode: sm.CutConnections, Drain: -1}
	}, nil},
	{"a health check at its own node port", func(s *sm.Service) {
		externalLocal(s)
		s.HealthCheckNodePort = 30080
	},
		[]string{
			"healthCheckNodePort: 30080: is also the node port of ports[0]"}},
	{"which does not matter while it does not count", func(s *sm.Service) {
		s.HealthCheckNodePort = 30080
	}, nil},
}

func TestInvalidServices(t *testing.T) {
	t.Parallel()
	for _, tt := range invalidServices {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var want []string
			for _, w := range tt.want {
				if !strings.HasPrefix(w, "service ") {
					w = "service default/web: " + w
				}
				want = append(want, w)
			}
			svc := webService(tt.edit)
			requireProblems(t, want, sm.State{}.WithService(svc).Validate())
			requireProblems(t, want, svc.Validate())
		})
	}
}

func requireProblems(t *testing.T, want []string, err error) {
	t.Helper()
	if want == nil {
		require.NoError(t, err)
		return
	}
	require.EqualError(t, err, strings.Join(want, "\n"))
	for _, e := range err.(interface{ Unwrap() []error }).Unwrap() {
		require.IsType(t, &sm.FieldError{}, e)
	}
}

func TestInvalidEndpoints(t *testing.T) {
	t.Parallel()
	bad := []sm.EndpointPort{
		{Name: "a b"}, {Name: "x", Protocol: sm.TCP, Port: 1},
		{Name: "x", Protocol: sm.TCP, Port: 2}, {Name: "x", Protocol: sm.UDP, Port: 1},
	}
	s := sm.State{}.WithEndpoints(sm.Name{Namespace: "default"}, []sm.Endpoint{
		{Addr: ip("169.254.1.1"), Ports: bad},
		{Addr: ip("10.64.0.1"), Ports: bad},
		{Addr: ip("10.64.0.1"), Ports: bad[:1]},
		{},
	})
	requireProblems(t, []string{
		"endpoints default/: name.name: required",
		"endpoints default/: endpoints[0].addr: 169.254.1.1: must not be a link-local address",
		`endpoints default/: endpoints[0].ports[0].name: "a b": only printable ASCII without ` +
			`spaces, "/", ":" and quotes is allowed`,
		"endpoints default/: endpoints[0].ports[0].protocol: 0: must be TCP, UDP or SCTP",
		"endpoints default/: endpoints[0].ports[0].port: 0: must not be zero",
		`endpoints default/: endpoints[0].ports[2].name: "x": is also the name of ports[1], with ` +
			`the same protocol`,
		`endpoints default/: endpoints[2].ports[0].name: "a b": only printable ASCII without ` +
			`spaces, "/", ":" and quotes is allowed`,
		"endpoints default/: endpoints[2].ports[0].protocol: 0: must be TCP, UDP or SCTP",
		"endpoints default/: endpoints[2].ports[0].port: 0: must not be zero",
		"endpoints default/: endpoints[3].addr: required",
	}, s.Validate())
}

func TestInvalidNodes(t *testing.T) {
	t.Parallel()
	s := sm.State{}.WithNode(sm.Node{
		Addresses:         addrs("192.0.2.1", "127.0.0.1"),
		NodePortAddresses: sm.NodePortAddresses{Primary: true, CIDRs: []netip.Prefix{{}}},
		LocalPods: sm.PodDetector{CIDRs: prefixes("::ffff:10.0.0.0/104"), Bridge: "a/b",
			InterfacePrefix: strings.Repeat("x", 16)},
		ServiceCIDRs:   []netip.Prefix{{}},
		MasqueradeMark: 0x4001,
		OnlyFamily:     5,
		NoEndpoints:    "tcp-reset",
		Forbidden:      "accept",
	})
	requireProblems(t, []string{
		"node: onlyFamily: 5: must be IPv4 or IPv6",
		"node: addresses[1]: 127.0.0.1: must not be a loopback address",
		"node: nodePortAddresses.cidrs[0]: not a valid range",
		"node: nodePortAddresses.primary: true: excludes CIDRs; give one or the other",
		"node: localPods.cidrs[0]: ::ffff:10.0.0.0/104: is a range of IPv4-mapped IPv6 " +
			"addresses; give the IPv4 range",
		`node: localPods.bridge: "a/b": only printable ASCII without spaces, "/", ":" and quotes ` +
			`is allowed`,
		`node: localPods.interfacePrefix: "xxxxxxxxxxxxxxxx": longer than 15 bytes`,
		"node: localPods: give at most one of cidrs, bridge and interfacePrefix",
		"node: serviceCIDRs[0]: not a valid range",
		`node: noEndpoints: "tcp-reset": must be reject, reset or drop, or empty for the default`,
		`node: forbidden: "accept": must be reject, reset or drop, or empty for the default`,
		"node: masqueradeMark: 0x4001: must be exactly one bit",
	}, s.Validate())
	require.NoError(t, sm.State{}.WithNode(thisNode).Validate())
}

func TestProblemsOfAllObjectsAreReportedInOrder(t *testing.T) {
	t.Parallel()
	s := sm.State{}.WithNode(sm.Node{MasqueradeMark: 3})
	for _, name := range []string{"b", "a"} {
		svc := webService(named(name), func(s *sm.Service) { s.Scheduler = "x" })
		s = s.WithService(svc).WithEndpoints(svc.Name, []sm.Endpoint{{}})
	}
	requireProblems(t, []string{
		"node: masqueradeMark: 0x3: must be exactly one bit",
		`service default/a: scheduler: "x": unknown scheduler`,
		"endpoints default/a: endpoints[0].addr: required",
		`service default/b: scheduler: "x": unknown scheduler`,
		"endpoints default/b: endpoints[0].addr: required",
	}, s.Validate())
}

func TestProblemsNameTheServiceThatTheyAreAbout(t *testing.T) {
	t.Parallel()
	bad := webService(func(s *sm.Service) { s.Scheduler = "fastest" })
	other := sm.Name{Namespace: "default", Name: "other"}
	node := sm.Node{MasqueradeMark: 3}
	err := sm.State{}.WithNode(node).WithService(bad).WithEndpoints(other,
		[]sm.Endpoint{endpoint("127.0.0.1")}).Validate()
	var about []sm.Name
	for _, e := range err.(interface{ Unwrap() []error }).Unwrap() {
		var field *sm.FieldError
		require.ErrorAs(t, e, &field)
		about = append(about, field.Service)
	}
	require.Equal(t, []sm.Name{{}, other, web}, about)
}

func TestEndpointsAreValidatedAlone(t *testing.T) {
	t.Parallel()
	good := endpoint("10.244.1.1")
	require.NoError(t, good.Validate())
	bad := sm.Endpoint{Addr: ip("127.0.0.1"), Ports: []sm.EndpointPort{{Name: "a b",
		Protocol: sm.TCP}}}
	requireProblems(t, []string{
		"endpoint 127.0.0.1: addr: 127.0.0.1: must not be a loopback address",
		`endpoint 127.0.0.1: ports[0].name: "a b": only printable ASCII without spaces, "/", ":" ` +
			"and quotes is allowed",
		"endpoint 127.0.0.1: ports[0].port: 0: must not be zero",
	}, bad.Validate())
}
