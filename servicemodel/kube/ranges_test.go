package kube_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/servicemodel/kube"
)

// Packets keep their ports at endpoints with the first port of the range, whatever the order of the
// objects, and as long as the service requests the range.
func TestEndpointsOfARangeKeepThePort(t *testing.T) {
	t.Parallel()
	tracker := kube.NewTracker(&kube.Config{Annotations: "kernlb.io"})
	slice := webSlice("web-1", "10.1.0.1", "10.1.0.2")
	first := *slice.Ports[0].Port
	number := func() (l []uint16) {
		for _, e := range tracker.State().Endpoints(web) {
			l = append(l, e.Ports[0].Port)
		}
		return l
	}

	ranges := patched(webService(), "metadata: {annotations: {kernlb.io/ports: 80-90}}")
	ranges.Spec.Ports[0].Port = 80
	requireNoProblems(t, tracker.SetEndpointSlice(slice))
	requireNoProblems(t, tracker.SetService(ranges))
	require.Equal(t, []uint16{uint16(first), uint16(first)}, number(), "another target port")
	*slice.Ports[0].Port = 80
	requireNoProblems(t, tracker.SetEndpointSlice(slice))
	require.Equal(t, []uint16{0, 0}, number())
	require.NoError(t, tracker.State().Validate())
	requireNoProblems(t, tracker.SetService(webService()))
	require.Equal(t, []uint16{80, 80}, number())
}
