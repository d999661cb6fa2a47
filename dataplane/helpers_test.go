package dataplane_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/internal/test/must"
	"github.com/kernlb/kernlb/servicemodel"
)

// bench is an engine on a backend in memory.
type bench struct {
	*memory.Backend
	engine *dataplane.Engine
}

// newBench returns a new engine and backend on the kernel k, or on a new kernel if k is nil.
func newBench(k *memory.Kernel) *bench {
	m := memory.New(k)
	return &bench{m, dataplane.New(m, nil)}
}

// benchWith returns an engine with a configuration, on a new kernel.
func benchWith(cfg dataplane.Config) *bench {
	m := memory.New(nil)
	return &bench{m, dataplane.New(m, &cfg)}
}

// newLogging returns an engine on a new kernel, and its log.
func newLogging() (*bench, *bytes.Buffer) {
	log := &bytes.Buffer{}
	return benchWith(dataplane.Config{Logger: slog.New(slog.NewTextHandler(log, nil))}), log
}

// refusePort81 is the Check of a backend that cannot express frontends of port 81.
func refusePort81(c *servicemodel.ChangeSet) error {
	var errs []error
	for _, f := range c.Frontends {
		if f.New != nil && f.New.Key.Port == 81 {
			errs = append(errs, &backends.UnsupportedError{Backend: "memory",
				Service: f.New.Service.Name,
				Object:  "service " + f.New.Service.String(), Field: "port", Value: "81",
				Hint: "use 80"})
		}
	}

	return errors.Join(errs...)
}

// refuseIPv6 is the Check of a backend whose kernel lacks IPv6.
func refuseIPv6(c *servicemodel.ChangeSet) error {
	if c.New.Rules().OnlyFamily != 0 {
		return nil
	}
	return &backends.UnsupportedError{Backend: "memory", Object: "node",
		Field: backends.FieldFamily, Value: servicemodel.IPv6.String()}
}

// apply applies a state, which must succeed and leave the kernel with it.
func (b *bench) apply(t *testing.T, s servicemodel.State) *dataplane.Result {
	t.Helper()
	r := ok(b.engine.Apply(t.Context(), s))(t)
	requireHolds(t, b.Kernel(), s)
	return r
}

// status returns the engine's status, addressable.
func (b *bench) status() *dataplane.Status { s := b.engine.Status(); return &s }

// planned returns the change set to a state, as if read from a file.
func planned(t *testing.T, b *bench, s servicemodel.State) *servicemodel.ChangeSet {
	t.Helper()
	p := ok(b.engine.Plan(t.Context(), s))(t)
	return stored(t, p.Changes)
}

// stored returns a change set after storing and reading it.
func stored(t *testing.T, changes *servicemodel.ChangeSet) *servicemodel.ChangeSet {
	t.Helper()
	text := ok(json.Marshal(changes))(t)
	var c servicemodel.ChangeSet
	require.NoError(t, json.Unmarshal(text, &c))
	return &c
}

// requireHolds requires that a kernel holds a state, whatever the order of slots.
func requireHolds(t *testing.T, k *memory.Kernel, s servicemodel.State) {
	t.Helper()
	require.Empty(t, missing(k, s), "what the kernel lacks")
}

// missing returns the difference between a kernel and a state as text.
func missing(k *memory.Kernel, s servicemodel.State) string {
	want, err := servicemodel.Resolve(nil, s)
	if err != nil {
		return err.Error()
	}
	c := servicemodel.Diff(k.Table(), want.Arrange(k.Table()))
	c.Health = nil
	return c.String()
}

// requireCalls requires these numbers of readings and commits since the engine was created.
func (b *bench) requireCalls(t *testing.T, observe, commit int) {
	t.Helper()
	require.Equal(t, observe, b.Calls(memory.CallObserve), "observations")
	require.Equal(t, commit, b.Calls(memory.CallCommit), "commits")
}

func serviceName(i int) servicemodel.Name {
	return servicemodel.Name{Namespace: "default", Name: fmt.Sprintf("svc-%d", i)}
}

func clusterIP(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 96, 0, byte(i)}) }

