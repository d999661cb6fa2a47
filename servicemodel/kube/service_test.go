package kube_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/kernlb/kernlb/servicemodel"
	"github.com/kernlb/kernlb/servicemodel/kube"
)

// serviceCase is one setting of a Service: its change to webService, and its change to webModel.
type serviceCase struct {
	name     string
	given    func(*corev1.Service)
	want     func(*servicemodel.Service) // nil if the service is not in the state
	problems []string
}

func unchanged(*servicemodel.Service) {}

func runServiceCases(t *testing.T, config kube.Config, cases []serviceCase) {
	t.Helper()
	for _, tt := range cases {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tracker := kube.NewTracker(config)
			service := webService()
			tt.given(service)
			problems := tracker.SetService(service)
			require.Equal(t, tt.problems, texts(problems))
			require.Equal(t, tt.problems, texts(tracker.Problems()))

			var want *servicemodel.Service
			if tt.want != nil {
				want = webModel()
				tt.want(want)
			}
			state := tracker.State()
			require.Equal(t, want, state.Service(web))
			require.NoError(t, state.Validate())
		})
	}
}

func TestServiceAnnotations(t *testing.T) {
	t.Parallel()
	say := func(pairs ...string) func(*corev1.Service) {
		return func(s *corev1.Service) {
			s.Annotations = map[string]string{}
			for i := 0; i < len(pairs); i += 2 {
				s.Annotations[pairs[i]] = pairs[i+1]
			}
		}
	}
	all := say("kernlb.io/scheduler", "mh+port", "kernlb.io/forwarding", "direct",
		"kernlb.io/connections", "30s", "kernlb.io/masquerade", "never", "kernlb.io/prefer", "zone",
		"kernlb.io/slow-start", "1m")
	runServiceCases(t, kube.Config{},
		[]serviceCase{{"annotations that nobody asked for mean nothing", all, unchanged, nil}})
	runServiceCases(t, kube.Config{Annotations: "kernlb.io"}, []serviceCase{
		{"all of them", all, func(s *servicemodel.Service) {
			s.Scheduler, s.Forwarding = servicemodel.Maglev+"+port",
				servicemodel.ForwardDirect
			s.Connections = servicemodel.ConnectionPolicy{Mode: servicemodel.DrainConnections,
				Drain: 30 * time.Second}
			s.Masquerade = servicemodel.MasqueradeAt(servicemodel.MasqueradeNever)
			s.Prefer, s.SlowStart = "zone", time.Minute
		}, nil},
		{"affinity", func(s *corev1.Service) {
			s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
			say("kernlb.io/affinity", "ipv6/56 ipv4/24 service")(s)
		}, func(s *servicemodel.Service) {
			s.SessionAffinity = servicemodel.SessionAffinity{ClientIP: true, Timeout: 3 * time.Hour,
				Bits4: 24, Bits6: 56, WholeService: true}
		}, nil},
		{"affinity without ClientIP", say("kernlb.io/affinity", "service"), unchanged, []string{
			"warning: Service default/web: metadata.annotations[kernlb.io/affinity]: service: " +
				"has no effect where spec.sessionAffinity is not ClientIP"}},
		{"another prefix", say("kernlb.io.example/scheduler", "lc", "scheduler", "lc"),
			unchanged, nil},
		{"names that are none", say("kernlb.io/conection", "30s", "kernlb.io/color", "red"),
			unchanged, []string{
				"warning: Service default/web: metadata.annotations[kernlb.io/color]: red: means " +
					"nothing",
				"warning: Service default/web: metadata.annotations[kernlb.io/conection]: 30s: " +
					"means nothing; did you mean kernlb.io/connections?"}},
		{"what makes no sense is skipped", say("kernlb.io/scheduler", "fast",
			"kernlb.io/forwarding", "", "kernlb.io/connections", "1ms", "kernlb.io/prefer",
			"near", "kernlb.io/slow-start", "1s"), unchanged, []string{
			"warning: Service default/web: metadata.annotations[kernlb.io/connections]: 1ms: " +
				"must be leave, cut, or a time of at least 1s",
			"warning: Service default/web: metadata.annotations[kernlb.io/forwarding]: must be " +
				"nat, direct or tunnel",
			"warning: Service default/web: metadata.annotations[kernlb.io/prefer]: near: must be " +
				"node or zone",
			"warning: Service default/web: metadata.annotations[kernlb.io/scheduler]: fast: must " +
				"be random or a scheduler of IPVS: rr, wrr, lc, wlc, lblc, lblcr, dh, sed, nq, " +
				"fo, ovf; sh or mh, with +port, +fallback or both",
			"warning: Service default/web: metadata.annotations[kernlb.io/slow-start]: 1s: must " +
				"be a time from 5s to 24h, in whole seconds",
		}},
	})
}

