package dataplane_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/internal/rendering"
	"github.com/kernlb/kernlb/servicemodel"
)

// at81 returns service i at port 81, which refusePort81 refuses.
func at81(i int, change ...func(*servicemodel.Service)) *servicemodel.Service {
	s := service(i)
	s.Ports[0].Port = 81
	for _, f := range change {
		f(s)
	}
	return s
}

// invalid returns service i without a port number.
func invalid(i int) *servicemodel.Service {
	s := service(i)
	s.Ports[0].Port = 0
	return s
}

// requireRefused requires that an apply refuses these services, and that the kernel then holds the
// state without them.
func (b *bench) requireRefused(t *testing.T, s servicemodel.State,
	want ...servicemodel.Name) *dataplane.Result {
	t.Helper()
	r := ok(b.engine.Apply(t.Context(), s))(t)
	var refused []servicemodel.Name
	for _, f := range r.Refused {
		refused = append(refused, f.Service)
		s = s.WithoutService(f.Service).WithEndpoints(f.Service, nil)
	}

	require.Equal(t, want, refused)
	requireHolds(t, b.Kernel(), s)
	return r
}

func TestOneBadServiceHoldsBackNobody(t *testing.T) {
	t.Parallel()
	b := newBench(nil)
	b.Refuse(refusePort81)
	s := services(4)
	b.requireRefused(t, s)

	s = s.WithService(invalid(2)).WithService(at81(3)).WithService(service(5)).WithEndpoints(
		serviceName(5), endpoints(1, 2))
	r := b.requireRefused(t, s, serviceName(2), serviceName(3))
	require.Equal(t, servicemodel.Counts{Added: 1, Removed: 2}, r.Counts,
		"those that were there before are left out, too")
	var field *servicemodel.FieldError
	require.ErrorAs(t, r.Refused[0].Err, &field)
	require.Equal(t, "ports[0].port", field.Field)
	require.ErrorIs(t, r.Refused[1].Err, backends.ErrUnsupported)
	require.Equal(t,
		"default/svc-3: memory cannot express service default/svc-3:http: port: 81 (use 80)",
		r.Refused[1].String())

	p := ok(b.engine.Plan(t.Context(), s.WithEndpoints(serviceName(1), endpoints(9))))(t)
	require.Equal(t, r.Refused, p.Refused)
	require.Equal(t, servicemodel.Counts{Changed: 1, Removed: 1}, p.Changes.Counts())

	r = b.requireRefused(t, s, serviceName(2), serviceName(3))
	require.True(t, r.Changes.Empty())
	restarted := newBench(b.Kernel())
	restarted.Refuse(refusePort81)
	r = restarted.requireRefused(t, s, serviceName(2), serviceName(3))
	require.True(t, r.Changes.Empty(), "what the kernel holds depends on the state alone: %s",
		r.Changes)

	s = s.WithService(service(2))
	r = b.requireRefused(t, s, serviceName(3))
	require.Equal(t, servicemodel.Counts{Added: 1}, r.Counts, "it comes in by itself")
	b.Refuse(nil)
	require.Equal(t, servicemodel.Counts{Added: 1}, b.requireRefused(t, s).Counts,
		"as soon as it can")
	b.requireCalls(t, 1, 4)
}

func TestAServiceIsLeftOutAsAWhole(t *testing.T) {
	t.Parallel()
	b := newBench(nil)
	b.Refuse(refusePort81)
	s := services(2)
	two := service(2)
	two.Ports = append(two.Ports, servicemodel.ServicePort{Name: "b", Protocol: servicemodel.TCP,
		Port: 81},
		servicemodel.ServicePort{Name: "c", Protocol: servicemodel.UDP, Port: 81})
	r := b.requireRefused(t, s.WithService(two), serviceName(2))
	require.Equal(t, 2, strings.Count(r.Refused[0].Err.Error(), "port: 81"),
		"every problem is named: %v", r.Refused[0].Err)
	require.Equal(t, 1, b.Kernel().Table().Len())

	nobody := servicemodel.Name{Namespace: "no", Name: "service"}
	bad := endpoints(1, 2)
	bad[1].Addr = netip.MustParseAddr("127.0.0.1")
	b.requireRefused(t, s.WithEndpoints(nobody, bad).WithEndpoints(serviceName(1), bad),
		serviceName(1), nobody)
}

