package main

import (
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/kernlb/kernlb/internal/test/peers/serve"
)

// namespace holds all services.
const namespace = "default"

// Ports of services.
const (
	servicePort = 80
	targetPort  = 8080
)

// ports is one port of each protocol.
func ports(protocols ...corev1.Protocol) []corev1.ServicePort {
	var l []corev1.ServicePort
	for _, p := range protocols {
		l = append(l, corev1.ServicePort{Name: strings.ToLower(string(p)), Protocol: p,
			Port: servicePort, TargetPort: intstr.FromInt32(targetPort)})
	}

	return l
}

// newService returns a service with cluster IPs. The family of the first one is the service's first
// family.
func newService(name string, clusterIPs []netip.Addr, ports []corev1.ServicePort) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	s.Spec.Type, s.Spec.Ports = corev1.ServiceTypeClusterIP, ports
	for _, a := range clusterIPs {
		s.Spec.ClusterIPs = append(s.Spec.ClusterIPs, a.String())
		s.Spec.IPFamilies = append(s.Spec.IPFamilies, serve.Family(a.Is4()))
	}

	s.Spec.ClusterIP = s.Spec.ClusterIPs[0]
	policy := corev1.ServiceInternalTrafficPolicyCluster
	s.Spec.InternalTrafficPolicy = &policy
	s.Spec.SessionAffinity = corev1.ServiceAffinityNone
	return s
}

// endpoint is an address that a service may have as an endpoint.
type endpoint struct {
	addr           netip.Addr
	node           string
	ready, serving bool
	terminating    bool
}

// newSlice returns the slice of a service for one family.
func newSlice(service string, is4 bool, ports []corev1.ServicePort,
	endpoints []endpoint) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv6}
	s.ObjectMeta = metav1.ObjectMeta{Namespace: namespace, Name: service + "-6",
		Labels: map[string]string{discoveryv1.LabelServiceName: service}}
	if is4 {
		s.AddressType, s.Name = discoveryv1.AddressTypeIPv4, service+"-4"
	}
	for _, p := range ports {
		port, target := p, int32(targetPort)
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &port.Name,
			Protocol: &port.Protocol, Port: &target})
	}

	for _, e := range endpoints {
		if e.addr.Is4() == is4 {
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{e.addr.String()}, NodeName: &e.node,
				Conditions: discoveryv1.EndpointConditions{Ready: &e.ready, Serving: &e.serving,
					Terminating: &e.terminating},
			})
		}
	}

	return s
}