func TestServiceIdentity(t *testing.T) {
	t.Parallel()
	runServiceCases(t, kube.Config{}, []serviceCase{
		{"a plain service", func(*corev1.Service) {}, unchanged, nil},
		{"labels and annotations mean nothing", func(s *corev1.Service) {
			s.Labels = map[string]string{"app": "web"}
			s.Annotations = map[string]string{
				"service.beta.kubernetes.io/load-balancer-source-ranges": "10.0.0.0/8"}
		}, unchanged, nil},
		{"a service of another proxy is none of ours", func(s *corev1.Service) {
			s.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": "other"}
		}, nil, nil},
		{"the label of another proxy counts without a value too", func(s *corev1.Service) {
			s.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": ""}
		}, nil, nil},
		{"what another proxy's service says is not judged", func(s *corev1.Service) {
			s.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": "other"}
			s.Spec.Ports[0].Port = 0
		}, nil, nil},
		{"ports of one number and different protocols are apart", func(s *corev1.Service) {
			s.Spec.Ports = []corev1.ServicePort{
				{Name: "dns", Protocol: corev1.ProtocolUDP, Port: 53},
				{Name: "dns-tcp", Protocol: corev1.ProtocolTCP, Port: 53},
				{Name: "dns-sctp", Protocol: corev1.ProtocolSCTP, Port: 53},
			}
		}, func(s *servicemodel.Service) {
			s.Ports = []servicemodel.ServicePort{
				{Name: "dns", Protocol: servicemodel.UDP, Port: 53},
				{Name: "dns-tcp", Protocol: servicemodel.TCP, Port: 53},
				{Name: "dns-sctp", Protocol: servicemodel.SCTP, Port: 53},
			}
		}, nil},
		{"a single port needs no name", func(s *corev1.Service) { s.Spec.Ports[0].Name = "" },
			func(s *servicemodel.Service) { s.Ports[0].Name = "" }, nil},
		{"a port without a protocol is TCP", func(s *corev1.Service) {
			s.Spec.Ports[0].Protocol = ""
		}, unchanged, nil},
		{"the target port is not read", func(s *corev1.Service) {
			s.Spec.Ports[0].TargetPort = intstr.FromInt32(99999)
		}, unchanged, nil},
		{"a node port", func(s *corev1.Service) { s.Spec.Ports[0].NodePort = 30080 },
			func(s *servicemodel.Service) { s.Ports[0].NodePort = 30080 }, nil},
		{"fields that mean nothing to a proxy", func(s *corev1.Service) {
			s.Spec.Ports[0].AppProtocol = ptr("h2c")
			s.Spec.Type = corev1.ServiceTypeLoadBalancer
			s.Spec.AllocateLoadBalancerNodePorts = ptr(false)
			s.Spec.LoadBalancerClass = ptr("example.com/lb")
			s.Spec.LoadBalancerIP = "192.0.2.7"
			s.Spec.ExternalName = "example.com"
			s.Spec.Selector = map[string]string{"app": "web"}
			s.Spec.PublishNotReadyAddresses = true
			s.Spec.TrafficDistribution = ptr("PreferClose")
		}, unchanged, nil},
	})
}