// Several services claim one address. When a service is left out, the next service is checked.
func TestWhoTakesThePlaceOfARefusedServiceIsChecked(t *testing.T) {
	t.Parallel()
	b := newBench(nil)
	checked := 0
	b.Refuse(func(c *servicemodel.ChangeSet) error {
		checked += len(c.Frontends)
		return refusePort81(c)
	})

	shared := func(s *servicemodel.Service) {
		s.ClusterIPs, s.ExternalIPs = nil, []netip.Addr{clusterIP(200)}
	}
	const n = 60
	s, others := services(n), services(n)
	var chain []servicemodel.Name
	for i := range 9 {
		s = s.WithService(at81(1+i, shared))
		others = others.WithoutService(serviceName(1+i)).WithEndpoints(serviceName(1+i), nil)
		chain = append(chain, serviceName(1+i))
	}

	r := b.requireRefused(t, s, chain...)
	require.Empty(t, r.Conflicts)
	requireHolds(t, b.Kernel(), others)
	require.LessOrEqual(t, checked, n+2*len(chain), "what was checked is not checked again")

	// The last service is good and has the address in the end. The engine knows the kernel's
	// contents there.
	checked = 0
	last := service(50)
	last.ExternalIPs = []netip.Addr{clusterIP(200)}
	last.Ports[0].Port = 82
	first := at81(1, shared)
	first.Ports = append(first.Ports,
		servicemodel.ServicePort{Name: "b", Protocol: servicemodel.TCP, Port: 82})
	b.requireRefused(t, s.WithService(last).WithService(first), chain...)
	key := servicemodel.FrontendKey{Addr: clusterIP(200), Protocol: servicemodel.TCP, Port: 82}
	require.NotNil(t, b.Kernel().Table().Frontend(key))
	require.LessOrEqual(t, checked, 3*len(chain))
}

func TestCollisionsLeaveOutTheirService(t *testing.T) {
	t.Parallel()
	b := newBench(nil)
	b.Refuse(func(c *servicemodel.ChangeSet) error {
		for _, f := range c.Frontends {
			if f.New != nil && f.New.Key == frontendKey(2) {
				return fmt.Errorf("look: %w", &backends.CollisionError{
					Backend: "memory", Service: f.New.Service.Name, Object: f.New.Key.String(),
				})
			}
		}

		return nil
	})

	r := b.requireRefused(t, services(3), serviceName(2))
	require.ErrorIs(t, r.Refused[0].Err, backends.ErrCollision)
	require.ErrorContains(t, r.Refused[0].Err,
		"memory: service default/svc-2: 10.96.0.2:80/tcp is not ours")
}

// A foreign object in the place of the instance is logged once, as long as it is the same.
func TestACollisionOfTheInstanceIsLoggedOnce(t *testing.T) {
	t.Parallel()
	b, log := newLogging()
	for _, object := range []string{"table x", "table x", "table y", "", "table y", "table y"} {
		b.Refuse(func(*servicemodel.ChangeSet) error {
			if object == "" {
				return nil
			}
			return &backends.CollisionError{Backend: "memory", Object: object}
		})
		_, err := b.engine.Apply(t.Context(), services(1+len(object)%2))
		require.Equal(t, object != "", errors.Is(err, backends.ErrCollision))
	}

	require.Equal(t, 1, strings.Count(log.String(), "table x is not ours: remove it"))
	require.Equal(t, 2, strings.Count(log.String(), "table y is not ours: remove it"))
}

