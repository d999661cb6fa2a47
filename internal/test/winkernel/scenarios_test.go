package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kernlb/kernlb/examples/kernelspace"
	"github.com/kernlb/kernlb/examples/kernelspace/hnsfake"
)

// scenarios returns the cases of kube-proxy's own tests, pkg/proxy/winkernel/proxier_test.go of
// Kubernetes 1.36.3, with the same objects in our types. Case names the test and its line.
func scenarios() []scenario {
	older := hnsfake.AllFeatures
	older.ModifyLoadBalancer = false
	dsr := config{EnableDSR: true}
	cluster := service1()
	nodePort := service1(ofType(corev1.ServiceTypeNodePort))
	external := service1(ofType(corev1.ServiceTypeNodePort), func(s *corev1.Service) {
		s.Spec.ExternalIPs = []string{"50.60.70.81"}
		byClient(s)
	})
	local := service1(ofType(corev1.ServiceTypeLoadBalancer), etpLocal, ingress("11.21.31.41"))
	itp := service1(func(s *corev1.Service) {
		l := corev1.ServiceInternalTrafficPolicyLocal
		s.Spec.InternalTrafficPolicy = &l
	})
	second := service1(func(s *corev1.Service) {
		s.Name, s.Spec.ClusterIP, s.Spec.ClusterIPs = "svc2", "10.20.30.42", []string{"10.20.30.42"}
	})
	other := service1(func(s *corev1.Service) { s.Spec.Ports[0].Port = 8080 })
	ab, abcd := "192.168.4.4@ 192.168.2.3", "192.168.4.4@ 192.168.2.3 192.168.2.4 192.168.2.5"
	l := []scenario{
		on("Overlay", "TestCreateServiceVip:161", dsr, step("", external)),
		on("Overlay", "TestCreateServiceVip:161, with an endpoint", dsr,
			step("192.168.2.3", external)),
		on("Overlay", "TestCreateRemoteEndpointOverlay:214", config{},
			step("192.168.2.3", nodePort)),
		on("L2Bridge", "TestCreateRemoteEndpointL2Bridge:278", config{},
			step("192.168.2.3", nodePort)),
		on("Overlay", "TestDsrEndpointsAreCreatedCorrectly:340", dsr, step("192.168.2.3", cluster)),
		on("L2Bridge", "TestClusterIPSvcWithITPLocal:441", dsr, step(ab, itp), step(ab, cluster),
			step("192.168.2.3", itp)),
		on("L2Bridge", "TestSharedRemoteEndpointDelete:622", dsr,
			step("192.168.2.3", cluster, second), step("192.168.2.3", cluster), step("")),
		on("L2Bridge", "TestSharedRemoteEndpointUpdate:763", dsr,
			step("192.168.2.3", cluster, second), step("192.168.2.3", other, second)),
		on("Overlay", "TestCreateLoadBalancerWithoutDSR:937", config{},
			step("192.168.2.3", cluster)),
		on("Overlay", "TestCreateLoadBalancerWithDSR:1006", dsr, step("192.168.2.3", cluster)),
		on("Overlay", "TestUpdateLoadBalancerWhenSupported:1075", dsr, step("192.168.2.3", cluster),
			step("192.168.2.3 192.168.2.4", cluster)),
		with(on("Overlay", "TestUpdateLoadBalancerWhenUnsupported:1216", dsr,
			step("192.168.2.3", cluster), step("192.168.2.3 192.168.2.4", cluster)), older),
		on("Overlay", "TestCreateDsrLoadBalancer:1358", dsr, step("192.168.4.4@", local)),
		on("Overlay", "TestCreateDsrLoadBalancer:1358, health checks",
			config{EnableDSR: true, ForwardVIP: true, RootEndpoint: "EP-GW"},
			step("192.168.4.4@", local)),
		on("Overlay", "TestClusterIPLBInCreateDsrLoadBalancer:1436", dsr,
			step("192.168.2.3", local)),
		on("L2Bridge", "TestEndpointSliceWithInternalPortDifferentFromServicePort:1516", dsr,
			step("192.168.2.3:9090", cluster)),
		on("Overlay", "TestEndpointSlice:1584", dsr, step("192.168.2.3", cluster)),
		on("L2Bridge", "TestNoopEndpointSlice:1655", dsr, step("")),
		on("Overlay", "TestFindRemoteSubnetProviderAddress:1664", config{},
			step("10.0.0.3", cluster), step("8.8.8.8", cluster), step("192.168.2.3", cluster)),
		on("Overlay", "TestWinDSRWithOverlayEnabled:1690", dsr,
			step("192.168.4.4@ 192.168.2.3", local)),
		on("L2Bridge", "TestETPLocalIngressIPServiceWithPreferDualStack:1914", dsr,
			step("192.168.5.3@ 192:168::5:3@ 192.168.2.3 192:168:2::3", dual(etpLocal))),
		on("L2Bridge", "TestETPClusterIngressIPServiceWithPreferDualStack:1922", dsr,
			step("192.168.5.3@ 192:168::5:3@ 192.168.2.3 192:168:2::3", dual())),
		on("L2Bridge", "TestRemoteEndpointDeleteDoesNotAffectLocalEndpointWithSameIP:2154", dsr,
			step("192.168.4.4 192.168.2.3", cluster), step("192.168.4.4@ 192.168.2.3", cluster)),
		on("L2Bridge", "TestEndpointTransitionWithLBFailures:2423", config{},
			step(abcd, nodePort, second), step(ab, nodePort, second)),
		with(on("L2Bridge", "TestEndpointTransitionWithLBFailures:2423, without ModifyLoadBalancer",
			config{}, step(abcd, nodePort, second), step(ab, nodePort, second)), older),
		on("L2Bridge", "terminating endpoints", dsr,
			step("192.168.4.4@", local), step("192.168.4.4@-", local), step("", local)),
		on("Overlay", "TestDsrNotAppliedToClusterTrafficPolicy:394", dsr,
			step(ab, service1(ofType(corev1.ServiceTypeLoadBalancer), ingress("11.21.31.41")))),
		on("L2Bridge", "TestRemoteAndLocalEndpointsSameIP:2013", config{},
			both(step("192.168.4.4@", cluster), step("192.168.4.4", second))),
	}
	l = append(l, further(dsr, cluster, local)...)
	return named(append(l, append(withAffinity(l), failing(dsr, cluster, nodePort, local)...)...))
}

