package kube

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kernlb/kernlb/servicemodel"
)

// labelServiceProxyName marks services that belong to another proxy, whatever its value
// (LabelServiceProxyName in k8s.io/kubernetes/pkg/proxy/apis).
const labelServiceProxyName = "service.kubernetes.io/service-proxy-name"

// translateService translates s; it returns nil if s is not proxied or invalid.
func translateService(s *corev1.Service, r *report) *servicemodel.Service {
	if ofOtherProxy(s) {
		return nil
	}
	checkName(r, s.Namespace, s.Name, validation.IsDNS1123Label)
	proxied := isProxied(s, r)
	out := &servicemodel.Service{
		Name:                  servicemodel.Name{Namespace: s.Namespace, Name: s.Name},
		Ports:                 servicePorts(s.Spec.Ports, r),
		SessionAffinity:       sessionAffinity(&s.Spec, r),
		InternalTrafficPolicy: internalPolicy(&s.Spec, r),
		ExternalTrafficPolicy: externalPolicy(&s.Spec, r),
	}
	out.HealthCheckNodePort = healthCheckNodePort(&s.Spec, out.Ports, r)
	if !proxied {
		return nil
	}
	if len(out.Ports) == 0 && !r.failed() {
		r.invalid("spec.ports", "", "must name at least one port")
	}
	out.ClusterIPs = clusterIPs(&s.Spec, r)
	if len(out.ClusterIPs) == 0 {
		return nil
	}
	out.ExternalIPs = externalIPs(&s.Spec, out.ClusterIPs, r)
	out.LoadBalancerIPs = loadBalancerIPs(s.Status.LoadBalancer.Ingress, out.ClusterIPs, r)
	out.LoadBalancerSourceRanges = sourceRanges(s.Spec.LoadBalancerSourceRanges, r)
	return out
}

// ofOtherProxy reports whether s belongs to another proxy.
func ofOtherProxy(s *corev1.Service) bool {
	_, ok := s.Labels[labelServiceProxyName]
	return ok
}

// isProxied reports whether a service of this type and cluster IP is proxied at all.
func isProxied(s *corev1.Service, r *report) bool {
	switch s.Spec.Type {
	case corev1.ServiceTypeExternalName:
		return false
	case "", corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort,
		corev1.ServiceTypeLoadBalancer:
	default:
		r.invalid("spec.type", string(s.Spec.Type),
			"must be ClusterIP, NodePort, LoadBalancer or ExternalName")
	}

	if ips := s.Spec.ClusterIPs; len(ips) > 0 && ips[0] != s.Spec.ClusterIP {
		r.invalid("spec.clusterIPs[0]", ips[0], "must be the same as spec.clusterIP")
	}
	if s.Spec.ClusterIP == "" && len(s.Spec.ClusterIPs) == 0 {
		r.warn("spec.clusterIP", "", "no address is given, the service is skipped")
	}
	return s.Spec.ClusterIP != "" && s.Spec.ClusterIP != corev1.ClusterIPNone
}

// checkName reports a name that the API server would not accept. ok is the API server's check of
// the name, which depends on the kind.
func checkName(r *report, namespace, name string, ok func(string) []string) {
	check := func(field, value string, ok func(string) []string) {
		switch problems := ok(value); {
		case value == "":
			r.invalid(field, "", "must be given")
		case len(problems) > 0:
			r.invalid(field, value, "%s", problems[0])
		}
	}

	check("metadata.namespace", namespace, validation.IsDNS1123Label)
	check("metadata.name", name, ok)
}

func servicePorts(ports []corev1.ServicePort, r *report) []servicemodel.ServicePort {
	type number struct {
		protocol servicemodel.Protocol
		port     int32
	}
	names, numbers, nodePorts := map[string]int{}, map[number]int{}, map[number]int{}
	out := make([]servicemodel.ServicePort, 0, len(ports))
	for i, p := range ports {
		at := fmt.Sprintf("spec.ports[%d].", i)
		protocol := parseProtocol(p.Protocol, at+"protocol", r)
		if p.Name == "" && len(ports) > 1 {
			r.invalid(at+"name", "", "must be given where there are several ports")
		} else if first, ok := claim(names, p.Name, i); !ok {
			r.invalid(at+"name", p.Name, "is the name of spec.ports[%d] too", first)
		}

		checkPortName(p.Name, at+"name", r)
		if !checkPort(p.Port, 1, at+"port", r) {
			continue
		}
		if first, ok := claim(numbers, number{protocol, p.Port}, i); !ok {
			r.invalid(at+"port", itoa(p.Port),
				"is the port of spec.ports[%d] too, with the same protocol", first)
		}

		if !checkPort(p.NodePort, 0, at+"nodePort", r) {
			continue
		}
		if first, ok := claim(nodePorts, number{protocol, p.NodePort}, i); !ok && p.NodePort != 0 {
			r.invalid(at+"nodePort", itoa(p.NodePort),
				"is the node port of spec.ports[%d] too, with the same protocol", first)
		}

		out = append(out, servicemodel.ServicePort{
			Name: p.Name, Protocol: protocol, Port: uint16(p.Port), NodePort: uint16(p.NodePort),
		})
	}

	return out
}