func TestWhatIsWrongWithTheNodeRefusesAll(t *testing.T) {
	t.Parallel()
	b := newBench(nil)
	b.requireRefused(t, services(2))
	bad := services(3).WithService(invalid(1)).WithNode(servicemodel.Node{MasqueradeMark: 3})
	_, err := b.engine.Apply(t.Context(), bad)
	require.ErrorContains(t, err, "node: masqueradeMark: 0x3: must be exactly one bit")
	require.ErrorContains(t, err, "service default/svc-1: ports[0].port", "all problems are named")

	for _, problem := range []error{
		&backends.UnsupportedError{Backend: "memory", Object: "node", Field: "localhostNodePorts",
			Value: "true"},
		errors.Join(refused(1), &backends.UnsupportedError{Backend: "memory",
			Service: serviceName(99)}),
		errRefused,
	} {
		b.Refuse(func(*servicemodel.ChangeSet) error { return problem })
		require.ErrorIs(t, errOf(b.engine.Apply(t.Context(), services(3))), problem)
	}

	requireHolds(t, b.Kernel(), services(2))
	b.Refuse(func(*servicemodel.ChangeSet) error { return refused(1) })
	_, err = b.engine.Apply(t.Context(), services(3))
	require.ErrorIs(t, err, backends.ErrUnsupported,
		"it is refused although it is left out: that must end")
}

func TestConflictsAreInTheResult(t *testing.T) {
	t.Parallel()
	b, s := newBench(nil), services(2)
	thief := service(3)
	thief.ExternalIPs = []netip.Addr{clusterIP(1)}
	r := b.requireRefused(t, s.WithService(thief))
	require.Len(t, r.Conflicts, 1)
	require.Equal(t, "10.96.0.1:80/tcp: default/svc-1:http wins over default/svc-3:http",
		r.Conflicts[0].String())
	p := ok(b.engine.Plan(t.Context(), s.WithService(thief)))(t)
	require.Equal(t, r.Conflicts, p.Conflicts)
	require.Empty(t, b.requireRefused(t, s).Conflicts)
}

// A warning is emitted only once while it lasts, and is in the result, the status and the preview.
func TestWarningsAreToldOnce(t *testing.T) {
	t.Parallel()
	b, log := newLogging()
	var told []string
	b.engine.Subscribe(func(_ context.Context, ev dataplane.Event) {
		if w, ok := ev.(dataplane.Warned); ok {
			told = append(told, w.String())
		}
	})

	bare := service(3)
	bare.Ports = nil
	s := services(2).WithService(bare)
	const want = "service default/svc-3: ports: there are none, so the service answers nowhere"
	p := ok(b.engine.Plan(t.Context(), s))(t)
	require.Empty(t, told)
	r := b.apply(t, s)
	for _, warnings := range []servicemodel.Warnings{p.Warnings, r.Warnings, b.status().Warnings} {
		require.Equal(t, 1, warnings.Len())
		require.Contains(t, string(ok(json.Marshal(warnings))(t)), `"kind":"no-address"`)
	}

	require.Contains(t, string(ok(json.Marshal(b.status()))(t)), `"warnings":[{"kind":`)
	require.Contains(t, r.String(), "; 1 warning")
	require.Contains(t, log.String(), `msg="state warning" service=default/svc-3 field=ports `+
		`kind=no-address reason="there are none, so the service answers nowhere"`)
	for range 2 {
		s = s.WithService(service(1))
		require.Equal(t, []string{want}, told)
		require.Equal(t, 1, b.apply(t, s).Warnings.Len())
	}

	require.Zero(t, b.apply(t, services(2)).Warnings.Len())
	b.apply(t, s)
	require.Equal(t, []string{want, want}, told)
	ok(b.engine.Cleanup(t.Context()))(t)
	require.Zero(t, b.status().Warnings.Len())

	parts := dataplane.NewParts(memory.New(nil), nil)
	parts.Subscribe(func(_ context.Context, ev dataplane.Event) {
		if w, ok := ev.(dataplane.Warned); ok {
			told = append(told, w.String())
		}
	})

	p = ok(parts.Plan(t.Context(), "default", s))(t)
	r = ok(parts.Apply(t.Context(), "default", s))(t)
	require.Equal(t, 1, p.Warnings.Len())
	require.Equal(t, 1, r.Warnings.Len())
	require.Equal(t, []string{want, want, want}, told)
}

func TestFlowsAreToldOfWhatIsApplied(t *testing.T) {
	t.Parallel()
	f := &told{}
	b := benchWith(dataplane.Config{Flows: f})
	b.requireRefused(t, services(3).WithService(invalid(2)), serviceName(2))
	require.Len(t, f.states, 1)
	require.True(t, f.states[0].Service(serviceName(2)) == nil &&
		f.states[0].Endpoints(serviceName(2)) == nil)
	require.Equal(t, 2, f.states[0].Len())
}

