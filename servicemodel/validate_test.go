package servicemodel_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/test/golden"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// maxPortName is the longest text of a port's name.
const maxPortName = 191

func ports(list ...sm.ServicePort) func(*sm.Service) {
	return func(s *sm.Service) { s.Ports = list }
}

var longName = strings.Repeat("a", 254)

// invalidServices are services. testdata/problems.txt has the problems of each.
var invalidServices = []struct {
	name string
	edit func(*sm.Service)
}{
	{"nothing wrong", func(*sm.Service) {}},
	{"a name at its longest", func(s *sm.Service) {
		s.Name.Name = longName[:maxPortName-len("default/:http")]
	}},
	{"a name too long for its port", func(s *sm.Service) {
		s.Name.Name = longName[:maxPortName-len("default/:http")+1]
	}},
	{"no namespace", func(s *sm.Service) { s.Name.Namespace = "" }},
	{"no name", func(s *sm.Service) { s.Name.Name = "" }},
	{"a name too long", func(s *sm.Service) { s.Name.Name = longName }},
	{"characters that names must not have", func(s *sm.Service) {
		s.Name = sm.Name{Namespace: "a b", Name: "c/d"}
		s.Ports[0].Name = "e\"f"
	}},
	{"a port of everything zero", ports(sm.ServicePort{})},
	{"no ports at all", ports()},
	{"one nameless port", ports(sm.ServicePort{Protocol: sm.UDP, Port: 53})},
	{"two nameless ports", ports(sm.ServicePort{Protocol: sm.UDP, Port: 53},
		sm.ServicePort{Protocol: sm.TCP, Port: 53})},
	{"repeated names, ports and node ports", ports(
		sm.ServicePort{Name: "a", Protocol: sm.TCP, Port: 1, NodePort: 30001},
		sm.ServicePort{Name: "a", Protocol: sm.UDP, Port: 1, NodePort: 30001},
		sm.ServicePort{Name: "b", Protocol: sm.TCP, Port: 1, NodePort: 30001},
		sm.ServicePort{Name: "c", Protocol: sm.TCP, Port: 2})},
	{"ranges that end too late", ports(
		sm.ServicePort{Name: "a", Protocol: sm.TCP, Port: 8000, EndPort: 8000},
		sm.ServicePort{Name: "b", Protocol: sm.TCP, Port: 8000, EndPort: 8099, NodePort: 65437,
			TargetPort: 65437},
		sm.ServicePort{Name: "c", Protocol: sm.TCP, Port: 8000, EndPort: 8098, NodePort: 65437,
			TargetPort: 65437},
		sm.ServicePort{Name: "d", Protocol: sm.TCP, Port: 80, TargetPort: 8080})},
	{"two cluster IPs of a family", func(s *sm.Service) {
		s.ClusterIPs = addrs("10.96.0.1", "fd96::1", "10.96.0.2")
	}},
	{"cluster IPs of the wrong kind", func(s *sm.Service) {
		s.ClusterIPs = append(addrs("127.0.0.1", "224.0.0.1", "0.0.0.0", "255.255.255.255",
			"::ffff:10.0.0.1", "fe80::1%eth0"), netip.Addr{})
	}},
	{"link-local cluster and load balancer IPs are fine", func(s *sm.Service) {
		s.ClusterIPs = addrs("169.254.20.10")
		s.LoadBalancerIPs = []sm.LoadBalancerIP{{Addr: ip("169.254.20.11")}}
	}},
	{"external and load balancer IPs of the wrong kind", func(s *sm.Service) {
		s.ExternalIPs = addrs("169.254.0.1", "fe80::1", "::1")
		s.LoadBalancerIPs = []sm.LoadBalancerIP{{}}
	}},
	{"source ranges", func(s *sm.Service) {
		s.LoadBalancerSourceRanges = append(prefixes("10.0.0.1/8", "::ffff:0:0/96"),
			netip.Prefix{})
	}},
	{"affinity too short", func(s *sm.Service) {
		s.SessionAffinity = sm.SessionAffinity{ClientIP: true, Timeout: time.Millisecond}
	}},
	{"affinity too long", func(s *sm.Service) {
		s.SessionAffinity = sm.SessionAffinity{ClientIP: true, Timeout: 24*time.Hour + 1}
	}},
	{"affinity in fractions of a second", func(s *sm.Service) {
		s.SessionAffinity = sm.SessionAffinity{ClientIP: true, Timeout: 1500 * time.Millisecond}
	}},
	{"affinity by more bits than addresses have", func(s *sm.Service) {
		s.SessionAffinity = sm.SessionAffinity{ClientIP: true, Bits4: 33, Bits6: 129}
	}},
	{"affinity that is off may say anything", func(s *sm.Service) {
		s.SessionAffinity.Timeout, s.SessionAffinity.Bits4 = -1, 99
	}},
	{"unknown words", func(s *sm.Service) {
		s.InternalTrafficPolicy, s.ExternalTrafficPolicy, s.Scheduler, s.Forwarding = "near",
			"Cluster", "fast", "nat"
	}},
	{"an unknown preference", func(s *sm.Service) { s.Prefer = "near" }},
	{"a preference that a scheduler ignores", func(s *sm.Service) {
		s.Prefer, s.Scheduler = "zone", sm.RoundRobin
	}},
	{"a slow start that is too short", slowly(time.Second)},
	{"a slow start in fractions of a second", slowly(5500 * time.Millisecond)},
	{"a slow start that a scheduler ignores", func(s *sm.Service) {
		s.SlowStart, s.Scheduler = time.Minute, sm.LeastConn
	}},
	{"an unknown policy for silent endpoints", func(s *sm.Service) { s.SilentEndpoints = 3 }},
	{"silent endpoints whose answers do not pass", func(s *sm.Service) {
		s.SilentEndpoints, s.Forwarding = sm.SilentEject, sm.ForwardTunnel
	}},
	{"an unknown policy for connections", func(s *sm.Service) { s.Connections.Mode = 4 }},
	{"draining in no time", func(s *sm.Service) {
		s.Connections = sm.ConnectionPolicy{Mode: sm.DrainConnections, Drain: time.Millisecond}
	}},
	{"a time to drain that does not count", func(s *sm.Service) {
		s.Connections = sm.ConnectionPolicy{Mode: sm.CutConnections, Drain: -1}
	}},
	{"a health check at its own node port", func(s *sm.Service) {
		externalLocal(s)
		s.HealthCheckNodePort = 30080
	}},
	{"which does not matter while it does not count", func(s *sm.Service) {
		s.HealthCheckNodePort = 30080
	}},
}