func TestServiceTypeAndClusterIP(t *testing.T) {
	t.Parallel()
	clusterIP := func(ip string, families ...corev1.IPFamily) func(*corev1.Service) {
		return func(s *corev1.Service) {
			s.Spec.ClusterIP, s.Spec.IPFamilies, s.Spec.ClusterIPs = ip, families, nil
			if ip != "" {
				s.Spec.ClusterIPs = []string{ip}
			}
		}
	}
	only := func(ip string) func(*servicemodel.Service) {
		return func(s *servicemodel.Service) { s.ClusterIPs = addrs(ip) }
	}
	runServiceCases(t, kube.Config{}, []serviceCase{
		{"headless", clusterIP("None"), nil, nil},
		{"without a cluster IP", clusterIP(""), nil,
			[]string{
				"warning: Service default/web: spec.clusterIP: no address is given, the service " +
					"is skipped"}},
		{"ExternalName", func(s *corev1.Service) {
			s.Spec.Type = corev1.ServiceTypeExternalName
		}, nil, nil},
		{"ExternalName without an address", func(s *corev1.Service) {
			clusterIP("")(s)
			s.Spec.Type, s.Spec.Ports = corev1.ServiceTypeExternalName, nil
		}, nil, nil},
		{"no type is ClusterIP", func(s *corev1.Service) { s.Spec.Type = "" }, unchanged, nil},
		{"one family", clusterIP("10.96.0.10", corev1.IPv4Protocol), only("10.96.0.10"), nil},
		{"the other family", clusterIP("fd00:96::10", corev1.IPv6Protocol),
			only("fd00:96::10"), nil},
		{"no families, as from an old API server", clusterIP("fd00:96::10"),
			only("fd00:96::10"), nil},
		{"no families: the list of cluster IPs does not count", func(s *corev1.Service) {
			s.Spec.IPFamilies = nil
		}, only("10.96.0.10"), nil},
		{"families without addresses", func(s *corev1.Service) {
			s.Spec.ClusterIPs = nil
		}, nil, []string{
			"warning: Service default/web: spec.clusterIPs[0]: no IPv4 address is given, the " +
				"service has none",
			"warning: Service default/web: spec.clusterIPs[1]: no IPv6 address is given, the " +
				"service has none",
		}},
		{"a second family that has no address yet", func(s *corev1.Service) {
			s.Spec.ClusterIPs = s.Spec.ClusterIPs[:1]
		}, only("10.96.0.10"),
			[]string{
				"warning: Service default/web: spec.clusterIPs[1]: no IPv6 address is given, the " +
					"service has none"}},
		{"leading zeros", clusterIP("010.096.000.010", corev1.IPv4Protocol),
			only("10.96.0.10"), nil},
	})
}