func TestTheLogTellsOfARefusedServiceOnce(t *testing.T) {
	t.Parallel()
	b, buf := newLogging()
	b.Refuse(refusePort81)
	s := services(3).WithService(at81(2))
	for _, step := range []struct {
		state servicemodel.State
		lines int
	}{
		{s, 1}, {s, 0}, {s.WithService(at81(1)), 1}, {s.WithService(invalid(2)), 1},
		{services(3), 0}, {s, 1},
	} {
		buf.Reset()
		ok(b.engine.Apply(t.Context(), step.state))(t)
		require.Equal(t, step.lines, strings.Count(buf.String(), "service refused"), buf.String())
	}

	require.Contains(t, buf.String(),
		`level=WARN msg="service refused" backend=memory service=default/svc-2 reason="memory `+
			`cannot express`)
	b.Refuse(refuseIPv6)
	buf.Reset()
	ok(b.engine.Apply(t.Context(), services(4)))(t)
	require.Equal(t, 0, strings.Count(buf.String(), "service"), buf.String())
	require.Contains(t, buf.String(),
		`level=WARN msg="address family left out" backend=memory family=IPv6 reason="memory `)
}

// A result says that the kernel was read, even if the reading makes the engine try a missing family
// again.
func TestAFamilyIsAskedAgainAfterAReading(t *testing.T) {
	t.Parallel()
	b := newBench(nil)
	b.Refuse(refuseIPv6)
	apply := func() *dataplane.Result { return ok(b.engine.Apply(t.Context(), services(1)))(t) }
	require.Len(t, apply().Refused, 1)
	r := apply()
	require.False(t, r.Observed)
	require.Len(t, r.Refused, 1)
	b.engine.Resync()
	r = apply()
	require.True(t, r.Observed)
	require.Len(t, r.Refused, 1)
	b.Refuse(nil)
	require.Len(t, apply().Refused, 1, "without a reading it is not asked again")
	b.engine.Resync()
	r = apply()
	require.True(t, r.Observed)
	require.Empty(t, r.Refused)
}

// turns is a backend in memory that counts its turns.
type turns struct {
	*settling
	held, taken int
	err         error
}

func (l *turns) Lock(ctx context.Context) (func(), error) {
	if l.err != nil {
		return nil, l.err
	}
	l.held, l.taken = l.held+1, l.taken+1
	return func() { l.held-- }, context.Cause(ctx)
}

func TestWritersTakeTurns(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		l := &turns{settling: &settling{Backend: memory.New(nil)}}
		e := dataplane.New(l, nil)
		for _, c := range []memory.Call{memory.CallObserve, memory.CallCommit,
			memory.CallCleanup} {
			l.Before(c, func(context.Context) error {
				require.Equal(t, 1, l.held, c)
				return nil
			})
		}

		ok(e.Apply(t.Context(), services(1)))(t)
		require.Equal(t, 2, l.taken, "one for the apply, one for what the backend settles")
		ok(e.Cleanup(t.Context()))(t)
		l.Fail(memory.CallCleanup, 1, errRefused)
		require.ErrorIs(t, errOf(e.Cleanup(t.Context())), errRefused)
		l.Fail(memory.CallCommit, 1, errRefused)
		require.ErrorIs(t, errOf(e.Apply(t.Context(), services(1))), errRefused)
		require.Zero(t, l.held, "no turn outlives its call")

		l.err = errRefused // such as the context's error
		commits := l.Calls(memory.CallCommit)
		require.ErrorIs(t, errOf(e.Apply(t.Context(), services(2))), errRefused)
		require.ErrorIs(t, errOf(e.Cleanup(t.Context())), errRefused)
		require.ErrorIs(t, errOf(e.Settle(t.Context())), errRefused)
		require.Equal(t, commits, l.Calls(memory.CallCommit))
	})
}