func frontendKey(i int) servicemodel.FrontendKey {
	return servicemodel.FrontendKey{Addr: clusterIP(i), Protocol: servicemodel.TCP, Port: 80}
}

// service is service i, with one port.
func service(i int) *servicemodel.Service {
	return &servicemodel.Service{
		Name:       serviceName(i),
		ClusterIPs: []netip.Addr{clusterIP(i)},
		Ports: []servicemodel.ServicePort{{Name: "http", Protocol: servicemodel.TCP,
			Port: 80}},
	}
}

// withHealthCheck is service i with a health check node port.
func withHealthCheck(i int) *servicemodel.Service {
	s := service(i)
	s.ExternalTrafficPolicy, s.HealthCheckNodePort = servicemodel.PolicyLocal, 32000
	s.LoadBalancerIPs = []servicemodel.LoadBalancerIP{{Addr: netip.MustParseAddr("203.0.113.10")}}
	return s
}

// endpoints are ready endpoints at 10.244.0.host.
func endpoints(hosts ...byte) []servicemodel.Endpoint {
	var l []servicemodel.Endpoint
	for _, h := range hosts {
		l = append(l, servicemodel.Endpoint{
			Addr: netip.AddrFrom4([4]byte{10, 244, 0, h}),
			Ports: []servicemodel.EndpointPort{{Name: "http", Protocol: servicemodel.TCP,
				Port: 8080}},
		})
	}

	return l
}

// services is a state of services 1 to n, each with two endpoints.
func services(n int) servicemodel.State {
	var s servicemodel.State
	for i := 1; i <= n; i++ {
		s = s.WithService(service(i)).WithEndpoints(serviceName(i),
			endpoints(byte(2*i), byte(2*i+1)))
	}

	return s
}

// slots are the endpoints of service i in the kernel, in the order of their slots.
func slots(k *memory.Kernel, i int) []string {
	var l []string
	for p := range k.Table().Pools() {
		if p.ID.Service.Name == serviceName(i) {
			for _, s := range p.Slots {
				l = append(l, s.Endpoint.Addr().String())
			}
		}
	}

	return l
}

// ok returns what a call returned, which must not have failed: ok(call())(t).
func ok[T any](v T, err error) func(testing.TB) T { return must.OK(v, err) }

// requirePhase requires that a call failed in a phase.
func requirePhase(t *testing.T, want dataplane.Phase, err error) {
	t.Helper()
	var p *dataplane.PhaseError
	require.ErrorAs(t, err, &p, want)
	require.Equal(t, want, p.Phase)
}

// errOf returns the error of a call.
func errOf[T any](_ T, err error) error { return err }

// costless is a backend that takes no time, so that only the engine's time remains.
type costless struct{}

func (costless) Name() string                                        { return "costless" }
func (costless) Check(c *servicemodel.ChangeSet) error               { return refusePort81(c) }
func (costless) Close() error                                        { return nil }
func (costless) Plan(*servicemodel.ChangeSet) (backends.Plan, error) { return nil, nil }

func (costless) Observe(context.Context, *servicemodel.Table) (*backends.Observation, error) {
	return &backends.Observation{}, nil
}

func (costless) Integrity(context.Context) (backends.Integrity, error) {
	return backends.Intact, nil
}

func (costless) Commit(context.Context, *servicemodel.ChangeSet) (backends.Stats, error) {
	return backends.Stats{}, nil
}

func (costless) Cleanup(context.Context) (backends.Stats, error) { return backends.Stats{}, nil }

// inTurns is a backend in memory whose writers take turns.
type inTurns struct {
	*memory.Backend
	turn chan struct{}
}

func (b *inTurns) Lock(ctx context.Context) (func(), error) {
	select {
	case b.turn <- struct{}{}:
		return func() { <-b.turn }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// unsettled returns a function that returns r, whose later work failed.
func unsettled(r *dataplane.Result, err error) func(testing.TB) *dataplane.Result {
	return func(t testing.TB) *dataplane.Result {
		t.Helper()
		require.NoError(t, err)
		require.Error(t, r.Unsettled)
		return r
	}
}
