package dataplane_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/servicemodel"
)

// Shares change several times a second, so changes of shares are steps, which neither the log nor
// the page lists.
func TestSharesAloneAreSteps(t *testing.T) {
	t.Parallel()
	e := dataplane.New(memory.New(nil), nil)
	name := servicemodel.Name{Namespace: "default", Name: "web"}
	for _, tt := range []struct {
		shares [2]uint16
		port   uint16
		mark   uint32
		step   bool
	}{{[2]uint16{}, 80, 1, false}, {[2]uint16{32, 32}, 80, 1, true},
		{[2]uint16{33, 31}, 80, 1, true}, {[2]uint16{33, 31}, 81, 1, false},
		{[2]uint16{33, 31}, 81, 1, false}, {[2]uint16{31, 33}, 81, 2, false}} {
		var eps []servicemodel.Endpoint
		for i, share := range tt.shares {
			eps = append(eps, servicemodel.Endpoint{Share: share,
				Addr:  netip.AddrFrom4([4]byte{10, 244, 0, byte(i + 1)}),
				Ports: []servicemodel.EndpointPort{{Protocol: servicemodel.TCP, Port: 8080}}})
		}

		r, err := e.Apply(t.Context(), servicemodel.State{}.WithService(&servicemodel.Service{
			Name: name, Scheduler: servicemodel.LeastConn,
			ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
			Ports:      []servicemodel.ServicePort{{Protocol: servicemodel.TCP, Port: tt.port}}},
		).WithEndpoints(name, eps).WithNode(servicemodel.Node{MasqueradeMark: tt.mark}))
		require.NoError(t, err)
		require.Equal(t, tt.step, r.Step, "%v", tt)
	}
}
