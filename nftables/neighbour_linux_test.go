package nftables

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	busy "github.com/kernlb/kernlb/internal/test/busywriter"
	"github.com/kernlb/kernlb/servicemodel"
)

// manyServices is a state of n services with ten endpoints each.
func manyServices(n int) servicemodel.State {
	s := servicemodel.State{}
	for i := range n {
		name := servicemodel.Name{Namespace: "default", Name: fmt.Sprint("s", i)}
		svc := &servicemodel.Service{Name: name, Ports: []servicemodel.ServicePort{
			{Protocol: servicemodel.TCP, Port: 80}},
			ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})}}
		s = s.WithService(svc).WithEndpoints(name, tenEndpoints(i, 10))
	}

	return s
}

// tenEndpoints are the endpoints of service i of manyServices. The address of the first endpoint
// begins with 10.first.
func tenEndpoints(i, first int) []servicemodel.Endpoint {
	var l []servicemodel.Endpoint
	for j := range 10 {
		a := [4]byte{10, 128 + byte(j), byte(i >> 8), byte(i)}
		if j == 0 {
			a[1] = byte(first)
		}
		l = append(l, servicemodel.Endpoint{Addr: netip.AddrFrom4(a),
			Ports: []servicemodel.EndpointPort{{Protocol: servicemodel.TCP, Port: 8080}}})
	}

	return l
}

// A neighbour commits all the time. Every apply still succeeds, both in a running program and in a
// new program for each change, and the running program does not read the kernel again and again.
func TestNeighbourThatCommitsWithoutEnd(t *testing.T) {
	t.Parallel()
	ns, b := newNS(t)
	e := dataplane.New(b, nil)
	s := manyServices(1000)
	name := servicemodel.Name{Namespace: "default", Name: "s7"}
	ok(e.Apply(t.Context(), s))(t)
	other := ok(busy.Start(t.Context(), ns.NetNS()))(t)
	observed := 0
	for i := range 200 {
		r := ok(e.Apply(t.Context(), s.WithEndpoints(name, tenEndpoints(7, 11+i%2))))(t)
		if r.Observed {
			observed++
		}
	}

	require.LessOrEqual(t, observed, 3)
	for i := range 10 {
		s = s.WithEndpoints(name, tenEndpoints(7, 20+i))
		r := ok(dataplane.New(newBackend(t, ns, nil), nil).Apply(t.Context(), s))(t)
		require.Empty(t, r.Drift)
		require.Len(t, r.Changes.Pools, 1)
	}

	ok(e.Apply(t.Context(), s))(t)
	other.Close()
	requireAdopts(t, newBackend(t, ns, nil), s, mustResolve(t, s))
}
