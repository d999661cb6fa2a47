package ipvs

import (
	"testing"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/internal/test/road"
)

// TestRoad replaces an endpoint and starts again, on the fake. The census counts the functions that
// run.
func TestRoad(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	road.Walk(t, func() backends.Backend { return r.backend() })
}
