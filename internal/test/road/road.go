// Package road takes a backend along the two roads that the census measures.
package road

import (
	"fmt"
	"net/netip"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/servicemodel"
)

// Variable is the environment variable that names the last step of [Walk].
const Variable = "KERNLB_TEST_ROAD"

// The steps of [Walk]. A function belongs to a step if it runs more often in a walk up to the step
// than in a walk up to the previous step.
const (
	Prepared = "prepared" // five services of three endpoints are applied
	Endpoint = "endpoint" // one endpoint of one service is replaced
	Opened   = "opened"   // a second backend is opened
	Started  = "started"  // its engine applies the same state, and finds no difference
)

// Walk takes the steps up to the step that Variable names, or all steps. open opens the same
// instance each time.
func Walk(t *testing.T, open func() backends.Backend) {
	t.Helper()
	last := os.Getenv(Variable)
	engine := dataplane.New(open(), nil)
	s := servicemodel.State{}
	for i := range 5 {
		s = service(s, i, 1)
	}
	apply := func(want servicemodel.Counts) {
		t.Helper()
		r, err := engine.Apply(t.Context(), s)
		require.NoError(t, err)
		require.Equal(t, want, r.Counts)
	}

	apply(servicemodel.Counts{Added: 5})
	if last == Prepared {
		return
	}

	s = service(s, 2, 2)
	apply(servicemodel.Counts{Changed: 1})
	if last == Endpoint {
		return
	}

	engine = dataplane.New(open(), nil)
	if last == Opened {
		return
	}

	apply(servicemodel.Counts{})
}

// service returns s with service i. The address of its first endpoint ends in first.
func service(s servicemodel.State, i, first int) servicemodel.State {
	name := servicemodel.Name{Namespace: "default", Name: fmt.Sprint("web", i)}
	s = s.WithService(&servicemodel.Service{Name: name,
		ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, byte(i + 1)})},
		Ports:      []servicemodel.ServicePort{{Protocol: servicemodel.TCP, Port: 80}}})
	var eps []servicemodel.Endpoint
	for _, last := range []int{first, 10, 20} {
		eps = append(eps, servicemodel.Endpoint{
			Addr:  netip.AddrFrom4([4]byte{10, 244, byte(i), byte(last)}),
			Ports: []servicemodel.EndpointPort{{Protocol: servicemodel.TCP, Port: 8080}}})
	}

	return s.WithEndpoints(name, eps)
}
