package kube_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kernlb/kernlb/servicemodel/kube"
)

// filled returns a tracker of n services, each with one slice of 10 endpoints.
func filled(n int) *kube.Tracker {
	tracker := kube.NewTracker(nil)
	for i := range n {
		service := webService()
		service.Name = fmt.Sprintf("web-%05d", i)
		service.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol}
		service.Spec.ClusterIP = fmt.Sprintf("10.96.%d.%d", i/250, 1+i%250)
		service.Spec.ClusterIPs = []string{service.Spec.ClusterIP}
		tracker.SetService(service)
		tracker.SetEndpointSlice(sliceOf(i, 0))
	}

	tracker.State()
	return tracker
}

// sliceOf returns the slice of service i; its first endpoint depends on version.
func sliceOf(i, version int) *discoveryv1.EndpointSlice {
	addresses := []string{fmt.Sprintf("10.2.%d.%d", version/250%250, 1+version%250)}
	for j := range 9 {
		addresses = append(addresses, fmt.Sprintf("10.%d.%d.%d", 3+j, i/250, 1+i%250))
	}
	slice := webSlice(fmt.Sprintf("web-%05d-x", i), addresses...)
	slice.Labels[discoveryv1.LabelServiceName] = fmt.Sprintf("web-%05d", i)
	return slice
}

// BenchmarkOneSlice measures one changed EndpointSlice, from object to state.
func BenchmarkOneSlice(b *testing.B) {
	for _, services := range []int{100, 10_000} {
		b.Run(fmt.Sprintf("services=%d", services), func(b *testing.B) {
			tracker := filled(services)
			var slices []*discoveryv1.EndpointSlice
			for v := range 100 {
				slices = append(slices, sliceOf(services/2, v))
			}
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				tracker.SetEndpointSlice(slices[i%len(slices)])
				tracker.State()
			}
		})
	}
}

// BenchmarkResync measures setting 10,000 services and their slices again, unchanged.
func BenchmarkResync(b *testing.B) {
	const services = 10_000
	tracker := filled(services)
	var slices []*discoveryv1.EndpointSlice
	for i := range services {
		slices = append(slices, sliceOf(i, 0))
	}
	before := tracker.State()
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		for _, s := range slices {
			tracker.SetEndpointSlice(s)
		}
		if !tracker.State().Same(before) {
			b.Fatal("the state changed")
		}
	}
}

// BenchmarkFill measures 10,000 services and slices from nothing, including the creation of the
// objects.
func BenchmarkFill(b *testing.B) {
	b.ReportAllocs()
	for range b.N {
		filled(10_000)
	}
}
