package kube_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/servicemodel"
	"github.com/kernlb/kernlb/servicemodel/kube"
)

// serviceCase is one setting of a Service: its change to webService, its change to webModel, both
// in YAML, and a warning about the Service.
type serviceCase struct {
	name, given string
	want        string
	problems    []string
}

// notThere as the wanted change means that the service is not in the state.
const notThere = "not there"

// model is a service without its own decoder, which would not change but replace it.
type model servicemodel.Service

func runServiceCases(t *testing.T, config kube.Config, cases []serviceCase) {
	t.Helper()
	for _, tt := range cases {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tracker := kube.NewTracker(config)
			var problems []string
			for _, p := range tt.problems {
				problems = append(problems, "warning: Service default/web: "+p)
			}
			got := tracker.SetService(patched(webService(), tt.given))
			require.Equal(t, problems, texts(got))
			require.Equal(t, problems, texts(tracker.Problems()))

			var want *servicemodel.Service
			if tt.want != notThere {
				m := model(*webModel())
				want = (*servicemodel.Service)(patched(&m, tt.want))
			}
			state := tracker.State()
			require.Equal(t, want, state.Service(web))
			require.NoError(t, state.Validate())
		})
	}
}

const allAnnotations = "metadata: {annotations: {kernlb.io/scheduler: mh+port, " +
	"kernlb.io/forwarding: direct, kernlb.io/connections: 30s, kernlb.io/masquerade: never, " +
	"kernlb.io/prefer: zone}}"

func TestServiceAnnotations(t *testing.T) {
	t.Parallel()
	runServiceCases(t, kube.Config{}, []serviceCase{
		{"annotations that nobody asked for mean nothing", allAnnotations, "", nil}})
	runServiceCases(t, kube.Config{Annotations: "kernlb.io"}, []serviceCase{
		{"all of them", allAnnotations, "{scheduler: mh+port, forwarding: direct, connections: " +
			"30s, prefer: zone, masquerade: {clusterIPs: never, loadBalancerIPs: never, " +
			"externalIPs: never, hostIPs: never, nodePorts: never}}", nil},
		{"affinity", "{metadata: {annotations: {kernlb.io/affinity: ipv6/56 ipv4/24 service}}, " +
			"spec: {sessionAffinity: ClientIP}}",
			"sessionAffinity: 3h ipv4/24 ipv6/56 service", nil},
		{"affinity without ClientIP", "metadata: {annotations: {kernlb.io/affinity: service}}", "",
			[]string{"metadata.annotations[kernlb.io/affinity]: service: has no effect where " +
				"spec.sessionAffinity is not ClientIP"}},
		{"another prefix",
			"metadata: {annotations: {kernlb.io.example/scheduler: lc, scheduler: lc}}", "", nil},
		{"names that are none",
			"metadata: {annotations: {kernlb.io/conection: 30s, kernlb.io/color: red}}", "",
			[]string{"metadata.annotations[kernlb.io/color]: red: means nothing",
				"metadata.annotations[kernlb.io/conection]: 30s: means nothing; did you mean " +
					"kernlb.io/connections?"}},
		{"what makes no sense is skipped", "metadata: {annotations: {kernlb.io/scheduler: fast, " +
			"kernlb.io/forwarding: '', kernlb.io/connections: 1ms, kernlb.io/prefer: near, " +
			"kernlb.io/slow-start: 1s}}", "", []string{
			"metadata.annotations[kernlb.io/connections]: 1ms: must be leave, cut, or a time of " +
				"at least 1s",
			"metadata.annotations[kernlb.io/forwarding]: must be nat, direct or tunnel",
			"metadata.annotations[kernlb.io/prefer]: near: must be node or zone",
			"metadata.annotations[kernlb.io/scheduler]: fast: must be random or a scheduler of " +
				"IPVS: rr, wrr, lc, wlc, lblc, lblcr, dh, sed, nq, fo, ovf; sh or mh, with " +
				"+port, +fallback or both",
			"metadata.annotations[kernlb.io/slow-start]: 1s: must be a time from 5s to 24h, in " +
				"whole seconds"}},
	})
	tracker := kube.NewTracker(kube.Config{Annotations: "kernlb.io"})
	requireNoProblems(t, tracker.SetService(patched(webService(),
		"metadata: {annotations: {kernlb.io/slow-start: 1m}}")))
	require.Equal(t, time.Minute, tracker.State().Service(web).SlowStart)
}

