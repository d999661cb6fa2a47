package kube_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/kernlb/kernlb/servicemodel"
	"github.com/kernlb/kernlb/servicemodel/kube"
)

func onPort(change func(*corev1.ServicePort)) func(*corev1.Service) {
	return func(s *corev1.Service) { change(&s.Spec.Ports[0]) }
}

func onTwoPorts(change func(first, second *corev1.ServicePort)) func(*corev1.Service) {
	return func(s *corev1.Service) {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "https",
			Protocol: corev1.ProtocolTCP, Port: 443})
		change(&s.Spec.Ports[0], &s.Spec.Ports[1])
	}
}

// invalidServices are Services that are refused, and the reasons.
var invalidServices = []struct {
	name  string
	given func(*corev1.Service)
	want  string // separated by " | "
}{
	{"no ports", func(s *corev1.Service) {
		s.Spec.Ports = nil
	}, "spec.ports: must name at least one port"},
	{"port 0", onPort(func(p *corev1.ServicePort) {
		p.Port = 0
	}), "spec.ports[0].port: 0: must be between 1 and 65535"},
	{"negative port", onPort(func(p *corev1.ServicePort) {
		p.Port = -1
	}), "spec.ports[0].port: -1: must be between 1 and 65535"},
	{"port beyond 16 bits", onPort(func(p *corev1.ServicePort) { p.Port = 65536 }),
		"spec.ports[0].port: 65536: must be between 1 and 65535"},
	{"node port beyond 16 bits", onPort(func(p *corev1.ServicePort) { p.NodePort = 70000 }),
		"spec.ports[0].nodePort: 70000: must be between 0 and 65535"},
	{"negative node port", onPort(func(p *corev1.ServicePort) { p.NodePort = -5 }),
		"spec.ports[0].nodePort: -5: must be between 0 and 65535"},
	{"unknown protocol", onPort(func(p *corev1.ServicePort) { p.Protocol = "ICMP" }),
		"spec.ports[0].protocol: ICMP: must be TCP, UDP or SCTP"},
	{"protocol in small letters", onPort(func(p *corev1.ServicePort) { p.Protocol = "tcp" }),
		"spec.ports[0].protocol: tcp: must be TCP, UDP or SCTP"},
	{"bad port name", onPort(func(p *corev1.ServicePort) {
		p.Name = "a b"
	}), "spec.ports[0].name: a b: a lowercase RFC 1123 label must"},
	{"duplicate port name", onTwoPorts(func(_, b *corev1.ServicePort) { b.Name = "http" }),
		"spec.ports[1].name: http: is the name of spec.ports[0] too"},
	{"missing port name", onTwoPorts(func(_, b *corev1.ServicePort) { b.Name = "" }),
		"spec.ports[1].name: must be given where there are several ports"},
	{"duplicate port", onTwoPorts(func(_, b *corev1.ServicePort) { b.Port = 80 }),
		"spec.ports[1].port: 80: is the port of spec.ports[0] too, with the same protocol"},
	{"duplicate node port", onTwoPorts(func(a, b *corev1.ServicePort) {
		a.NodePort, b.NodePort = 30000, 30000
	}),
		"spec.ports[1].nodePort: 30000: is the node port of spec.ports[0] too, with the same " +
			"protocol"},
	{"everything that is wrong is reported", onTwoPorts(func(a, b *corev1.ServicePort) {
		a.Port, b.Protocol, b.NodePort = 0, "X", -1
	}),
		"spec.ports[0].port: 0: must be | spec.ports[1].protocol: X: must be | " +
			"spec.ports[1].nodePort: -1: must be"},

	{"unknown type", func(s *corev1.Service) { s.Spec.Type = "Magic" },
		"spec.type: Magic: must be ClusterIP, NodePort, LoadBalancer or ExternalName"},
	{"bad cluster IP", func(s *corev1.Service) {
		s.Spec.ClusterIP, s.Spec.ClusterIPs[0] = "10.0.0", "10.0.0"
	},
		"spec.clusterIP: 10.0.0: not an IP address"},
	{"bad cluster IP without families", func(s *corev1.Service) {
		s.Spec.ClusterIP, s.Spec.ClusterIPs, s.Spec.IPFamilies = "10.0.0", nil, nil
	}, "spec.clusterIP: 10.0.0: not an IP address"},
	{"unspecified cluster IP", func(s *corev1.Service) {
		s.Spec.ClusterIP, s.Spec.ClusterIPs[0] = "0.0.0.0", "0.0.0.0"
	},
		"spec.clusterIP: 0.0.0.0: may not be unspecified"},
	{"cluster IPs that disagree", func(s *corev1.Service) { s.Spec.ClusterIP = "10.96.0.11" },
		"spec.clusterIPs[0]: 10.96.0.10: must be the same as spec.clusterIP"},
	{"cluster IP of the wrong family", func(s *corev1.Service) {
		s.Spec.ClusterIPs[1] = "10.96.0.11"
	},
		"spec.clusterIPs[1]: 10.96.0.11: must be an IPv6 address, as spec.ipFamilies[1] says"},
	{"a family twice", func(s *corev1.Service) { s.Spec.IPFamilies[1] = corev1.IPv4Protocol },
		"spec.ipFamilies[1]: IPv4: is spec.ipFamilies[0] too"},
	{"an unknown family", func(s *corev1.Service) {
		s.Spec.IPFamilies[1] = "IPX"
	}, "spec.ipFamilies[1]: IPX: must be IPv4 or IPv6"},
	{"more cluster IPs than families", func(s *corev1.Service) {
		s.Spec.IPFamilies = s.Spec.IPFamilies[:1]
	},
		"spec.clusterIPs[1]: fd00:96::10: has no family in spec.ipFamilies"},
	{"loopback external IP", func(s *corev1.Service) {
		s.Spec.ExternalIPs = []string{"127.0.0.1"}
	},
		"spec.externalIPs[0]: 127.0.0.1: may not be a loopback address"},
	{"bad source range", func(s *corev1.Service) {
		s.Spec.LoadBalancerSourceRanges = []string{"10.0.0.0/8", "10.0.0.1"}
	},
		"spec.loadBalancerSourceRanges[1]: 10.0.0.1: not an IP range such as 10.0.0.0/8"},

	{"unknown affinity", func(s *corev1.Service) { s.Spec.SessionAffinity = "Cookie" },
		"spec.sessionAffinity: Cookie: must be ClientIP or None"},
	{"affinity of no time", func(s *corev1.Service) {
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{
			ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: ptr(int32(0))}}
	}, "spec.sessionAffinityConfig.clientIP.timeoutSeconds: 0: must be between 1 and 86400"},
	{"affinity of more than a day", func(s *corev1.Service) {
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{
			ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: ptr(int32(86401))}}
	},
		"spec.sessionAffinityConfig.clientIP.timeoutSeconds: 86401: must be between 1 and " +
			"86400"},
	{"unknown external policy", func(s *corev1.Service) {
		s.Spec.ExternalTrafficPolicy = "Near"
	},
		"spec.externalTrafficPolicy: Near: must be Cluster or Local"},
	{"unknown internal policy", func(s *corev1.Service) {
		s.Spec.InternalTrafficPolicy = ptr(corev1.ServiceInternalTrafficPolicy("Near"))
	}, "spec.internalTrafficPolicy: Near: must be Cluster or Local"},
	{"health check node port beyond 16 bits", func(s *corev1.Service) {
		s.Spec.HealthCheckNodePort = 65536
	},
		"spec.healthCheckNodePort: 65536: must be between 0 and 65535"},
	{"health check node port that is a node port", func(s *corev1.Service) {
		s.Spec.Type, s.Spec.ExternalTrafficPolicy = corev1.ServiceTypeLoadBalancer,
			corev1.ServiceExternalTrafficPolicyLocal
		s.Spec.HealthCheckNodePort, s.Spec.Ports[0].NodePort = 30000, 30000
	}, "spec.healthCheckNodePort: 30000: is the node port of one of spec.ports too"},
	{"broadcast external IP", func(s *corev1.Service) {
		s.Spec.ExternalIPs = []string{"255.255.255.255"}
	},
		"spec.externalIPs[0]: 255.255.255.255: may not be the broadcast address"},
	{"multicast external IP", func(s *corev1.Service) {
		s.Spec.ExternalIPs = []string{"224.0.0.1"}
	},
		"spec.externalIPs[0]: 224.0.0.1: may not be a multicast address"},
	{"a headless service is judged too", func(s *corev1.Service) {
		s.Spec.ClusterIP, s.Spec.ClusterIPs = "None", []string{"None"}
		s.Spec.Ports[0].Port = 0
	}, "spec.ports[0].port: 0: must be between 1 and 65535"},
}