func TestProblemsOfAnyError(t *testing.T) {
	t.Parallel()
	field := &servicemodel.FieldError{Service: serviceName(1), Object: "service default/1",
		Field: "scheduler", Value: "x", Reason: "unknown"}
	cannot := &backends.UnsupportedError{Service: serviceName(2), Object: "service default/2",
		Field: backends.FieldScheduler, Value: "lc"}
	collision := &backends.CollisionError{Service: serviceName(3), Object: "chain x"}
	taken := &servicemodel.TakenError{
		Claimant: servicemodel.PortName{Name: serviceName(4), Protocol: servicemodel.TCP},
		Key:      servicemodel.FrontendKey{Protocol: servicemodel.TCP, Port: 80, EndPort: 90},
		Claim:    servicemodel.FrontendKey{Protocol: servicemodel.TCP, Port: 80}}
	other, wrapped := errors.New("other"), fmt.Errorf("commit: %w", errors.New("no luck"))
	twice := fmt.Errorf("%w: %w", dataplane.ErrNotApproved, other)
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
		{fmt.Errorf("%w: %w", dataplane.ErrNotApproved, errors.Join(cannot, field)),
			[]error{dataplane.ErrNotApproved, cannot, field}},
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
		{Service: serviceName(4), Object: taken.Key.String(), Value: taken.Claim.String(),
			Err: taken},
	}, dataplane.Problems(errors.Join(field, cannot, collision, taken)))
}

// withBadEndpoint gives service i an invalid endpoint between two valid endpoints.
func withBadEndpoint(s servicemodel.State, i int) servicemodel.State {
	eps := endpoints(1, 2, 3)
	eps[1].Addr = netip.MustParseAddr("127.0.0.1")
	return s.WithService(service(i)).WithEndpoints(serviceName(i), eps)
}

func TestInvalidEndpointsAreLeftOutAlone(t *testing.T) {
	t.Parallel()
	b := benchWith(dataplane.Config{LeaveOutEndpoints: true})
	b.Refuse(refusePort81)
	s := withBadEndpoint(services(1), 1)
	r := ok(b.engine.Apply(t.Context(), s))(t)
	require.Len(t, r.Refused, 1)
	require.Equal(t, serviceName(1), r.Refused[0].Service)
	require.Equal(t, []int{1}, r.Refused[0].Endpoints)
	require.Equal(t, "endpoints[1].addr", dataplane.Problems(r.Refused[0].Err)[0].Field)
	require.Contains(t, asJSON(t, r.Refused[0]), `"endpoints":[1]`)
	valid := endpoints(1, 3)
	requireHolds(t, b.Kernel(), s.WithEndpoints(serviceName(1), valid))

	// A service with a further problem is refused as a whole.
	for i, svc := range []*servicemodel.Service{invalid(1), at81(1)} {
		r = b.requireRefused(t, s.WithService(svc), serviceName(1))
		require.Empty(t, r.Refused[0].Endpoints)
		require.Len(t, dataplane.Problems(r.Refused[0].Err), 2, "%d: %v", i, r.Refused[0].Err)
	}

	r = ok(dataplane.New(memory.New(nil), nil).Apply(t.Context(), s))(t)
	require.Empty(t, r.Refused[0].Endpoints, "unless it is asked for, the service is left out")
}

// A service counts as refused if one of its invalid endpoints is left out, but a switch does not
// remove the service.
func TestSwitchWithEndpointsLeftOut(t *testing.T) {
	t.Parallel()
	e := dataplane.New(memory.New(nil), &dataplane.Config{LeaveOutEndpoints: true})
	ok(e.Apply(t.Context(), withBadEndpoint(services(1), 1)))(t)
	r := ok(e.Switch(t.Context(), memory.New(nil)))(t)
	require.Len(t, r.Refused, 1)
}

