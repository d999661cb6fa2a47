package dataplanetest

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/dataplanetest/scenario"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/servicemodel"
)

// partedServices is the number of services in the states of [inParts].
const partedServices = 1600

// partLimit is the number of bytes that the sockets of [inParts] can send at once. A state of
// partedServices services takes more.
const partLimit = 60_000

// inParts applies states whose transactions are larger than the socket can send: services are
// added, changed, replaced by other services, and removed. After each apply, a new process must
// find the whole state and nothing else.
func inParts(t *testing.T, under FaultyBackend) {
	ns := under.namespace(t)
	c := rawnl.Config{NetNS: ns.NetNS(), Limit: partLimit, Wrap: func(s rawnl.Socket) rawnl.Socket {
		return &sized{s, t}
	}}
	e := dataplane.New(opened(under.OpenWith(c))(t), nil)
	all, none := manyServices(partedServices, 1, 0), servicemodel.State{}.WithNode(thisNode())
	half := none
	for svc := range all.Services() {
		eps := all.Endpoints(svc.Name)
		if svc.Ports[0].Port%2 == 0 {
			other := *svc
			other.Name.Namespace, svc = "new", &other
		}

		half = half.WithService(svc).WithEndpoints(svc.Name, eps)
	}

	moved := manyServices(partedServices, 1, partedServices)
	for i, s := range []servicemodel.State{all, moved, half, none, all} {
		r := ok(settled(e.Apply(t.Context(), s)))(t)
		if r.Stats.Bytes <= partLimit {
			t.Errorf("state %d took only %d bytes", i, r.Stats.Bytes)
		}
		fresh := ok(under.Open(ns.NetNS()))(t)
		r = ok(settled(dataplane.New(fresh, nil).Apply(t.Context(), s)))(t)
		if len(r.Drift) > 0 || !r.Changes.Empty() || r.Stats.Messages > 0 {
			t.Errorf("a new process found state %d otherwise: %v %v", i, r.Drift, r.Changes)
		}
		must(t, fresh.Close())
	}
}

// sized is a socket that must send at most partLimit bytes at once.
type sized struct {
	rawnl.Socket
	t *testing.T
}

func (s *sized) Send(p []byte) error {
	if len(p) > partLimit {
		s.t.Errorf("%d bytes are sent at once", len(p))
	}
	return s.Socket.Send(p)
}

// manyServices has n services with the same number of endpoints, where nothing listens. The address
// of endpoint j of service i depends on the shift.
func manyServices(n, endpoints, shift int) servicemodel.State {
	s := servicemodel.State{}.WithNode(thisNode())
	for i := range n {
		svc := &servicemodel.Service{Name: manyName(i),
			ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 98, byte(i >> 8), byte(i)})},
			Ports: []servicemodel.ServicePort{{Protocol: servicemodel.TCP,
				Port: uint16(1 + i)}}}
		var l []servicemodel.Endpoint
		for j := range endpoints {
			l = append(l, nowhere(shift+i*endpoints+j))
		}
		s = and(s, svc, l)
	}

	return s
}

func manyName(i int) servicemodel.Name {
	return servicemodel.Name{Namespace: "default", Name: fmt.Sprint("s", i)}
}

// nowhere is an endpoint where nothing listens.
func nowhere(i int) servicemodel.Endpoint {
	return servicemodel.Endpoint{
		Addr:  netip.AddrFrom4([4]byte{11, byte(i >> 16), byte(i >> 8), byte(i)}),
		Ports: []servicemodel.EndpointPort{{Protocol: servicemodel.TCP, Port: scenario.PortA}}}
}
