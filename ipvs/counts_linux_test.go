package ipvs

import (
	"testing"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/test/counts"
)

// The kernel of this test has no real IPVS: an IPVS in memory answers.
func TestCounts(t *testing.T) {
	r := newRig(t)
	counts.Backend(t, Name, func(t *testing.T,
		wrap func(rawnl.Socket) rawnl.Socket) backends.Backend {
		return ok(openOn(r.fake, Config{NetNS: r.ns.NetNS()}, rawnl.Config{Wrap: wrap}))(t)
	})
}
