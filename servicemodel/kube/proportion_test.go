package kube_test

import (
	"testing"

	"github.com/kernlb/kernlb/internal/test/proportion"
)

// The cost of an event does not depend on the number of services.
func TestASliceCostsTheSameBesideManyServices(t *testing.T) {
	proportion.Calls(t, proportion.Cost{}, func(n int) func() {
		tracker, version := filled(n), 0
		return func() {
			version++
			tracker.SetEndpointSlice(sliceOf(n/2, version))
			tracker.State()
			tracker.Triggers()
		}
	})
}
