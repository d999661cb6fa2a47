package kube_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/servicemodel"
	"github.com/kernlb/kernlb/servicemodel/kube"
)

// invalidServices are Services that are refused, and the reasons.
var invalidServices = []struct {
	name, given string
	want        string // separated by " | "
}{
	{"no ports", "spec: {ports: null}", "spec.ports: must name at least one port"},
	{"port 0", "spec: {ports: [{port: 0}]}", "spec.ports[0].port: 0: must be between 1 and 65535"},
	{"negative port", "spec: {ports: [{port: -1}]}",
		"spec.ports[0].port: -1: must be between 1 and 65535"},
	{"port beyond 16 bits", "spec: {ports: [{port: 65536}]}",
		"spec.ports[0].port: 65536: must be between 1 and 65535"},
	{"node port beyond 16 bits", "spec: {ports: [{nodePort: 70000}]}",
		"spec.ports[0].nodePort: 70000: must be between 0 and 65535"},
	{"negative node port", "spec: {ports: [{nodePort: -5}]}",
		"spec.ports[0].nodePort: -5: must be between 0 and 65535"},
	{"unknown protocol", "spec: {ports: [{protocol: ICMP}]}",
		"spec.ports[0].protocol: ICMP: must be TCP, UDP or SCTP"},
	{"protocol in small letters", "spec: {ports: [{protocol: tcp}]}",
		"spec.ports[0].protocol: tcp: must be TCP, UDP or SCTP"},
	{"bad port name", "spec: {ports: [{name: a b}]}",
		"spec.ports[0].name: a b: a lowercase RFC 1123 label must"},
	{"duplicate port name", "spec: {ports: [{}, {name: http, port: 443}]}",
		"spec.ports[1].name: http: is the name of spec.ports[0] too"},
	{"missing port name", "spec: {ports: [{}, {port: 443}]}",
		"spec.ports[1].name: must be given where there are several ports"},
	{"duplicate port", "spec: {ports: [{}, {name: https, port: 80}]}",
		"spec.ports[1].port: 80: is the port of spec.ports[0] too, with the same protocol"},
	{"duplicate node port",
		"spec: {ports: [{nodePort: 30000}, {name: https, port: 443, nodePort: 30000}]}",
		"spec.ports[1].nodePort: 30000: is the node port of spec.ports[0] too, with the same " +
			"protocol"},
	{"everything that is wrong is reported",
		"spec: {ports: [{port: 0}, {name: https, port: 443, protocol: X, nodePort: -1}]}",
		"spec.ports[0].port: 0: must be | spec.ports[1].protocol: X: must be | " +
			"spec.ports[1].nodePort: -1: must be"},

	{"unknown type", "spec: {type: Magic}",
		"spec.type: Magic: must be ClusterIP, NodePort, LoadBalancer or ExternalName"},
	{"bad cluster IP", "spec: {clusterIP: 10.0.0, clusterIPs: [10.0.0, 'fd00:96::10']}",
		"spec.clusterIP: 10.0.0: not an IP address"},
	{"bad cluster IP without families",
		"spec: {clusterIP: 10.0.0, clusterIPs: null, ipFamilies: null}",
		"spec.clusterIP: 10.0.0: not an IP address"},
	{"unspecified cluster IP", "spec: {clusterIP: 0.0.0.0, clusterIPs: [0.0.0.0, 'fd00:96::10']}",
		"spec.clusterIP: 0.0.0.0: may not be unspecified"},
	{"cluster IPs that disagree", "spec: {clusterIP: 10.96.0.11}",
		"spec.clusterIPs[0]: 10.96.0.10: must be the same as spec.clusterIP"},
	{"cluster IP of the wrong family", "spec: {clusterIPs: [10.96.0.10, 10.96.0.11]}",
		"spec.clusterIPs[1]: 10.96.0.11: must be an IPv6 address, as spec.ipFamilies[1] says"},
	{"a family twice", "spec: {ipFamilies: [IPv4, IPv4]}",
		"spec.ipFamilies[1]: IPv4: is spec.ipFamilies[0] too"},
	{"an unknown family", "spec: {ipFamilies: [IPv4, IPX]}",
		"spec.ipFamilies[1]: IPX: must be IPv4 or IPv6"},
	{"more cluster IPs than families", "spec: {ipFamilies: [IPv4]}",
		"spec.clusterIPs[1]: fd00:96::10: has no family in spec.ipFamilies"},
	{"loopback external IP", "spec: {externalIPs: [127.0.0.1]}",
		"spec.externalIPs[0]: 127.0.0.1: may not be a loopback address"},
	{"bad source range", "spec: {loadBalancerSourceRanges: [10.0.0.0/8, 10.0.0.1]}",
		"spec.loadBalancerSourceRanges[1]: 10.0.0.1: not an IP range such as 10.0.0.0/8"},

	{"unknown affinity", "spec: {sessionAffinity: Cookie}",
		"spec.sessionAffinity: Cookie: must be ClientIP or None"},
	{"affinity of no time",
		"spec: {sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 0}}}",
		"spec.sessionAffinityConfig.clientIP.timeoutSeconds: 0: must be between 1 and 86400"},
	{"affinity of more than a day", "spec: {sessionAffinity: ClientIP, " +
		"sessionAffinityConfig: {clientIP: {timeoutSeconds: 86401}}}",
		"spec.sessionAffinityConfig.clientIP.timeoutSeconds: 86401: must be between 1 and 86400"},
	{"unknown external policy", "spec: {externalTrafficPolicy: Near}",
		"spec.externalTrafficPolicy: Near: must be Cluster or Local"},
	{"unknown internal policy", "spec: {internalTrafficPolicy: Near}",
		"spec.internalTrafficPolicy: Near: must be Cluster or Local"},
	{"health check node port beyond 16 bits", "spec: {healthCheckNodePort: 65536}",
		"spec.healthCheckNodePort: 65536: must be between 0 and 65535"},
	{"health check node port that is a node port", "spec: {type: LoadBalancer, " +
		"externalTrafficPolicy: Local, healthCheckNodePort: 30000, ports: [{nodePort: 30000}]}",
		"spec.healthCheckNodePort: 30000: is the node port of one of spec.ports too"},
	{"broadcast external IP", "spec: {externalIPs: [255.255.255.255]}",
		"spec.externalIPs[0]: 255.255.255.255: may not be the broadcast address"},
	{"multicast external IP", "spec: {externalIPs: [224.0.0.1]}",
		"spec.externalIPs[0]: 224.0.0.1: may not be a multicast address"},
	{"a headless service is judged too",
		"spec: {clusterIP: None, clusterIPs: [None], ports: [{port: 0}]}",
		"spec.ports[0].port: 0: must be between 1 and 65535"},
}

func TestInvalidServiceKeepsOut(t *testing.T) {
	t.Parallel()
	for _, tt := range invalidServices {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tracker := kube.NewTracker(kube.Config{})
			requireNoProblems(t, tracker.SetService(webService())) // the valid version before
			problems := tracker.SetService(patched(webService(), tt.given))
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