func TestServiceIdentity(t *testing.T) {
	t.Parallel()
	runServiceCases(t, kube.Config{}, []serviceCase{
		{"a plain service", "", "", nil},
		{"labels and annotations mean nothing", "metadata: {labels: {app: web}, annotations: " +
			"{service.beta.kubernetes.io/load-balancer-source-ranges: 10.0.0.0/8}}", "", nil},
		{"a service of another proxy is none of ours",
			"metadata: {labels: {service.kubernetes.io/service-proxy-name: other}}", notThere,
			nil},
		{"the label of another proxy counts without a value too",
			"metadata: {labels: {service.kubernetes.io/service-proxy-name: ''}}", notThere, nil},
		{"what another proxy's service says is not judged", "{metadata: {labels: " +
			"{service.kubernetes.io/service-proxy-name: other}}, spec: {ports: [{port: 0}]}}",
			notThere, nil},
		{"ports of one number and different protocols are apart",
			"spec: {ports: [{name: dns, protocol: UDP, port: 53}, {name: dns-tcp, protocol: TCP, " +
				"port: 53}, {name: dns-sctp, protocol: SCTP, port: 53}]}",
			"ports: [{name: dns, protocol: udp, port: 53}, {name: dns-tcp, protocol: tcp, " +
				"port: 53}, {name: dns-sctp, protocol: sctp, port: 53}]", nil},
		{"a single port needs no name", "spec: {ports: [{name: ''}]}", "ports: [{name: ''}]", nil},
		{"a port without a protocol is TCP", "spec: {ports: [{protocol: ''}]}", "", nil},
		{"the target port is not read", "spec: {ports: [{targetPort: 99999}]}", "", nil},
		{"a node port", "spec: {ports: [{nodePort: 30080}]}", "ports: [{nodePort: 30080}]", nil},
		{"fields that mean nothing to a proxy", "spec: {ports: [{appProtocol: h2c}], " +
			"type: LoadBalancer, allocateLoadBalancerNodePorts: false, " +
			"loadBalancerClass: example.com/lb, loadBalancerIP: 192.0.2.7, " +
			"externalName: example.com, selector: {app: web}, publishNotReadyAddresses: true, " +
			"trafficDistribution: PreferClose}", "", nil},
	})
}

func TestServiceTypeAndClusterIP(t *testing.T) {
	t.Parallel()
	const only4, only6 = "clusterIPs: [10.96.0.10]", "clusterIPs: ['fd00:96::10']"
	runServiceCases(t, kube.Config{}, []serviceCase{
		{"headless", "spec: {clusterIP: None, clusterIPs: [None], ipFamilies: null}", notThere,
			nil},
		{"without a cluster IP", "spec: {clusterIP: '', clusterIPs: null, ipFamilies: null}",
			notThere, []string{"spec.clusterIP: no address is given, the service is skipped"}},
		{"ExternalName", "spec: {type: ExternalName}", notThere, nil},
		{"ExternalName without an address", "spec: {type: ExternalName, ports: null, " +
			"clusterIP: '', clusterIPs: null, ipFamilies: null}", notThere, nil},
		{"no type is ClusterIP", "spec: {type: ''}", "", nil},
		{"one family", "spec: {clusterIPs: [10.96.0.10], ipFamilies: [IPv4]}", only4, nil},
		{"the other family", "spec: {clusterIP: 'fd00:96::10', clusterIPs: ['fd00:96::10'], " +
			"ipFamilies: [IPv6]}", only6, nil},
		{"no families, as from an old API server", "spec: {clusterIP: 'fd00:96::10', " +
			"clusterIPs: ['fd00:96::10'], ipFamilies: null}", only6, nil},
		{"no families: the list of cluster IPs does not count", "spec: {ipFamilies: null}", only4,
			nil},
		{"families without addresses", "spec: {clusterIPs: null}", notThere, []string{
			"spec.clusterIPs[0]: no IPv4 address is given, the service has none",
			"spec.clusterIPs[1]: no IPv6 address is given, the service has none"}},
		{"a second family that has no address yet", "spec: {clusterIPs: [10.96.0.10]}", only4,
			[]string{"spec.clusterIPs[1]: no IPv6 address is given, the service has none"}},
		{"leading zeros", "spec: {clusterIP: 010.096.000.010, clusterIPs: [010.096.000.010], " +
			"ipFamilies: [IPv4]}", only4, nil},
	})
}