func TestInvalidServiceKeepsOut(t *testing.T) {
	t.Parallel()
	for _, tt := range invalidServices {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tracker := kube.NewTracker(kube.Config{})
			requireNoProblems(t, tracker.SetService(webService())) // the valid version before
			service := webService()
			tt.given(service)
			problems := tracker.SetService(service)
			for _, want := range strings.Split(tt.want, " | ") {
				require.Contains(t, strings.Join(texts(problems), "\n"),
					"error: Service default/web: "+want)
			}
			for _, p := range problems {
				require.False(t, p.Warning)
			}
			require.Nil(t, tracker.State().Service(web), "neither this version nor the one before")

			requireNoProblems(t, tracker.SetService(webService()))
			require.Empty(t, tracker.Problems())
			require.Equal(t, webModel(), tracker.State().Service(web))
		})
	}
}

func TestServiceNames(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, namespace, service, want string }{
		{"no name", "default", "", "Service default/: metadata.name: must be given"},
		{"no namespace", "", "web", "Service web: metadata.namespace: must be given"},
		{"a name that would break a ruleset", "default", "x\" }\nflush ruleset",
			`Service default/"x\" }\nflush ruleset": metadata.name: "x\" }\nflush ruleset": a ` +
				`lowercase RFC 1123 label must`},
		{"a long name", "default", strings.Repeat("a", 100), "must be no more than 63 characters"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tracker := kube.NewTracker(kube.Config{})
			service := webService()
			service.Namespace, service.Name = tt.namespace, tt.service
			problems := tracker.SetService(service)
			require.Len(t, problems, 1)
			require.Contains(t, problems[0].Error(), tt.want)
			require.Zero(t, tracker.State().Len())
		})
	}
}

func TestProblemsAreFieldErrors(t *testing.T) {
	t.Parallel()
	tracker := kube.NewTracker(kube.Config{})
	service := webService()
	service.Spec.Ports[0].Port = 0
	problems := tracker.SetService(service)
	require.Len(t, problems, 1)
	var field *servicemodel.FieldError
	require.True(t, errors.As(problems[0], &field))
	require.Equal(t, "spec.ports[0].port", field.Field)
}
