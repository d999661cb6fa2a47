package ipvs

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/servicemodel"
)

// A state that is too large for one transaction of nf_tables is added, changed and removed in
// parts.
func TestALargeLoadComesInParts(t *testing.T) {
	t.Parallel()
	const services, limit = 1200, 60_000
	state := func(from int) servicemodel.State {
		s := servicemodel.State{}.WithNode(servicemodel.Node{Name: "this"})
		for i := range services {
			svc := &servicemodel.Service{
				Name:       servicemodel.Name{Namespace: "default", Name: fmt.Sprint("s", from+i)},
				ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})},
				Ports:      []servicemodel.ServicePort{{Protocol: servicemodel.TCP, Port: 80}}}
			s = s.WithService(svc).WithEndpoints(svc.Name, []servicemodel.Endpoint{{
				Addr:  netip.AddrFrom4([4]byte{10, 128, byte(i >> 8), byte(i)}),
				Ready: true, Serving: true,
				Ports: []servicemodel.EndpointPort{{Protocol: servicemodel.TCP, Port: 8080}}}})
		}
		return s
	}
	r, b := rigWithBackend(t)
	require.NoError(t, b.kernel.nf.Close())
	b.kernel.nf = ok(rawnl.Dial(&rawnl.Config{NetNS: r.ns.Fd(), Limit: limit}))(t)
	e := dataplane.New(b, nil)
	for i, s := range []servicemodel.State{state(0), state(services / 2),
		servicemodel.State{}.WithNode(state(0).Node()), state(0)} {
		done := applied(t, e, s)
		require.Greater(t, done.Bytes, limit, "state %d", i)
		again := applied(t, r.engine(), s)
		require.True(t, again.Changes.Empty(), "state %d", i)
		require.Zero(t, again.Messages, "state %d", i)
	}
}