func TestServiceAddresses(t *testing.T) {
	t.Parallel()
	const (
		balanced = "loadBalancerIPs: [{addr: 192.0.2.9}]"
		proxied  = "loadBalancerIPs: [{addr: 192.0.2.9, proxy: true}]"
		oneIP    = "externalIPs: [192.0.2.1]"
		only4    = "clusterIPs: [10.96.0.10]"
	)
	ingress := func(list string) string {
		return "status: {loadBalancer: {ingress: [" + list + "]}}"
	}
	const singleStack = "clusterIPs: [10.96.0.10], ipFamilies: [IPv4]"
	runServiceCases(t, kube.Config{}, []serviceCase{
		{"external IPs of both families", "spec: {externalIPs: [192.0.2.1, '2001:db8::1']}",
			"externalIPs: [192.0.2.1, '2001:db8::1']", nil},
		{"external IPs with leading zeros", "spec: {externalIPs: [192.168.099.022]}",
			"externalIPs: [192.168.99.22]", nil},
		{"blank external IPs are nothing", "spec: {externalIPs: ['', ' ', 192.0.2.1]}", oneIP, nil},
		{"an external IP given twice", "spec: {externalIPs: [192.0.2.1, 192.0.2.01]}", oneIP, nil},
		{"an external IP that is none is skipped", "spec: {externalIPs: [x, 192.0.2.1]}", oneIP,
			[]string{"spec.externalIPs[0]: x: not an IP address"}},
		{"an external IP of a family without a cluster IP",
			"spec: {externalIPs: ['2001:db8::1'], " + singleStack + "}", only4,
			[]string{"spec.externalIPs[0]: 2001:db8::1: is not used, the service has no IPv6 " +
				"cluster IP"}},

		{"a load balancer", ingress("{ip: 192.0.2.9}"), balanced, nil},
		{"a load balancer counts whatever the type",
			"spec: {type: NodePort}\n" + ingress("{ip: 192.0.2.9}"), balanced, nil},
		{"a load balancer with a host name only", ingress("{hostname: lb.example.com}"), "", nil},
		{"mode VIP", ingress("{ip: 192.0.2.9, ipMode: VIP}"), balanced, nil},
		{"mode Proxy", ingress("{ip: 192.0.2.9, ipMode: Proxy}"), proxied, nil},
		{"a mode of tomorrow is left alone like Proxy",
			ingress("{ip: 192.0.2.9, ipMode: Teleport}"), proxied, nil},
		{"an address in both modes is balanced",
			ingress("{ip: 192.0.2.9, ipMode: Proxy}, {ip: 192.0.2.9}"), balanced, nil},
		{"ingress ports mean nothing", ingress("{ip: 192.0.2.9, ports: [{port: 1}]}"), balanced,
			nil},
		{"a load balancer address that is none", ingress("{ip: x}"), "",
			[]string{"status.loadBalancer.ingress[0].ip: x: not an IP address"}},
		{"a load balancer on loopback, as local clusters have", ingress("{ip: 127.0.0.1}"), "",
			[]string{"status.loadBalancer.ingress[0].ip: 127.0.0.1: may not be a loopback " +
				"address"}},
		{"a load balancer of a family without a cluster IP",
			"spec: {" + singleStack + "}\n" + ingress("{ip: '2001:db8::9'}"), only4,
			[]string{"status.loadBalancer.ingress[0].ip: 2001:db8::9: is not used, the service " +
				"has no IPv6 cluster IP"}},

		{"source ranges are trimmed, masked and read leniently",
			`spec: {loadBalancerSourceRanges: [" 10.1.2.3/8 ", "", "192.168.001.0/24\n", ` +
				`"2001:db8::/32"]}`,
			"loadBalancerSourceRanges: [10.0.0.0/8, 192.168.1.0/24, '2001:db8::/32']", nil},
	})
}

func TestServicePolicies(t *testing.T) {
	t.Parallel()
	const isLocal = "externalTrafficPolicy: Local"
	runServiceCases(t, kube.Config{}, []serviceCase{
		{"affinity without configuration lasts three hours", "spec: {sessionAffinity: ClientIP}",
			"sessionAffinity: 3h", nil},
		{"affinity with an empty configuration too",
			"spec: {sessionAffinity: ClientIP, sessionAffinityConfig: {}}", "sessionAffinity: 3h",
			nil},
		{"affinity with a configuration without timeout too",
			"spec: {sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {}}}",
			"sessionAffinity: 3h", nil},
		{"affinity with a timeout", "spec: {sessionAffinity: ClientIP, sessionAffinityConfig: " +
			"{clientIP: {timeoutSeconds: 86400}}}", "sessionAffinity: 24h", nil},
		{"no affinity", "spec: {sessionAffinity: ''}", "", nil},

		{"internal policy Local", "spec: {internalTrafficPolicy: Local}",
			"internalTrafficPolicy: Local", nil},
		{"internal policy Cluster", "spec: {internalTrafficPolicy: Cluster}", "", nil},
		{"external policy Local of a NodePort service",
			"spec: {type: NodePort, externalTrafficPolicy: Local}", isLocal, nil},
		{"external policy Local of a LoadBalancer service",
			"spec: {type: LoadBalancer, externalTrafficPolicy: Local}", isLocal,
			[]string{"spec.healthCheckNodePort: no port is given, load balancers cannot ask for " +
				"local endpoints"}},
		{"external policy Local does not count for type ClusterIP",
			"spec: {externalTrafficPolicy: Local}", "", nil},
		{"but does with external IPs",
			"spec: {externalTrafficPolicy: Local, externalIPs: [192.0.2.1]}",
			"{externalTrafficPolicy: Local, externalIPs: [192.0.2.1]}", nil},
		{"external policy Cluster", "spec: {type: NodePort, externalTrafficPolicy: Cluster}", "",
			nil},

		{"a health check node port", "spec: {type: LoadBalancer, externalTrafficPolicy: Local, " +
			"healthCheckNodePort: 32000}",
			"{externalTrafficPolicy: Local, healthCheckNodePort: 32000}", nil},
		{"a health check node port does not count for another type",
			"spec: {type: NodePort, externalTrafficPolicy: Local, healthCheckNodePort: 32000}",
			isLocal, nil},
		{"a health check node port does not count under policy Cluster",
			"spec: {type: LoadBalancer, healthCheckNodePort: 32000}", "", nil},
	})
}
