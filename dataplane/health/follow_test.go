package health_test

import (
	"encoding/json"
	"errors"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/health"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/internal/test/must"
	"github.com/kernlb/kernlb/servicemodel"
)

// The ports match the services in the kernel after every call of the engine that changes them,
// whether the ports follow the engine from the beginning or from a later time.
func TestPortsFollowAnEngine(t *testing.T) {
	t.Parallel()
	state := func(services ...string) servicemodel.State {
		s := servicemodel.State{}.WithNode(servicemodel.Node{Name: "n1"})
		for i, name := range services {
			ip := netip.AddrFrom4([4]byte{10, 96, 0, byte(1 + i)})
			s = s.WithService(&servicemodel.Service{HealthCheckNodePort: 32000 + uint16(i),
				Name:                  servicemodel.Name{Namespace: "default", Name: name},
				ExternalTrafficPolicy: servicemodel.PolicyLocal, ClusterIPs: []netip.Addr{ip}})
		}

		return s
	}

	one, two := []string{"tcp4 0.0.0.0:32000"}, []string{"tcp4 0.0.0.0:32000", "tcp4 0.0.0.0:32001"}

	e := dataplane.New(memory.New(nil), nil)
	var early, late ports
	follow := func(p *ports) (stop func()) {
		s := health.NewNodePorts(&health.NodePortsConfig{Listen: p.listen})
		t.Cleanup(func() { _ = s.Close() })
		return s.Follow(e, func(err error) { t.Error(err) })
	}

	follow(&early)
	apply := func(services ...string) func() error {
		return func() error { return errOf(e.Apply(t.Context(), state(services...))) }
	}
	var stop func()
	for _, step := range []struct {
		what string
		do   func() error
		want []string
	}{
		{"apply", apply("a"), one},
		{"apply again", apply("a", "b"), two},
		{"nothing changes", apply("a", "b"), two},
		{"switch", func() error {
			return errOf(e.Switch(t.Context(), memory.New(nil)))
		}, two},
		{"cleanup", func() error { return errOf(e.Cleanup(t.Context())) }, nil},
		{"switch, and nothing is wanted", func() error {
			return errOf(e.Switch(t.Context(), memory.New(nil)))
		}, nil},
		{"changes", func() error {
			p, err := e.Plan(t.Context(), state("a"))
			if err != nil {
				return err
			}
			stored, c := must.OK(json.Marshal(p.Changes))(t), &servicemodel.ChangeSet{}
			require.NoError(t, json.Unmarshal(stored, c))
			return errOf(e.ApplyChanges(t.Context(), c))
		}, one},
	} {
		require.NoError(t, step.do(), step.what)
		if stop == nil {
			stop = follow(&late)
		}
		require.Equal(t, step.want, early.addresses(), step.what)
		require.Equal(t, step.want, late.addresses(), step.what)
	}

	stop()
	require.NoError(t, apply("a", "b")())
	require.Equal(t, two, early.addresses())
	require.Equal(t, one, late.addresses(), "nothing follows the engine any more")
}

func TestErrorsOfFollowedPorts(t *testing.T) {
	t.Parallel()
	node := ports{busy: "0.0.0.0:32000"}
	s := health.NewNodePorts(&health.NodePortsConfig{Listen: node.listen})
	defer s.Close()
	e := dataplane.New(memory.New(nil), nil)
	var failed []error
	defer s.Follow(e, func(err error) { failed = append(failed, err) })()
	s.Follow(nil, nil)()
	svc := &servicemodel.Service{Name: web, HealthCheckNodePort: 32000,
		ClusterIPs:            []netip.Addr{netip.MustParseAddr("10.96.0.10")},
		ExternalTrafficPolicy: servicemodel.PolicyLocal}
	require.NoError(t, errOf(e.Apply(t.Context(), servicemodel.State{}.WithService(svc))))
	require.Len(t, failed, 1)
	var listen *health.ListenError
	require.True(t, errors.As(failed[0], &listen))
	require.Equal(t, web, listen.Service)
}

func errOf[T any](_ T, err error) error { return err }
