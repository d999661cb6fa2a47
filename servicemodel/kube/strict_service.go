package kube

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
)

// refuseService reports faults for which an API server would refuse a Service.
func (r *report) refuseService(s *corev1.Service) {
	r.refuseMeta(&s.ObjectMeta, apivalidation.NameIsDNSLabel)
	r.refuseType(s)
	r.refuseServicePorts(&s.Spec)
	r.refuse(metavalidation.ValidateLabels(s.Spec.Selector, asPath("spec.selector")))
	r.refuseFamilies(&s.Spec)
	for i, a := range s.Spec.ExternalIPs {
		r.refuseRoutable(fmt.Sprintf("spec.externalIPs[%d]", i), a)
	}
	r.refuseTraffic(&s.Spec)
	r.refuseLoadBalancer(s)
	mode, hasMode := s.Annotations[corev1.AnnotationTopologyMode]
	hints, hasHints := s.Annotations[corev1.DeprecatedAnnotationTopologyAwareHints]
	r.check(rule{hasMode && hasHints && mode != hints,
		"metadata.annotations[" + corev1.AnnotationTopologyMode + "]", mode,
		"must be the same as that of " + corev1.DeprecatedAnnotationTopologyAwareHints})
}

// refuseType checks the fields of types that have no cluster IP, or must have one.
func (r *report) refuseType(s *corev1.Service) {
	spec := &s.Spec
	headless := spec.ClusterIP == corev1.ClusterIPNone
	if spec.Type != corev1.ServiceTypeExternalName {
		r.check(
			rule{headless && (spec.Type == corev1.ServiceTypeLoadBalancer ||
				spec.Type == corev1.ServiceTypeNodePort), "spec.clusterIP", spec.ClusterIP,
				fmt.Sprintf("is not possible where spec.type is %s", spec.Type)},
			rule{len(spec.Ports) == 0 && !headless, "spec.ports", "",
				"must name at least one port"})
		return
	}

	name := strings.TrimSuffix(spec.ExternalName, ".")
	r.must("spec.externalName", name, validation.IsDNS1123Subdomain(name)...)
	const reason = "may not be given where spec.type is ExternalName"
	r.check(
		rule{spec.ClusterIP != "" || len(spec.ClusterIPs) > 0, "spec.clusterIP", spec.ClusterIP,
			reason},
		rule{len(spec.IPFamilies) > 0, "spec.ipFamilies", "", reason},
		rule{spec.IPFamilyPolicy != nil, "spec.ipFamilyPolicy",
			string(deref(spec.IPFamilyPolicy, "")), reason})
}

func (r *report) refuseServicePorts(spec *corev1.ServiceSpec) {
	for i := range spec.Ports {
		p, at := &spec.Ports[i], fmt.Sprintf("spec.ports[%d].", i)
		switch t := p.TargetPort; {
		case t == intstr.IntOrString{} || t == intstr.FromString(""): // the service port's number
		case t.Type == intstr.String:
			r.must(at+"targetPort", t.StrVal, validation.IsValidPortName(t.StrVal)...)
		default:
			r.must(at+"targetPort", t.String(), validation.IsValidPortNum(t.IntValue())...)
		}

		r.refuseAppProtocol(at, p.AppProtocol)
		if p.NodePort != 0 && (spec.Type == corev1.ServiceTypeClusterIP || spec.Type == "") {
			r.invalid(at+"nodePort", itoa(p.NodePort),
				"may only be given where spec.type is NodePort or LoadBalancer")
		}
	}
}

// refuseFamilies checks cluster IPs and families against each other, and their notation.
func (r *report) refuseFamilies(spec *corev1.ServiceSpec) {
	if spec.Type == corev1.ServiceTypeExternalName {
		return
	}
	for i, a := range spec.ClusterIPs {
		if i > 0 || a != corev1.ClusterIPNone {
			r.refuseAddress(clusterIPField(spec, i), a)
		}
	}

	policy := deref(spec.IPFamilyPolicy, corev1.IPFamilyPolicySingleStack)
	free := spec.ClusterIP == corev1.ClusterIPNone && len(spec.Selector) == 0 &&
		spec.IPFamilyPolicy == nil // RequireDualStack by default
	policies := []corev1.IPFamilyPolicy{corev1.IPFamilyPolicySingleStack,
		corev1.IPFamilyPolicyPreferDualStack, corev1.IPFamilyPolicyRequireDualStack}
	r.check(
		rule{len(spec.ClusterIPs) > 2 ||
			len(spec.ClusterIPs) == 2 && spec.ClusterIPs[0] == corev1.ClusterIPNone,
			"spec.clusterIPs", "", "may hold one address of each family, or None alone"},
		rule{!slices.Contains(policies, policy), "spec.ipFamilyPolicy", string(policy),
			"must be SingleStack, PreferDualStack or RequireDualStack"},
		rule{policy == corev1.IPFamilyPolicySingleStack &&
			(len(spec.ClusterIPs) == 2 || len(spec.IPFamilies) == 2 && !free),
			"spec.ipFamilyPolicy", string(policy),
			"must be PreferDualStack or RequireDualStack where there are two families"})
}

