package nftables

import (
	"testing"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/internal/test/nstest"
	"github.com/kernlb/kernlb/internal/test/road"
)

// TestRoad replaces an endpoint and starts a new engine. The census counts the functions that run.
func TestRoad(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	road.Walk(t, func() backends.Backend { return newBackend(t, ns, nil) })
}
