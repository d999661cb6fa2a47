package dataplanetest

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/servicemodel"
)

// partedServices is the number of services in the states of [InParts].
const partedServices = 1600

// partLimit is how many bytes the sockets of [InParts] can send at once. A state of partedServices
// takes more.
const partLimit = 60_000

// InParts applies states whose transactions are larger than the socket can send: services come,
// change, are replaced by others and go. After each apply, a new process must find the whole state
// and nothing else. open opens a backend whose socket to nf_tables can send limit bytes at once.
func InParts(t *testing.T, under Backend,
	open func(ns *netnstest.NS, limit int) (dataplane.Backend, error)) {
	ns := under.namespace(t)
	b, err := open(ns, partLimit)
	must(t, err)
	t.Cleanup(func() { b.Close() })
	e := dataplane.New(b, nil)
	all, none := partedState(0), servicemodel.State{}.WithNode(thisNode())
	half := none
	for svc := range all.Services() {
		eps := all.Endpoints(svc.Name)
		if svc.Ports[0].Port%2 == 0 {
			other := *svc
			other.Name.Namespace, svc = "new", &other
		}
		half = half.WithService(svc).WithEndpoints(svc.Name, eps)
	}
	for i, s := range []servicemodel.State{all, partedState(1), half, none, all} {
		r, err := e.Apply(t.Context(), s)
		must(t, err)
		if r.Bytes <= partLimit {
			t.Errorf("state %d took only %d bytes", i, r.Bytes)
		}
		fresh, err := under.Open(ns.Fd())
		must(t, err)
		r, err = dataplane.New(fresh, nil).Apply(t.Context(), s)
		must(t, err)
		if len(r.Drift) > 0 || !r.Changes.Empty() || r.Messages > 0 {
			t.Errorf("a new process found state %d otherwise: %v %v", i, r.Drift, r.Changes)
		}
		must(t, fresh.Close())
	}
}

// partedState has many services. Their endpoints depend on shift.
func partedState(shift byte) servicemodel.State {
	s := servicemodel.State{}.WithNode(thisNode())
	for i := range partedServices {
		high, low := byte(i>>8), byte(i)
		svc := &servicemodel.Service{
			Name:       servicemodel.Name{Namespace: "default", Name: fmt.Sprint("s", i)},
			ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, high, low})},
			Ports: []servicemodel.ServicePort{{Protocol: servicemodel.TCP,
				Port: uint16(1 + i)}}}
		ep := servicemodel.Endpoint{Ready: true, Serving: true,
			Addr:  netip.AddrFrom4([4]byte{10, 128 + shift, high, low}),
			Ports: []servicemodel.EndpointPort{{Protocol: servicemodel.TCP, Port: PortA}}}
		s = s.WithService(svc).WithEndpoints(svc.Name, []servicemodel.Endpoint{ep})
	}
	return s
}