// claim records that i uses key. If an earlier element uses key, ok is false and first is that
// element.
func claim[K comparable](m map[K]int, key K, i int) (first int, ok bool) {
	if first, ok := m[key]; ok {
		return first, false
	}
	m[key] = i
	return i, true
}

// parseProtocol parses a protocol name. Empty means TCP, the default of API servers.
func parseProtocol(p corev1.Protocol, field string, r *report) servicemodel.Protocol {
	switch p {
	case corev1.ProtocolTCP, "":
		return servicemodel.TCP
	case corev1.ProtocolUDP:
		return servicemodel.UDP
	case corev1.ProtocolSCTP:
		return servicemodel.SCTP
	}

	r.invalid(field, string(p), "must be TCP, UDP or SCTP")
	return 0
}

func checkPortName(name, field string, r *report) {
	if name == "" {
		return
	}
	if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
		r.invalid(field, name, "%s", problems[0])
	}
}

func checkPort(port, least int32, field string, r *report) bool {
	if port >= least && port <= 65535 {
		return true
	}
	r.invalid(field, itoa(port), "must be between %d and 65535", least)
	return false
}

func sessionAffinity(spec *corev1.ServiceSpec, r *report) servicemodel.SessionAffinity {
	switch spec.SessionAffinity {
	case "", corev1.ServiceAffinityNone:
		return servicemodel.SessionAffinity{}
	case corev1.ServiceAffinityClientIP:
	default:
		r.invalid("spec.sessionAffinity", string(spec.SessionAffinity), "must be ClientIP or None")
	}

	timeout := time.Duration(corev1.DefaultClientIPServiceAffinitySeconds) * time.Second
	if c := spec.SessionAffinityConfig; c != nil && c.ClientIP != nil &&
		c.ClientIP.TimeoutSeconds != nil {
		timeout = time.Duration(*c.ClientIP.TimeoutSeconds) * time.Second
		if timeout < time.Second || timeout > 24*time.Hour {
			r.invalid("spec.sessionAffinityConfig.clientIP.timeoutSeconds",
				itoa(*c.ClientIP.TimeoutSeconds),
				"must be between 1 and 86400")
		}
	}

	return servicemodel.SessionAffinity{ClientIP: true, Timeout: timeout}
}

func internalPolicy(spec *corev1.ServiceSpec, r *report) servicemodel.TrafficPolicy {
	if spec.InternalTrafficPolicy == nil {
		return servicemodel.PolicyCluster
	}
	return parsePolicy(string(*spec.InternalTrafficPolicy), "spec.internalTrafficPolicy", r)
}

// externalPolicy returns the external traffic policy if it has an effect. Kube-proxy ignores the
// policy of a service of type ClusterIP without external IPs, although such a service may have
// leftover load balancer IPs and node ports.
func externalPolicy(spec *corev1.ServiceSpec, r *report) servicemodel.TrafficPolicy {
	if spec.ExternalTrafficPolicy == "" {
		return servicemodel.PolicyCluster
	}
	p := parsePolicy(string(spec.ExternalTrafficPolicy), "spec.externalTrafficPolicy", r)
	switch spec.Type {
	case corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeNodePort:
		return p
	}

	if len(spec.ExternalIPs) > 0 {
		return p
	}
	return servicemodel.PolicyCluster
}

func parsePolicy(s, field string, r *report) servicemodel.TrafficPolicy {
	switch s {
	case string(corev1.ServiceExternalTrafficPolicyCluster):
		return servicemodel.PolicyCluster
	case string(corev1.ServiceExternalTrafficPolicyLocal):
		return servicemodel.PolicyLocal
	}

	r.invalid(field, s, "must be Cluster or Local")
	return servicemodel.PolicyCluster
}

// healthCheckNodePort returns the port if it has an effect: for a load balancer with external
// traffic policy Local.
func healthCheckNodePort(spec *corev1.ServiceSpec, ports []servicemodel.ServicePort,
	r *report) uint16 {
	if !checkPort(spec.HealthCheckNodePort, 0, "spec.healthCheckNodePort", r) {
		return 0
	}
	if spec.Type != corev1.ServiceTypeLoadBalancer ||
		spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal {
		return 0
	}

	if spec.HealthCheckNodePort == 0 {
		r.warn("spec.healthCheckNodePort", "",
			"no port is given, load balancers cannot ask for local endpoints")
		return 0
	}

	port := uint16(spec.HealthCheckNodePort)
	if slices.ContainsFunc(ports, func(p servicemodel.ServicePort) bool {
		return p.Protocol == servicemodel.TCP && p.NodePort == port
	}) {
		r.invalid("spec.healthCheckNodePort", itoa(spec.HealthCheckNodePort),
			"is the node port of one of spec.ports too")
	}

	return port
}

