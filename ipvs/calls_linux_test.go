package ipvs

import (
	"testing"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/test/dataplanetest"
	"github.com/kernlb/kernlb/internal/test/ipvsfake"
	"github.com/kernlb/kernlb/internal/test/rawnltest"
	"github.com/kernlb/kernlb/servicemodel"
)

// onFake is the backend on its own fake IPVS. Faults can be injected into its sockets.
func onFake() dataplanetest.FaultyBackend {
	fake := ipvsfake.New()
	open := func(netns int, wrap func(rawnl.Socket) rawnl.Socket) (dataplane.Backend, error) {
		b, err := openOn(fake, Config{NetNS: netns, DrainLimit: -1}, wrap)
		if err != nil {
			return nil, err
		}
		// The number of requests must not depend on the time, nor on the turn of virtual servers.
		b.scrub.share, b.kernel.outlines.read = 0, nil
		return b, nil
	}
	return dataplanetest.FaultyBackend{
		Backend: dataplanetest.Backend{Open: func(netns int) (dataplane.Backend, error) {
			return open(netns, nil)
		}},
		OpenFaulty: func(netns int, f *rawnltest.Faults) (dataplane.Backend, error) {
			return open(netns, func(s rawnl.Socket) rawnl.Socket { return f.Wrap(s) })
		},
		Between: func(*netnstest.NS, []servicemodel.State) error { return nil },
	}
}

// Each call to IPVS and to nf_tables fails once. A failed apply may leave part of its work, because
// IPVS has no transactions. The tests of killed processes show that clients are still treated
// correctly.
func TestEachCallGoesWrong(t *testing.T) {
	t.Parallel()
	dataplanetest.Faulted(t, onFake)
}

func TestBesideACrowd(t *testing.T) {
	t.Parallel()
	dataplanetest.Crowded(t, onFake(), "ip foreign")
}
