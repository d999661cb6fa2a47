package kube_test

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kernlb/kernlb/servicemodel"
	"github.com/kernlb/kernlb/servicemodel/kube"
)

// A program passes objects to a tracker in any order. The tracker leaves out services that are not
// proxied.
func ExampleTracker() {
	tracker := kube.NewTracker(&kube.Config{Node: servicemodel.Node{Name: "node-a"}})

	name, port := "http", int32(8080)
	tracker.SetEndpointSlice(&discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "web-x7k2p", Labels: map[string]string{
				discoveryv1.LabelServiceName: "web"},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.1.0.1"}},
			{Addresses: []string{"10.1.0.2"}}},
	})
	tracker.SetService(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.10", Ports: []corev1.ServicePort{
			{Name: "http", Port: 80}}},
	})
	tracker.SetService(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "headless"},
		Spec:       corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone},
	})

	state := tracker.State()
	for service := range state.Services() {
		fmt.Println(service.Name, service.ClusterIPs, len(state.Endpoints(service.Name)),
			"endpoints")
	}
	// Output: default/web [10.96.0.10] 2 endpoints
}

// The tracker leaves out and reports an invalid object. Other objects are not affected.
func ExampleTracker_Problems() {
	tracker := kube.NewTracker(nil)
	for name, port := range map[string]int32{"web": 80, "broken": 0} {
		tracker.SetService(&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
			Spec: corev1.ServiceSpec{
				ClusterIP: "10.96.0.10", ExternalIPs: []string{"192.0.2.256"},
				Ports: []corev1.ServicePort{{Port: port}},
			},
		})
	}

	for _, p := range tracker.Problems() {
		fmt.Println(p.Severity(), "in", p)
	}
	fmt.Println(tracker.State().Len(), "service")
	// Output:
	// error in Service default/broken: spec.ports[0].port: 0: must be between 1 and 65535
	// warning in Service default/broken: spec.externalIPs[0]: 192.0.2.256: not an IP address
	// warning in Service default/web: spec.externalIPs[0]: 192.0.2.256: not an IP address
	// 1 service
}
