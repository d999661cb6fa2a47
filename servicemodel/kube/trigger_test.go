package kube_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/kernlb/kernlb/servicemodel"
	"github.com/kernlb/kernlb/servicemodel/kube"
)

func TestATrackerTellsWhenChangesWereTriggered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tracker := kube.NewTracker(&kube.Config{Triggers: true})
		silent := kube.NewTracker(nil)
		start := time.Now()
		at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
		slice := func(name string, triggered string) {
			s := webSlice(name, "10.244.0.1")
			s.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: triggered}
			tracker.SetEndpointSlice(s)
			silent.SetEndpointSlice(s)
		}

		triggered := func(seconds int) string { return at(seconds).UTC().Format(time.RFC3339Nano) }
		given := func(want ...time.Time) {
			t.Helper()
			tracker.State()
			got := tracker.Triggers()
			require.Len(t, got, len(want))
			for _, w := range want {
				require.Contains(t, got, w.UTC())
			}
		}

		slice("a", triggered(-1)) // from before the tracker
		slice("b", "yesterday")
		given()
		slice("a", triggered(1))
		slice("a", triggered(2)) // the first change is the oldest
		slice("b", triggered(3))
		require.Empty(t, tracker.Triggers(), "no state has them yet")
		given(at(1), at(3))
		given()
		slice("b", triggered(3)) // a repeated event
		given()
		slice("b", triggered(4))
		tracker.DeleteEndpointSlice(servicemodel.Name{Namespace: "default", Name: "b"})
		given()
		slice("a", triggered(5))
		tracker.State()
		slice("a", triggered(6))
		given(at(5), at(6))
		silent.State()
		require.Empty(t, silent.Triggers())
	})
}
