package manifest

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// An API server fills in fields of new objects (SetDefaults in
// k8s.io/kubernetes/pkg/apis/…/v1/defaults.go, and the cluster IP fields in
// pkg/registry/core/service). These functions fill in only fields that matter: for most fields, the
// tracker and kube-proxy treat an empty value as the default.

// defaultNamespace sets the namespace of an object that has none.
func defaultNamespace(m *metav1.ObjectMeta) {
	if m.Namespace == "" {
		m.Namespace = metav1.NamespaceDefault
	}
}

// defaultService derives the lists of cluster IPs and families from the single cluster IP.
func defaultService(s *corev1.Service) {
	defaultNamespace(&s.ObjectMeta)
	spec := &s.Spec
	if spec.ClusterIP == "" || spec.ClusterIP == corev1.ClusterIPNone {
		return
	}
	if len(spec.ClusterIPs) == 0 {
		spec.ClusterIPs = []string{spec.ClusterIP}
	}
	if len(spec.IPFamilies) == 0 {
		for _, ip := range spec.ClusterIPs {
			family := corev1.IPv4Protocol
			if strings.Contains(ip, ":") {
				family = corev1.IPv6Protocol
			}
			spec.IPFamilies = append(spec.IPFamilies, family)
		}
	}
}

// defaultSlice gives ports without a name the empty name.
func defaultSlice(s *discoveryv1.EndpointSlice) {
	defaultNamespace(&s.ObjectMeta)
	for i := range s.Ports {
		if s.Ports[i].Name == nil {
			s.Ports[i].Name = new(string)
		}
	}
}