func named(l []scenario) []scenario {
	for i := range l {
		l[i].Name = fmt.Sprintf("%02d", i)
	}
	return l
}

// further returns cases that no test of winkernel has.
func further(dsr config, cluster, local corev1.Service) []scenario {
	ab := "192.168.4.4@ 192.168.2.3"
	overUDP := func(s *corev1.Service) { s.Spec.Ports[0].Protocol = corev1.ProtocolUDP }
	udp, udpNodePort := service1(overUDP), service1(ofType(corev1.ServiceTypeNodePort), overUDP)
	sticky := service1(byClient)
	direct := service1(ofType(corev1.ServiceTypeLoadBalancer), etpLocal, ingress("11.21.31.41"),
		func(s *corev1.Service) {
			s.Annotations = map[string]string{"preserve-destination": "true",
				"kernlb.io/forwarding": "direct"}
		})
	return []scenario{
		on("Overlay", "UDP", dsr, step(ab, udp), step("192.168.2.3", udp), step(ab, cluster)),
		on("L2Bridge", "UDP, node port", config{}, step(ab, udpNodePort), step("", udpNodePort)),
		on("L2Bridge", "affinity comes and goes", dsr, step(ab, cluster), step(ab, sticky),
			step("192.168.2.3", sticky), step("192.168.2.3", cluster)),
		on("Overlay", "affinity comes and goes", dsr, step(ab, cluster), step(ab, sticky),
			step("192.168.2.3", sticky), step("192.168.2.3", cluster)),
		on("L2Bridge", "preserve-destination", dsr, step("192.168.4.4@", direct),
			step("192.168.4.4@ 192.168.5.3@", direct), step("192.168.4.4@", local)),
	}
}