func TestServiceAddresses(t *testing.T) {
	t.Parallel()
	ingress := func(list ...corev1.LoadBalancerIngress) func(*corev1.Service) {
		return func(s *corev1.Service) { s.Status.LoadBalancer.Ingress = list }
	}
	vip := func(ip string, proxy bool) func(*servicemodel.Service) {
		return func(s *servicemodel.Service) {
			s.LoadBalancerIPs = []servicemodel.LoadBalancerIP{{Addr: addrs(ip)[0], Proxy: proxy}}
		}
	}
	external := func(list ...string) func(*corev1.Service) {
		return func(s *corev1.Service) { s.Spec.ExternalIPs = list }
	}
	externals := func(list ...string) func(*servicemodel.Service) {
		return func(s *servicemodel.Service) { s.ExternalIPs = addrs(list...) }
	}
	singleStack := func(next func(*corev1.Service)) func(*corev1.Service) {
		return func(s *corev1.Service) {
			s.Spec.ClusterIPs, s.Spec.IPFamilies = s.Spec.ClusterIPs[:1], s.Spec.IPFamilies[:1]
			next(s)
		}
	}
	ranges := func(list ...string) func(*corev1.Service) {
		return func(s *corev1.Service) { s.Spec.LoadBalancerSourceRanges = list }
	}
	runServiceCases(t, kube.Config{}, []serviceCase{
		{"external IPs of both families", external("192.0.2.1", "2001:db8::1"),
			externals("192.0.2.1", "2001:db8::1"), nil},
		{"external IPs with leading zeros", external("192.168.099.022"), externals("192.168.99.22"),
			nil},
		{"blank external IPs are nothing", external("", " ", "192.0.2.1"), externals("192.0.2.1"),
			nil},
		{"an external IP given twice", external("192.0.2.1", "192.0.2.01"), externals("192.0.2.1"),
			nil},
		{"an external IP that is none is skipped", external("x", "192.0.2.1"),
			externals("192.0.2.1"),
			[]string{"warning: Service default/web: spec.externalIPs[0]: x: not an IP address"}},
		{"an external IP of a family without a cluster IP", singleStack(external("2001:db8::1")),
			func(s *servicemodel.Service) { s.ClusterIPs = addrs("10.96.0.10") },
			[]string{
				"warning: Service default/web: spec.externalIPs[0]: 2001:db8::1: is not used, " +
					"the service has no IPv6 cluster IP"}},

		{"a load balancer", ingress(corev1.LoadBalancerIngress{IP: "192.0.2.9"}),
			vip("192.0.2.9", false), nil},
		{"a load balancer counts whatever the type", func(s *corev1.Service) {
			ingress(corev1.LoadBalancerIngress{IP: "192.0.2.9"})(s)
			s.Spec.Type = corev1.ServiceTypeNodePort
		}, vip("192.0.2.9", false), nil},
		{"a load balancer with a host name only",
			ingress(corev1.LoadBalancerIngress{Hostname: "lb.example.com"}), unchanged, nil},
		{"mode VIP",
			ingress(corev1.LoadBalancerIngress{IP: "192.0.2.9",
				IPMode: ptr(corev1.LoadBalancerIPModeVIP)}),
			vip("192.0.2.9", false), nil},
		{"mode Proxy",
			ingress(corev1.LoadBalancerIngress{IP: "192.0.2.9",
				IPMode: ptr(corev1.LoadBalancerIPModeProxy)}),
			vip("192.0.2.9", true), nil},
		{"a mode of tomorrow is left alone like Proxy",
			ingress(corev1.LoadBalancerIngress{IP: "192.0.2.9",
				IPMode: ptr(corev1.LoadBalancerIPMode("Teleport"))}),
			vip("192.0.2.9", true), nil},
		{"an address in both modes is balanced", ingress(
			corev1.LoadBalancerIngress{IP: "192.0.2.9",
				IPMode: ptr(corev1.LoadBalancerIPModeProxy)}, corev1.LoadBalancerIngress{
				IP: "192.0.2.9"},
		), vip("192.0.2.9", false), nil},
		{"ingress ports mean nothing",
			ingress(corev1.LoadBalancerIngress{IP: "192.0.2.9", Ports: []corev1.PortStatus{
				{Port: 1}}}),
			vip("192.0.2.9", false), nil},
		{"a load balancer address that is none", ingress(corev1.LoadBalancerIngress{IP: "x"}),
			unchanged,
			[]string{
				"warning: Service default/web: status.loadBalancer.ingress[0].ip: x: not an IP " +
					"address"}},
		{"a load balancer on loopback, as local clusters have",
			ingress(corev1.LoadBalancerIngress{IP: "127.0.0.1"}), unchanged,
			[]string{
				"warning: Service default/web: status.loadBalancer.ingress[0].ip: 127.0.0.1: may " +
					"not be a loopback address"}},
		{"a load balancer of a family without a cluster IP",
			singleStack(ingress(corev1.LoadBalancerIngress{IP: "2001:db8::9"})),
			func(s *servicemodel.Service) { s.ClusterIPs = addrs("10.96.0.10") },
			[]string{
				"warning: Service default/web: status.loadBalancer.ingress[0].ip: 2001:db8::9: " +
					"is not used, the service has no IPv6 cluster IP",
			}},

		{"source ranges are trimmed, masked and read leniently",
			ranges(" 10.1.2.3/8 ", "", "192.168.001.0/24\n", "2001:db8::/32"),
			func(s *servicemodel.Service) {
				s.LoadBalancerSourceRanges = prefixes("10.0.0.0/8", "192.168.1.0/24",
					"2001:db8::/32")
			}, nil},
	})
}