// clusterIPs returns the cluster IP of each of the service's families. An object without families
// comes from an API server that knew only the family of spec.clusterIP.
func clusterIPs(spec *corev1.ServiceSpec, r *report) []netip.Addr {
	if len(spec.IPFamilies) == 0 {
		a, err := parseUsable(spec.ClusterIP)
		if err != nil {
			r.invalid("spec.clusterIP", spec.ClusterIP, "%v", err)
			return nil
		}

		return []netip.Addr{a}
	}

	var out []netip.Addr
	seen := map[corev1.IPFamily]int{}
	for i, family := range spec.IPFamilies {
		at := fmt.Sprintf("spec.ipFamilies[%d]", i)
		if family != corev1.IPv4Protocol && family != corev1.IPv6Protocol {
			r.invalid(at, string(family), "must be IPv4 or IPv6")
			continue
		}

		if first, ok := claim(seen, family, i); !ok {
			r.invalid(at, string(family), "is spec.ipFamilies[%d] too", first)
			continue
		}

		field := clusterIPField(spec, i)
		if i >= len(spec.ClusterIPs) {
			r.warn(field, "", "no %s address is given, the service has none", family)
			continue
		}

		switch a, err := parseUsable(spec.ClusterIPs[i]); {
		case err != nil:
			r.invalid(field, spec.ClusterIPs[i], "%v", err)
		case servicemodel.FamilyOf(a).String() != string(family):
			r.invalid(field, spec.ClusterIPs[i], "must be an %s address, as %s says", family, at)
		default:
			out = append(out, a)
		}
	}

	for i := len(spec.IPFamilies); i < len(spec.ClusterIPs); i++ {
		r.invalid(fmt.Sprintf("spec.clusterIPs[%d]", i), spec.ClusterIPs[i],
			"has no family in spec.ipFamilies")
	}

	return out
}

// clusterIPField names the field of a cluster IP. The first cluster IP is in spec.clusterIP, the
// field that people write.
func clusterIPField(spec *corev1.ServiceSpec, i int) string {
	if i == 0 && len(spec.ClusterIPs) > 0 && spec.ClusterIPs[0] == spec.ClusterIP {
		return "spec.clusterIP"
	}
	return fmt.Sprintf("spec.clusterIPs[%d]", i)
}

func externalIPs(spec *corev1.ServiceSpec, cluster []netip.Addr, r *report) []netip.Addr {
	var out []netip.Addr
	for i, s := range spec.ExternalIPs {
		if strings.TrimSpace(s) == "" {
			continue
		}
		field := fmt.Sprintf("spec.externalIPs[%d]", i)
		switch a, err := parseRoutable(s); {
		case errors.Is(err, errAddr):
			r.skip(field, s, "%v", err)
		case err != nil:
			r.invalid(field, s, "%v", err)
		case hasFamily(a, cluster, field, r) && !slices.Contains(out, a):
			out = append(out, a)
		}
	}

	return out
}

// loadBalancerIPs reads the addresses that the cloud wrote into the status. A bad address makes the
// service invalid only if the tracker is strict, because the author of the service did not write
// that address.
func loadBalancerIPs(ingress []corev1.LoadBalancerIngress, cluster []netip.Addr,
	r *report) []servicemodel.LoadBalancerIP {
	var out []servicemodel.LoadBalancerIP
	for i, in := range ingress {
		if strings.TrimSpace(in.IP) == "" { // a host name only
			continue
		}
		field := fmt.Sprintf("status.loadBalancer.ingress[%d].ip", i)
		a, err := parseUsable(in.IP)
		switch {
		case errors.Is(err, errAddr):
			r.skip(field, in.IP, "%v", err)
			continue
		case err != nil:
			r.warn(field, in.IP, "%v", err)
			continue
		case !hasFamily(a, cluster, field, r):
			continue
		}

		proxy := in.IPMode != nil && *in.IPMode != corev1.LoadBalancerIPModeVIP
		same := func(o servicemodel.LoadBalancerIP) bool { return o.Addr == a }
		switch j := slices.IndexFunc(out, same); {
		case j < 0:
			out = append(out, servicemodel.LoadBalancerIP{Addr: a, Proxy: proxy})
		case !proxy: // one entry without Proxy is enough
			out[j].Proxy = false
		}
	}

	return out
}

// hasFamily reports whether the service has a cluster IP of a's family. The service does not exist
// in other families.
func hasFamily(a netip.Addr, cluster []netip.Addr, field string, r *report) bool {
	family := servicemodel.FamilyOf(a)
	if slices.ContainsFunc(cluster, ofFamily(family)) {
		return true
	}
	r.warn(field, a.String(), "is not used, the service has no %s cluster IP", family)
	return false
}

func ofFamily(f servicemodel.Family) func(netip.Addr) bool {
	return func(a netip.Addr) bool { return servicemodel.FamilyOf(a) == f }
}

func sourceRanges(ranges []string, r *report) []netip.Prefix {
	var out []netip.Prefix
	for i, s := range ranges {
		s = strings.TrimSpace(s)
		if s == "" {
			continue
		}
		p, err := parsePrefix(s)
		if err != nil { // skipping it could leave the service open to all clients
			r.invalid(fmt.Sprintf("spec.loadBalancerSourceRanges[%d]", i), s, "%v", err)
			continue
		}

		out = append(out, p)
	}

	return out
}

func itoa(n int32) string { return strconv.Itoa(int(n)) }