// failing returns cases in which calls to HNS fail for one step. The next step has the same
// objects.
func failing(dsr config, cluster, nodePort, local corev1.Service) (l []scenario) {
	one, two := step("192.168.2.3", cluster), step("192.168.2.3 192.168.2.4", cluster)
	ports, more := step("192.168.2.3", nodePort), step("192.168.2.3 192.168.2.4", nodePort)
	for _, network := range []string{"L2Bridge", "Overlay"} {
		for _, c := range []struct {
			call  string
			steps []objects // the last fails
		}{
			{"create load balancer", []objects{one}},
			{"create load balancer *", []objects{ports}},
			{"create load balancer 11", []objects{step("192.168.4.4@", local)}},
			{"create endpoint 192.168.2.3", []objects{one}},
			{"create endpoint 192.168.2.4", []objects{ports, more}},
			{"modify load balancer", []objects{one, two}},
			{"modify load balancer *", []objects{ports, more}},
			{"delete load balancer", []objects{one, step("")}},
			{"delete endpoint", []objects{two, one}},
			{"endpoints", []objects{one, two}},
			{"load balancers", []objects{one, two}},
			{"network", []objects{one, two}},
		} {
			last := c.steps[len(c.steps)-1]
			fails := last
			fails.Fails = c.call
			l = append(l, on(network, "fails: "+c.call, dsr,
				append(c.steps[:len(c.steps)-1:len(c.steps)-1], fails, last)...))
		}
	}

	return l
}

// withAffinity returns scenarios with session affinity in all services. It leaves out scenarios
// that already have affinity.
func withAffinity(l []scenario) (sticky []scenario) {
next:
	for _, s := range l {
		s.Case += ", with affinity"
		s.Steps = slices.Clone(s.Steps)
		services := 0
		for i := range s.Steps {
			l := slices.Clone(s.Steps[i].Services)
			for j := range l {
				if l[j].Spec.SessionAffinity != "" {
					continue next
				}
				byClient(&l[j])
				services++
			}

			s.Steps[i].Services = l
		}

		if services > 0 {
			sticky = append(sticky, s)
		}
	}
	return sticky
}

// byClient sets session affinity.
func byClient(s *corev1.Service) {
	timeout := corev1.DefaultClientIPServiceAffinitySeconds
	s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{
		ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &timeout}}
}

// on returns a scenario on a network of a type.
func on(network, of string, c config, steps ...objects) scenario {
	c.SourceVIP = "192.168.4.2"
	policy := func(pods, node string) kernelspace.Policy {
		return kernelspace.Policy{Type: "RemoteSubnetRoute", Settings: json.RawMessage(
			`{"DestinationPrefix":"` + pods + `","IsolationId":4096,"ProviderAddress":"` + node +
				`","DistributedRouterMacAddress":"00-11-22-33-44-55"}`)}
	}

	subnets := []kernelspace.Subnet{{IPAddressPrefix: "192.168.4.0/23"},
		{IPAddressPrefix: "192:168::/64"}}
	endpoint := func(name, addr string) kernelspace.Endpoint {
		return kernelspace.Endpoint{Name: name, MacAddress: hostMAC,
			IPConfigurations: []kernelspace.IPConfig{{IPAddress: addr}}}
	}

	return scenario{Case: of, Features: hnsfake.AllFeatures, Config: c, Steps: steps,
		Network: kernelspace.Network{ID: networkID, Name: "TestNetwork", Type: network,
			Ipams:    []kernelspace.Ipam{{Subnets: subnets}},
			Policies: []kernelspace.Policy{policy("192.168.2.0/24", "10.0.0.3")}},
		Endpoints: []kernelspace.Endpoint{endpoint("EP-GW", "192.168.4.1"),
			endpoint("EP-LOCAL-1", "192.168.4.4"), endpoint("EP-LOCAL-2", "192.168.5.3"),
			endpoint("EP-LOCAL-3", "192:168::5:3")}}
}