func TestServicePolicies(t *testing.T) {
	t.Parallel()
	local := func(kind corev1.ServiceType) func(*corev1.Service) {
		return func(s *corev1.Service) {
			s.Spec.Type, s.Spec.ExternalTrafficPolicy = kind,
				corev1.ServiceExternalTrafficPolicyLocal
		}
	}
	isLocal := func(s *servicemodel.Service) { s.ExternalTrafficPolicy = servicemodel.PolicyLocal }
	affinity := func(timeout time.Duration) func(*servicemodel.Service) {
		return func(s *servicemodel.Service) {
			s.SessionAffinity = servicemodel.SessionAffinity{ClientIP: true, Timeout: timeout}
		}
	}
	noPort := []string{
		"warning: Service default/web: spec.healthCheckNodePort: no port is given, load " +
			"balancers cannot ask for local endpoints",
	}
	runServiceCases(t, kube.Config{}, []serviceCase{
		{"affinity without configuration lasts three hours",
			func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP },
			affinity(3 * time.Hour), nil},
		{"affinity with an empty configuration too", func(s *corev1.Service) {
			s.Spec.SessionAffinity, s.Spec.SessionAffinityConfig = corev1.ServiceAffinityClientIP,
				&corev1.SessionAffinityConfig{}
		}, affinity(3 * time.Hour), nil},
		{"affinity with a configuration without timeout too", func(s *corev1.Service) {
			s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
			s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{
				ClientIP: &corev1.ClientIPConfig{}}
		}, affinity(3 * time.Hour), nil},
		{"affinity with a timeout", func(s *corev1.Service) {
			s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
			s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{
				ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: ptr(int32(86400))}}
		}, affinity(24 * time.Hour), nil},
		{"no affinity", func(s *corev1.Service) { s.Spec.SessionAffinity = "" }, unchanged, nil},

		{"internal policy Local", func(s *corev1.Service) {
			s.Spec.InternalTrafficPolicy = ptr(corev1.ServiceInternalTrafficPolicyLocal)
		}, func(s *servicemodel.Service) { s.InternalTrafficPolicy = servicemodel.PolicyLocal },
			nil},
		{"internal policy Cluster", func(s *corev1.Service) {
			s.Spec.InternalTrafficPolicy = ptr(corev1.ServiceInternalTrafficPolicyCluster)
		},
			unchanged, nil},
		{"external policy Local of a NodePort service", local(corev1.ServiceTypeNodePort),
			isLocal, nil},
		{"external policy Local of a LoadBalancer service", local(corev1.ServiceTypeLoadBalancer),
			isLocal, noPort},
		{"external policy Local does not count for type ClusterIP",
			local(corev1.ServiceTypeClusterIP), unchanged, nil},
		{"but does with external IPs", func(s *corev1.Service) {
			local(corev1.ServiceTypeClusterIP)(s)
			s.Spec.ExternalIPs = []string{"192.0.2.1"}
		}, func(s *servicemodel.Service) {
			isLocal(s)
			s.ExternalIPs = addrs("192.0.2.1")
		}, nil},
		{"external policy Cluster", func(s *corev1.Service) {
			s.Spec.Type, s.Spec.ExternalTrafficPolicy = corev1.ServiceTypeNodePort,
				corev1.ServiceExternalTrafficPolicyCluster
		}, unchanged, nil},

		{"a health check node port", func(s *corev1.Service) {
			local(corev1.ServiceTypeLoadBalancer)(s)
			s.Spec.HealthCheckNodePort = 32000
		}, func(s *servicemodel.Service) {
			isLocal(s)
			s.HealthCheckNodePort = 32000
		}, nil},
		{"a health check node port does not count for another type", func(s *corev1.Service) {
			local(corev1.ServiceTypeNodePort)(s)
			s.Spec.HealthCheckNodePort = 32000
		}, isLocal, nil},
		{"a health check node port does not count under policy Cluster", func(s *corev1.Service) {
			s.Spec.Type, s.Spec.HealthCheckNodePort = corev1.ServiceTypeLoadBalancer, 32000
		}, unchanged, nil},
	})
}