func TestTheTraceNamesServicesThatAreRefused(t *testing.T) {
	t.Parallel()
	b := newBench(nil)
	b.Refuse(refusePort81)
	svc := at81(1, func(s *servicemodel.Service) {
		s.Ports[0].EndPort, s.Ports[0].NodePort = 83, 30081
	})
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
		"192.0.2.1:30083": 1, "192.0.2.1:30084": 0, "192.0.2.1:30080": 0,
		netip.AddrPortFrom(svc.ClusterIPs[0], 83).String(): 1,
		netip.AddrPortFrom(svc.ClusterIPs[0], 84).String(): 0,
		netip.AddrPortFrom(svc.ClusterIPs[0], 80).String(): 0} {
		n := 0
		for _, s := range b.engine.Status().Trace(packet(dst), here).Steps {
			if s.Kind == "refused" {
				n++
			}
		}

		require.Equal(t, want, n, dst)
	}
}

// refuseHeavy is the Check of a backend whose pools have at most this sum of weights.
func refuseHeavy(most int) func(*servicemodel.ChangeSet) error {
	return func(c *servicemodel.ChangeSet) error {
		var errs []error
		for _, p := range c.Pools {
			sum := 0
			for i := 0; p.New != nil && i < len(p.New.Slots); i++ {
				sum += int(p.New.Slots[i].Weight)
			}
			if sum > most {
				errs = append(errs, &backends.UnsupportedError{Backend: "memory",
					Service: p.New.ID.Service.Name, Field: backends.FieldWeights,
					Value: fmt.Sprint(sum)})
			}
		}

		return errors.Join(errs...)
	}
}

// weighted is a state of service 1 with endpoints of these weights. An endpoint of weight 0 does
// not exist, and one of a negative weight is not ready.
func weighted(weights ...int) servicemodel.State {
	var eps []servicemodel.Endpoint
	for i, w := range weights {
		e := endpoints(byte(i + 1))[0]
		e.Weight = uint16(max(w, -w))
		if w < 0 {
			e.Condition = servicemodel.NotReady
		}
		if w != 0 {
			eps = append(eps, e)
		}
	}

	return services(2).WithEndpoints(serviceName(1), eps)
}

// A service whose endpoints the backend refuses is served by the accepted endpoints that still
// exist, and gets its present endpoints as soon as the backend accepts them, even after a restart.
func TestAServiceOfRefusedEndpointsIsKept(t *testing.T) {
	t.Parallel()
	b := benchWith(dataplane.Config{KeepRefused: true})
	b.Refuse(refuseHeavy(100))
	for _, step := range []struct{ wants, holds []int }{
		{[]int{97, 2, -100}, []int{97, 2, -100}},
		{[]int{97, 5}, []int{97, 2}},
		{[]int{97, -5}, []int{97, -5}},
		{[]int{97, 5}, []int{97}}, // the endpoint was not ready when it was accepted
		{[]int{97, 1}, []int{97, 1}},
		{[]int{97, 1, 9}, []int{97, 1}}, // a new endpoint
		{[]int{0, 1, 100}, []int{0, 1}},
		{[]int{97, 7, 100}, []int{97, 1}}, // endpoints that came back
		{[]int{-97, 7, 100}, []int{-97, 1}},
		{[]int{0, 0, 101, 102}, nil},
		{[]int{1, 2, 3}, []int{1, 2, 3}},
	} {
		r := ok(b.engine.Apply(t.Context(), weighted(step.wants...)))(t)
		requireHolds(t, b.Kernel(), weighted(step.holds...))
		require.Equal(t, len(r.Refused) > 0, !slices.Equal(step.wants, step.holds))
		for _, f := range r.Refused {
			require.True(t, f.Kept)
		}
		m := memory.New(b.Kernel())
		m.Refuse(refuseHeavy(100))
		accepted := b.engine.Status().Accepted
		b = &bench{m, dataplane.New(m, &dataplane.Config{KeepRefused: true, Accepted: accepted})}
		require.Equal(t, accepted, b.engine.Status().Accepted, "a program may store it at once")
		again := ok(b.engine.Apply(t.Context(), weighted(step.wants...)))(t)
		require.True(t, again.Changes.Empty(), "after a restart: %v", again.Changes)
	}
}

