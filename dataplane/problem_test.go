package dataplane_test

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/servicemodel"
)

func TestProblemsOfAnyError(t *testing.T) {
	t.Parallel()
	field := &servicemodel.FieldError{Service: serviceName(1), Object: "service default/1",
		Field: "scheduler", Value: "x", Reason: "unknown"}
	cannot := &dataplane.UnsupportedError{Service: serviceName(2), Object: "service default/2",
		Field: dataplane.FieldScheduler, Value: "lc"}
	collision := &dataplane.CollisionError{Service: serviceName(3), Object: "chain x"}
	taken := &servicemodel.TakenError{
		Claimant: servicemodel.PortName{Name: serviceName(4), Protocol: servicemodel.TCP},
		Key:      servicemodel.FrontendKey{Protocol: servicemodel.TCP, Port: 80}}
	other, wrapped := errors.New("other"), fmt.Errorf("commit: %w", errors.New("no luck"))
	twice := fmt.Errorf("%w: %w", dataplane.ErrUnsettled, other)
	for _, tt := range []struct {
		err  error
		want []error
	}{
		{nil, nil},
		{other, []error{other}},
		{wrapped, []error{wrapped}},
		{twice, []error{twice}},
		{field, []error{field}},
		{errors.Join(field, errors.Join(cannot, collision), taken, other),
			[]error{field, cannot, collision, taken, other}},
		{&dataplane.PhaseError{Err: fmt.Errorf("apply: %w", errors.Join(other, wrapped))},
			[]error{other, wrapped}},
		{fmt.Errorf("%w: %w", dataplane.ErrUnsettled, errors.Join(cannot, field)),
			[]error{dataplane.ErrUnsettled, cannot, field}},
		{fmt.Errorf("service lost: %w", cannot), []error{cannot}},
	} {
		var got []error
		for _, p := range dataplane.Problems(tt.err) {
			got = append(got, p.Err)
		}
		require.Equal(t, tt.want, got, "%v", tt.err)
	}
	require.Equal(t, []dataplane.Problem{
		{Service: serviceName(1), Object: "service default/1", Field: "scheduler", Value: "x",
			Err: field},
		{Service: serviceName(2), Object: "service default/2", Field: "scheduler", Value: "lc",
			Err: cannot},
		{Service: serviceName(3), Object: "chain x", Err: collision},
		{Service: serviceName(4), Object: taken.Key.String(), Err: taken},
	}, dataplane.Problems(errors.Join(field, cannot, collision, taken)))
}

// withBadEndpoint gives service i an invalid endpoint between two valid ones.
func withBadEndpoint(s servicemodel.State, i int) servicemodel.State {
	eps := endpoints(1, 2, 3)
	eps[1].Addr = netip.MustParseAddr("127.0.0.1")
	return s.WithService(service(i)).WithEndpoints(serviceName(i), eps)
}

func TestInvalidEndpointsAreLeftOutAlone(t *testing.T) {
	t.Parallel()
	m := memory.New(nil)
	m.Refuse(refusePort81)
	e := dataplane.New(m, &dataplane.Config{LeaveOutEndpoints: true})
	s := withBadEndpoint(services(1), 1)
	r := ok(e.Apply(t.Context(), s))(t)
	require.Len(t, r.Refused, 1)
	require.Equal(t, serviceName(1), r.Refused[0].Service)
	require.Equal(t, []int{1}, r.Refused[0].Endpoints)
	require.Equal(t, "endpoints[1].addr", dataplane.Problems(r.Refused[0].Err)[0].Field)
	require.Contains(t, asJSON(t, r.Refused[0]), `"endpoints":[1]`)
	valid := endpoints(1, 3)
	requireHolds(t, m.Kernel(), s.WithEndpoints(serviceName(1), valid))

	// A service that has another problem, too, is refused as a whole.
	for i, svc := range []*servicemodel.Service{invalid(1), at81(1)} {
		r = ok(e.Apply(t.Context(), s.WithService(svc)))(t)
		require.Len(t, r.Refused, 1)
		require.Empty(t, r.Refused[0].Endpoints)
		require.Len(t, dataplane.Problems(r.Refused[0].Err), 2, "%d: %v", i, r.Refused[0].Err)
		requireHolds(t, m.Kernel(), services(1).WithoutService(serviceName(1)))
	}

	r = ok(dataplane.New(memory.New(nil), nil).Apply(t.Context(), s))(t)
	require.Empty(t, r.Refused[0].Endpoints, "unless it is asked for, the service is left out")
}

// A service counts as refused if an invalid endpoint of it is left out, but a switch does not
// remove the service.
func TestSwitchWithEndpointsLeftOut(t *testing.T) {
	t.Parallel()
	e := dataplane.New(memory.New(nil), &dataplane.Config{LeaveOutEndpoints: true})
	ok(e.Apply(t.Context(), withBadEndpoint(services(1), 1)))(t)
	r := ok(e.Switch(t.Context(), memory.New(nil), nil))(t)
	require.Len(t, r.Refused, 1)
}

func TestTheTraceNamesServicesThatAreRefused(t *testing.T) {
	t.Parallel()
	b := newBench(nil)
	b.Refuse(refusePort81)
	svc := at81(1, func(s *servicemodel.Service) { s.Ports[0].NodePort = 30081 })
	ok(b.engine.Apply(t.Context(), services(1).WithService(svc)))(t)
	here := servicemodel.Locality{netip.MustParseAddr("192.0.2.1")}
	packet := func(dst string) servicemodel.Packet {
		return servicemodel.Packet{Src: netip.MustParseAddrPort("10.244.9.9:40000"),
			Dst: netip.MustParseAddrPort(dst), Protocol: servicemodel.TCP}
	}
	cluster := netip.AddrPortFrom(svc.ClusterIPs[0], 81).String()
	trace := b.engine.Status().Trace(packet(cluster), here)
	require.Equal(t, []servicemodel.Step{
		{Kind: "refused", Text: "default/svc-1 has " + cluster + ", but is refused: " +
			"memory cannot express service default/svc-1:http: port: 81 (use 80)"},
		{Kind: "outcome", Text: "untouched: the service that has " + cluster +
			" is refused"},
	}, trace.Steps[1:])
	for dst, want := range map[string]int{"192.0.2.1:30081": 1, "192.0.2.2:30081": 0,
		netip.AddrPortFrom(svc.ClusterIPs[0], 82).String(): 0} {
		n := 0
		for _, s := range b.engine.Status().Trace(packet(dst), here).Steps {
			if s.Kind == "refused" {
				n++
			}
		}
		require.Equal(t, want, n, dst)
	}
}