// both has the objects of two steps.
func both(a, b objects) objects {
	return objects{Services: append(a.Services, b.Services...),
		Slices: append(a.Slices, b.Slices...)}
}

func with(s scenario, f kernelspace.Features) scenario {
	s.Features = f
	return s
}

// service1 is ns1/svc1 with the port p80, changed by functions.
func service1(change ...func(*corev1.Service)) corev1.Service {
	cluster := corev1.ServiceInternalTrafficPolicyCluster
	s := corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns1", Name: "svc1"},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.20.30.41",
			ClusterIPs: []string{"10.20.30.41"}, IPFamilies: []corev1.IPFamily{"IPv4"},
			InternalTrafficPolicy: &cluster, Ports: []corev1.ServicePort{{Name: "p80", Port: 80,
				Protocol: corev1.ProtocolTCP}}}}
	for _, f := range change {
		f(&s)
	}
	return s
}

func ofType(t corev1.ServiceType) func(*corev1.Service) {
	return func(s *corev1.Service) {
		s.Spec.Type, s.Spec.Ports[0].NodePort = t, 3001
		s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
	}
}

func etpLocal(s *corev1.Service) {
	s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	s.Spec.HealthCheckNodePort = 30008
}

func ingress(ips ...string) func(*corev1.Service) {
	return func(s *corev1.Service) {
		for _, ip := range ips {
			s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress,
				corev1.LoadBalancerIngress{IP: ip})
		}
	}
}

// dual is a service of both families.
func dual(change ...func(*corev1.Service)) corev1.Service {
	s := service1(ofType(corev1.ServiceTypeLoadBalancer), ingress("10.20.30.51", "fd00:30::51"))
	s.Spec.ClusterIPs = append(s.Spec.ClusterIPs, "fd00:20::41")
	s.Spec.IPFamilies = append(s.Spec.IPFamilies, "IPv6")
	for _, f := range change {
		f(&s)
	}
	return s
}

// step returns services, each with slices of the endpoints. An endpoint is an address, followed by
// an optional port, "@" for this node, and "-" if it terminates and still serves.
func step(endpoints string, services ...corev1.Service) (o objects) {
	o.Services = services
	for i := range services {
		for _, family := range []discovery.AddressType{"IPv4", "IPv6"} {
			name, port, protocol := "p80", int32(80), services[i].Spec.Ports[0].Protocol
			s := discovery.EndpointSlice{AddressType: family, ObjectMeta: metav1.ObjectMeta{
				Namespace: "ns1", Name: services[i].Name + "-" + strings.ToLower(string(family)),
				Labels: map[string]string{discovery.LabelServiceName: services[i].Name}}}
			for _, text := range strings.Fields(endpoints) {
				if v6 := strings.Count(text, ":") > 1; v6 != (family == "IPv6") {
					continue
				}
				text, gone := strings.CutSuffix(text, "-")
				text, here := strings.CutSuffix(text, "@")
				if a, p, found := strings.Cut(text, ":"); found && family == "IPv4" {
					text = a
					_, _ = fmt.Sscan(p, &port)
				}

				yes, ready := true, !gone
				e := discovery.Endpoint{Addresses: []string{text}, Conditions: discovery.
					EndpointConditions{Ready: &ready, Serving: &yes, Terminating: &gone}}
				if node := nodeName; here {
					e.NodeName = &node
				}
				s.Endpoints = append(s.Endpoints, e)
			}

			s.Ports = []discovery.EndpointPort{{Name: &name, Port: &port, Protocol: &protocol}}
			if len(s.Endpoints) > 0 {
				o.Slices = append(o.Slices, s)
			}
		}
	}

	return o
}