// externallyAccessible is ExternallyAccessible of k8s.io/kubernetes/pkg/api/service.
func externallyAccessible(spec *corev1.ServiceSpec) bool {
	switch spec.Type {
	case corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeNodePort:
		return true
	case corev1.ServiceTypeClusterIP, "":
		return len(spec.ExternalIPs) > 0
	}

	return false
}

// refuseTraffic checks the traffic policies and the fields that depend on them.
func (r *report) refuseTraffic(spec *corev1.ServiceSpec) {
	distributions := []string{corev1.ServiceTrafficDistributionPreferClose,
		corev1.ServiceTrafficDistributionPreferSameZone,
		corev1.ServiceTrafficDistributionPreferSameNode}
	distribution := deref(spec.TrafficDistribution, distributions[0])
	r.check(
		rule{spec.ExternalTrafficPolicy != "" && !externallyAccessible(spec),
			"spec.externalTrafficPolicy", string(spec.ExternalTrafficPolicy),
			"may only be given where spec.type is NodePort or LoadBalancer, or with external IPs"},
		rule{spec.HealthCheckNodePort != 0 && (spec.Type != corev1.ServiceTypeLoadBalancer ||
			spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal),
			"spec.healthCheckNodePort", itoa(spec.HealthCheckNodePort), "may only be given where " +
				"spec.type is LoadBalancer and spec.externalTrafficPolicy is Local"},
		rule{!slices.Contains(distributions, distribution), "spec.trafficDistribution",
			distribution, "must be one of " + strings.Join(distributions, ", ")})
}

// refuseLoadBalancer checks the fields that only load balancers may have.
func (r *report) refuseLoadBalancer(s *corev1.Service) {
	spec, ingress := &s.Spec, s.Status.LoadBalancer.Ingress
	for i, source := range spec.LoadBalancerSourceRanges {
		r.refuse(validation.IsValidCIDRForLegacyField(asPath(fmt.Sprintf(
			"spec.loadBalancerSourceRanges[%d]", i)), strings.TrimSpace(source), true, nil))
	}

	for i, in := range ingress {
		at := fmt.Sprintf("status.loadBalancer.ingress[%d].", i)
		if in.IP != "" {
			r.refuseAddress(at+"ip", in.IP)
		}
		switch mode := deref(in.IPMode, corev1.LoadBalancerIPModeVIP); {
		case in.IPMode != nil && in.IP == "":
			r.invalid(at+"ipMode", string(mode), "may not be given without ip")
		case mode != corev1.LoadBalancerIPModeVIP && mode != corev1.LoadBalancerIPModeProxy:
			r.invalid(at+"ipMode", string(mode), "must be VIP or Proxy")
		}

		if in.Hostname != "" {
			r.must(at+"hostname", in.Hostname, validation.IsDNS1123Subdomain(in.Hostname)...)
		}
		if _, err := parseAddr(in.Hostname); err == nil {
			r.must(at+"hostname", in.Hostname, "must be a name, not an address")
		}
	}

	if class := spec.LoadBalancerClass; class != nil {
		r.must("spec.loadBalancerClass", *class, validation.IsQualifiedName(*class)...)
	}
	if spec.Type == corev1.ServiceTypeLoadBalancer {
		return
	}
	_, ranges := s.Annotations[corev1.AnnotationLoadBalancerSourceRangesKey]
	const reason = "may only be given where spec.type is LoadBalancer"
	r.check(
		rule{len(spec.LoadBalancerSourceRanges) > 0, "spec.loadBalancerSourceRanges", "", reason},
		rule{ranges && len(spec.LoadBalancerSourceRanges) == 0,
			"metadata.annotations[" + corev1.AnnotationLoadBalancerSourceRangesKey + "]", "",
			reason},
		rule{spec.AllocateLoadBalancerNodePorts != nil, "spec.allocateLoadBalancerNodePorts", "",
			reason},
		rule{spec.LoadBalancerClass != nil, "spec.loadBalancerClass", "", reason},
		rule{len(ingress) > 0, "status.loadBalancer.ingress", "", reason})
}
