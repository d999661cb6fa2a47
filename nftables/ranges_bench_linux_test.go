package nftables

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/servicemodel"
)

// BenchmarkMappedRange adds and removes a service at a range of 10,000 ports that is mapped to
// another range, and replaces its endpoint.
func BenchmarkMappedRange(b *testing.B) {
	_, backend := newNS(b)
	e := dataplane.New(backend, nil)
	svc := goldenService(func(s *servicemodel.Service) {
		s.Ports[0] = servicemodel.ServicePort{Name: s.Ports[0].Name, Protocol: servicemodel.UDP,
			Port: 10000, EndPort: 19999, TargetPort: 20001}
	})
	state := func(endpoint string) servicemodel.State {
		eps := goldenEndpoints(endpoint)
		eps[0].Ports[0].Protocol, eps[0].Ports[0].Port = servicemodel.UDP, 0
		return servicemodel.State{}.WithService(svc).WithEndpoints(svc.Name, eps)
	}
	apply := func(s servicemodel.State) {
		_, err := e.Apply(b.Context(), s)
		require.NoError(b, err)
	}

	b.Run("come and go", func(b *testing.B) {
		for b.Loop() {
			apply(state("10.244.1.1"))
			apply(servicemodel.State{})
		}
	})
	b.Run("other endpoint", func(b *testing.B) {
		apply(state("10.244.1.1"))
		for b.Loop() {
			apply(state("10.244.1.2"))
			apply(state("10.244.1.1"))
		}
	})
	table, err := servicemodel.Resolve(nil, state("10.244.1.1"))
	require.NoError(b, err)
	b.Run("reading", func(b *testing.B) {
		for b.Loop() {
			_, err := backend.Observe(b.Context(), table)
			require.NoError(b, err)
		}
	})
}
