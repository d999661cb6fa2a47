package dataplane_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/servicemodel"
)

// A refused service keeps its old definition, with its present endpoints. A service that was never
// accepted is left out.
func TestRefusedServicesAreKept(t *testing.T) {
	t.Parallel()
	m := memory.New(nil)
	m.Refuse(refusePort81)
	e := dataplane.New(m, &dataplane.Config{KeepRefused: true})
	apply := func(s, holds servicemodel.State, kept ...bool) *dataplane.Result {
		t.Helper()
		r := ok(e.Apply(t.Context(), s))(t)
		var got []bool
		for _, f := range r.Refused {
			got = append(got, f.Kept)
		}
		require.Equal(t, kept, got)
		requireHolds(t, m.Kernel(), holds)
		return r
	}
	s := services(4)
	apply(s, s)
	changed := s.WithService(at81(3)).WithService(invalid(2)).WithService(at81(5))
	r := apply(changed, s, true, true, false)
	require.True(t, r.Changes.Empty(), r.Changes)
	apply(changed, s, true, true, false)

	p := ok(e.Plan(t.Context(), changed))(t)
	require.Equal(t, r.Refused, p.Refused)

	changed = changed.WithEndpoints(serviceName(3), endpoints(7, 8))
	s = s.WithEndpoints(serviceName(3), endpoints(7, 8))
	apply(changed, s, true, true, false)

	broken := endpoints(9)
	broken[0].Ports[0].Port = 0
	apply(changed.WithEndpoints(serviceName(3), broken), s, true, true, false)
	apply(s.WithEndpoints(serviceName(1), broken), s, true)

	gone := changed.WithoutService(serviceName(3)).WithoutService(serviceName(5))
	apply(gone, s.WithoutService(serviceName(3)), true)
	apply(gone.WithService(at81(3)), s.WithoutService(serviceName(3)), true, false)

	m.Refuse(nil)
	apply(s, s)
}

// A service whose old definition is no longer accepted is left out.
func TestWhatIsKeptMustBeAccepted(t *testing.T) {
	t.Parallel()
	m := memory.New(nil)
	e := dataplane.New(m, &dataplane.Config{KeepRefused: true})
	s := services(2).WithService(at81(2))
	ok(e.Apply(t.Context(), s))(t)
	m.Refuse(refusePort81)
	e.Resync()
	m.Kernel().Flush()
	r := ok(e.Apply(t.Context(), s))(t)
	require.Len(t, r.Refused, 1)
	require.False(t, r.Refused[0].Kept)
	requireHolds(t, m.Kernel(), s.WithoutService(serviceName(2)))
}

// A definition that is refused for its pools is not taken for accepted while there are no
// endpoints.
func TestADefinitionWithoutEndpointsIsNotAcceptedYet(t *testing.T) {
	t.Parallel()
	m := memory.New(nil)
	m.Refuse(func(c *servicemodel.ChangeSet) error {
		for _, p := range c.Pools {
			if p.New != nil && p.New.Scheduler == servicemodel.LeastConn {
				return &dataplane.UnsupportedError{Backend: "memory",
					Service: p.New.ID.Service.Name, Field: dataplane.FieldScheduler,
					Value: string(p.New.Scheduler)}
			}
		}
		return nil
	})
	e := dataplane.New(m, &dataplane.Config{KeepRefused: true})
	s, name := services(2), serviceName(1)
	asks := service(1)
	asks.Scheduler = servicemodel.LeastConn
	var r *dataplane.Result
	for _, eps := range [][]servicemodel.Endpoint{endpoints(1), nil, nil, endpoints(2), nil,
		endpoints(3)} {
		s = s.WithEndpoints(name, eps)
		wants := s
		if r != nil {
			wants = s.WithService(asks)
		}
		r = ok(e.Apply(t.Context(), wants))(t)
		requireHolds(t, m.Kernel(), s)
		require.NotEqual(t, servicemodel.LeastConn, r.Accepted.Service(name).Scheduler)
	}
	require.Len(t, r.Refused, 1)
	require.True(t, r.Refused[0].Kept)
}