// An address has an endpoint for each port, as in Kubernetes if pods have different numbers for a
// named port. All ports of the accepted endpoints are kept, whatever the order of the list.
func TestAKeptAddressKeepsAllItsPorts(t *testing.T) {
	t.Parallel()
	svc := service(1)
	svc.Ports = append(svc.Ports, servicemodel.ServicePort{Name: "b", Protocol: servicemodel.TCP,
		Port: 82})
	split := func(weight uint16, hosts ...byte) (eps []servicemodel.Endpoint) {
		for _, e := range endpoints(hosts...) {
			other := e
			other.Ports = []servicemodel.EndpointPort{{Name: "b", Protocol: servicemodel.TCP,
				Port: 8082}}
			e.Weight, other.Weight = weight, weight
			eps = append(eps, e, other)
		}

		return eps
	}

	joined := func(weight uint16, hosts ...byte) []servicemodel.Endpoint {
		eps := endpoints(hosts...)
		for i := range eps {
			eps[i].Weight = weight
			eps[i].Ports = append(eps[i].Ports, split(1, hosts[i])[1].Ports...)
		}

		return eps
	}

	type list = func(uint16, ...byte) []servicemodel.Endpoint
	for _, accepted := range []list{split, joined} {
		for _, present := range []list{split, joined} {
			b := benchWith(dataplane.Config{KeepRefused: true})
			b.Refuse(refuseHeavy(100))
			s := services(2).WithService(svc)
			b.apply(t, s.WithEndpoints(svc.Name, accepted(1, 1, 2)))

			// a weight of 200 next to other endpoints is refused
			heavy := append(present(200, 1), split(1, 3)...)
			r := ok(b.engine.Apply(t.Context(), s.WithEndpoints(svc.Name, heavy)))(t)
			require.True(t, r.Refused[0].Kept)
			requireHolds(t, b.Kernel(), s.WithEndpoints(svc.Name, accepted(1, 1)))
		}
	}
}

// A restarted engine reads the kernel's objects of the old definition of a refused service,
// although its hint was the new definition.
func TestAKeptDefinitionIsReadAfterARestart(t *testing.T) {
	t.Parallel()
	for _, keep := range []bool{true, false} {
		b := newBench(nil)
		b.apply(t, services(3))
		m := memory.New(b.Kernel())
		m.HeedHints(true)
		m.Refuse(refusePort81)
		e := dataplane.New(m, &dataplane.Config{KeepRefused: keep, Accepted: services(3)})
		r := ok(e.Apply(t.Context(), services(3).WithService(at81(3))))(t)
		require.Len(t, r.Refused, 1)
		require.Equal(t, keep, r.Refused[0].Kept, "Accepted has no effect without KeepRefused")
		require.True(t, r.Changes.Empty(), "%v", r.Changes)
		held := services(2)
		if keep {
			held = services(3)
		}
		requireHolds(t, b.Kernel(), held)
	}
}

// A service whose whole weights the backend refuses is refused at once, and not by a later step of
// its slow start.
func TestASlowStartIsRefusedAtItsBeginning(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBench(nil)
		b.Refuse(refuseHeavy(50))
		ok(b.engine.Apply(t.Context(), growing(20*time.Second, 1, 2)))(t)
		r := ok(b.engine.Apply(t.Context(), growing(20*time.Second, 1, 2, 3)))(t)
		require.Len(t, r.Refused, 1)
	})
}

// A scheduler that the backend lacks is refused before endpoints are added, whatever the kernel
// holds: for a new service, for a service that had another scheduler, and after a restart.
func TestASchedulerIsRefusedBeforeEndpointsCome(t *testing.T) {
	t.Parallel()
	b := newBench(nil)
	b.Refuse(func(c *servicemodel.ChangeSet) error {
		return rendering.Check("memory", c, rendering.Abilities{
			Scheduler: func(servicemodel.Scheduler) bool { return false }, AnyOrigins: true})
	})

	idle := servicemodel.State{}.WithService(service(1)).WithService(service(2))
	asks := *service(1)
	asks.Scheduler = servicemodel.LeastConn
	want := idle.WithService(&asks)

	b.requireRefused(t, want, serviceName(1))
	ok(b.engine.Apply(t.Context(), idle))(t)
	p := ok(dataplane.New(b.Backend, nil).Plan(t.Context(), want))(t)
	require.Len(t, p.Refused, 1, "an engine that has only read the kernel")
	b.requireRefused(t, want, serviceName(1))
}