func TestProblems(t *testing.T) {
	t.Parallel()
	var all strings.Builder
	add := func(name string, err error) {
		fmt.Fprintf(&all, "# %s\n%s\n", name, problems(t, err))
	}
	for _, tt := range invalidServices {
		svc := webService(tt.edit)
		err := sm.State{}.WithService(svc).Validate()
		require.Equal(t, err, svc.Validate(), tt.name)
		add(tt.name, err)
	}

	add("endpoints", sm.State{}.WithEndpoints(sm.Name{Namespace: "default"}, []sm.Endpoint{
		{Addr: ip("169.254.1.1"), Ports: badPorts}, {Addr: ip("10.64.0.1"), Ports: badPorts},
		{Addr: ip("10.64.0.1"), Ports: badPorts[:1]}, {},
	}).Validate())
	good, bad := endpoint("10.244.1.1"), sm.Endpoint{Addr: ip("127.0.0.1"), Ports: badPorts[:1]}
	add("an endpoint alone", bad.Validate())
	add("an endpoint alone, without a fault", good.Validate())
	add("a node", sm.State{}.WithNode(badNode).Validate())
	add("a node without a fault", sm.State{}.WithNode(thisNode).Validate())
	s := sm.State{}.WithNode(sm.Node{MasqueradeMark: 3})
	for _, name := range []string{"b", "a"} {
		svc := webService(named(name), func(s *sm.Service) { s.Scheduler = "x" })
		s = s.WithService(svc).WithEndpoints(svc.Name, []sm.Endpoint{{}})
	}

	add("all objects, in order", s.Validate())
	golden.File(t, "testdata/problems.txt", all.String())
}

var badPorts = []sm.EndpointPort{{Name: "a b"}, {Name: "x", Protocol: sm.TCP, Port: 1},
	{Name: "x", Protocol: sm.TCP, Port: 2}, {Name: "x", Protocol: sm.UDP, Port: 1}}

var badNode = sm.Node{
	Addresses:         addrs("192.0.2.1", "127.0.0.1"),
	NodePortAddresses: sm.NodePortAddresses{Primary: true, CIDRs: []netip.Prefix{{}}},
	LocalPods: sm.PodDetector{CIDRs: prefixes("::ffff:10.0.0.0/104"), Bridge: "a/b",
		InterfacePrefix: strings.Repeat("x", 16)},
	ServiceCIDRs:   []netip.Prefix{{}},
	MasqueradeMark: 0x4001,
	OnlyFamily:     5,
	NoEndpoints:    "tcp-reset",
	Forbidden:      "accept",
}

// problems returns a line for each problem. All problems must concern fields.
func problems(t *testing.T, err error) string {
	t.Helper()
	if err == nil {
		return "fine\n"
	}
	for _, e := range err.(interface{ Unwrap() []error }).Unwrap() {
		require.IsType(t, &sm.FieldError{}, e)
	}
	return err.Error() + "\n"
}

func requireProblems(t *testing.T, want []string, err error) {
	t.Helper()
	require.Equal(t, strings.Join(want, "\n")+"\n", problems(t, err))
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
