package memory

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/internal/test/must"
	"github.com/kernlb/kernlb/servicemodel"
)

var errMemory = errors.New("out of memory")

// memoryTable is the table of a service that also has a health check.
func memoryTable(t *testing.T, hosts ...string) *servicemodel.Table {
	t.Helper()
	name := servicemodel.Name{Namespace: "default", Name: "web"}
	var eps []servicemodel.Endpoint
	for _, h := range hosts {
		eps = append(eps, servicemodel.Endpoint{Addr: netip.MustParseAddr(h),
			Node:  "this",
			Ports: []servicemodel.EndpointPort{{Protocol: servicemodel.TCP, Port: 8080}}})
	}

	s := servicemodel.State{}.WithNode(servicemodel.Node{Name: "this"}).WithService(
		&servicemodel.Service{
			Name: name, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")},
			ExternalIPs: []netip.Addr{netip.MustParseAddr("203.0.113.10")},
			Ports: []servicemodel.ServicePort{
				{Protocol: servicemodel.TCP, Port: 80}},
			ExternalTrafficPolicy: servicemodel.PolicyLocal, HealthCheckNodePort: 32000,
		}).WithEndpoints(name, eps)
	table := must.OK(servicemodel.Resolve(nil, s))(t)
	require.NotZero(t, table.Len())
	require.NotEmpty(t, slices.Collect(table.HealthChecks()))
	return table
}

// observed is a backend that has observed the kernel k.
func observed(t *testing.T, k *Kernel) (*Backend, *servicemodel.Table) {
	t.Helper()
	m := New(k)
	o := must.OK(m.Observe(t.Context(), nil))(t)
	return m, o.Table
}

func requireIntegrity(t *testing.T, m *Backend, want backends.Integrity) {
	t.Helper()
	i := must.OK(m.Integrity(t.Context()))(t)
	require.Equal(t, want, i)
}

func TestMemoryHoldsWhatWasCommitted(t *testing.T) {
	t.Parallel()
	k := &Kernel{}
	m, empty := observed(t, k)
	require.Zero(t, empty.Len())
	want := memoryTable(t, "10.244.1.1", "10.244.1.2")
	c := servicemodel.Diff(empty, want)
	p := must.OK(m.Plan(c))(t)
	require.Zero(t, k.Table().Len())
	stats := must.OK(m.Commit(t.Context(), c))(t)
	stats.Duration = 0
	require.Equal(t, p.Stats(), stats)
	requireIntegrity(t, m, backends.Intact)

	_, held := observed(t, k)
	require.True(t, want.Equal(held), "%s", servicemodel.Diff(want, held))
	require.Empty(t, slices.Collect(held.HealthChecks()), "no kernel holds health checks")

	_, err := m.Commit(t.Context(),
		servicemodel.Diff(want, memoryTable(t, "10.244.1.1", "10.244.1.3")))
	require.NoError(t, err, "the table of the last commit, too, is one to begin from")
	require.Equal(t, 2, m.Calls(CallCommit))
	require.Equal(t, 1, m.Calls(CallObserve))
	require.Equal(t, 1, m.Calls(CallPlan))
	require.Zero(t, m.Calls(CallCleanup))
}

func TestMemoryRefusesWhatDoesNotBeginFromWhatItHolds(t *testing.T) {
	t.Parallel()
	k := &Kernel{}
	a, b := memoryTable(t, "10.244.1.1"), memoryTable(t, "10.244.1.2")
	_, err := New(k).Commit(t.Context(), servicemodel.Diff(nil, a))
	require.ErrorContains(t, err, "nothing was observed")

	m, empty := observed(t, k)
	_, err = m.Commit(t.Context(), servicemodel.Diff(b, a))
	require.ErrorContains(t, err, "does not begin from what was last observed")
	require.NotErrorIs(t, err, kernelerr.ErrConflict, "a mistake of the caller is no conflict")
	_, err = m.Commit(t.Context(), servicemodel.Diff(empty, a))
	require.ErrorContains(t, err, "nothing was observed since the start or the last error")
	require.Zero(t, k.Table().Len())
}

// foreignCommits are commits of other programs, and whether they are a conflict.
var foreignCommits = []struct {
	name     string
	foreign  func(*testing.T, *Kernel)
	want     backends.Integrity
	conflict bool
}{
	{"somebody committed something else", func(_ *testing.T, k *Kernel) {
		k.Touch()
	}, backends.Touched, false},
	{"somebody left something", func(_ *testing.T, k *Kernel) {
		k.AddDrift("a chain")
	}, backends.Touched, false},
	{"somebody deleted a frontend", func(t *testing.T, k *Kernel) {
		for f := range k.Table().Frontends() {
			require.True(t, k.Lose(f.Key))
			require.False(t, k.Lose(f.Key))
			return
		}
	}, backends.Touched, false},
	{"somebody deleted everything", func(_ *testing.T, k *Kernel) {
		k.Flush()
	}, backends.Broken, true},
	{"another backend committed", func(t *testing.T, k *Kernel) {
		m, held := observed(t, k)
		must.OK(m.Commit(t.Context(), servicemodel.Diff(held, memoryTable(t, "10.244.1.3"))))(t)
	}, backends.Broken, true},
}

func TestMemoryTellsConflicts(t *testing.T) {
	t.Parallel()
	for _, c := range foreignCommits {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			k := &Kernel{}
			m, empty := observed(t, k)
			a, b := memoryTable(t, "10.244.1.1"), memoryTable(t, "10.244.1.2")
			must.OK(m.Commit(t.Context(), servicemodel.Diff(empty, a)))(t)

			c.foreign(t, k)
			requireIntegrity(t, m, c.want)
			requireIntegrity(t, m, c.want)
			_, err := m.Commit(t.Context(), servicemodel.Diff(a, b))
			require.Equal(t, c.conflict, errors.Is(err, kernelerr.ErrConflict), "%v", err)

			o := must.OK(m.Observe(t.Context(), nil))(t)
			requireIntegrity(t, m, backends.Intact)
			k.Touch()
			_, err = m.Commit(t.Context(), servicemodel.Diff(o.Table, a))
			require.NoError(t, err, "what a neighbour commits is no conflict")
			requireIntegrity(t, m, backends.Touched)
			for f := range a.Frontends() {
				k.Lose(f.Key)
			}
			_, err = m.Commit(t.Context(), servicemodel.Diff(a, nil))
			require.ErrorIs(t, err, kernelerr.ErrConflict, "what is to be removed is not there")
		})
	}
}

func TestMemoryRepairsTheDriftThatItReported(t *testing.T) {
	t.Parallel()
	k := &Kernel{}
	k.AddDrift("first", "second")
	m := New(k)
	o := must.OK(m.Observe(t.Context(), nil))(t)
	require.Equal(t, []string{"first", "second"}, o.Drift)
	k.AddDrift("third")
	requireIntegrity(t, m, backends.Touched)
	none := servicemodel.Diff(o.Table, o.Table)
	p := must.OK(m.Plan(none))(t)
	require.Equal(t, "repair first\nrepair second\n", p.String())
	must.OK(m.Commit(t.Context(), none))(t)
	require.Equal(t, []string{"third"}, k.Drift())

	stats := must.OK(m.Cleanup(t.Context()))(t)
	require.Equal(t, 1, stats.Messages)
	require.Empty(t, k.Drift())
}

func TestMemoryFailsOnDemand(t *testing.T) {
	t.Parallel()
	m, empty := observed(t, nil)
	c := servicemodel.Diff(empty, memoryTable(t, "10.244.1.1"))
	calls := map[Call]func(context.Context) error{
		CallCheck: func(context.Context) error { return m.Check(c) },
		CallObserve: func(ctx context.Context) error {
			_, err := m.Observe(ctx, nil)
			return err
		},
		CallIntegrity: func(ctx context.Context) error { _, err := m.Integrity(ctx); return err },
		CallPlan:      func(context.Context) error { _, err := m.Plan(c); return err },
		CallCommit: func(ctx context.Context) error {
			if _, err := m.Observe(ctx, nil); err != nil {
				return err
			}
			_, err := m.Commit(ctx, servicemodel.Diff(m.Kernel().Table(), m.Kernel().Table()))
			return err
		},
		CallCleanup: func(ctx context.Context) error { _, err := m.Cleanup(ctx); return err },
	}
	fails := func(of Call, call func(context.Context) error) {
		m.Fail(of, 2, errMemory)
		for range 2 {
			err := call(t.Context())
			require.ErrorIs(t, err, errMemory)
			require.ErrorContains(t, err, "memory: "+of.String()+": ")
		}

		require.NoError(t, call(t.Context()))
		m.Before(of, func(context.Context) error { return errMemory })
		require.ErrorIs(t, call(t.Context()), errMemory)
		m.Before(of, nil)
		require.NoError(t, call(t.Context()))
		require.GreaterOrEqual(t, m.Calls(of), 5)
	}

	for of, call := range calls {
		fails(of, call)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("terminated"))
	for _, of := range []Call{CallObserve, CallIntegrity, CallCommit, CallCleanup} {
		require.ErrorIs(t, calls[of](ctx), context.Canceled)
	}
	fails(CallClose, func(context.Context) error { return m.Close() })

	for _, none := range []Call{-1, CallClose + 1} {
		m = New(nil)
		m.Fail(none, 1, errMemory)
		require.ErrorContains(t, calls[CallCheck](t.Context()), "there is no "+none.String())
	}
}

func TestMemoryReadsWhatItIsAskedFor(t *testing.T) {
	t.Parallel()
	k := &Kernel{}
	m, empty := observed(t, k)
	one, two := memoryTable(t, "10.244.1.1"), memoryTable(t, "10.244.1.1", "10.244.1.2")
	must.OK(m.Commit(t.Context(), servicemodel.Diff(empty, two)))(t)
	part := must.OK(servicemodel.NewTable(servicemodel.Contents{Rules: two.Rules(),
		Frontends: slices.Collect(two.Frontends())[:1]}))(t)
	for _, c := range []struct {
		name  string
		heed  bool
		want  *servicemodel.Table
		found int
		rest  bool
	}{
		{"hints are not heeded", false, part, two.Len(), false},
		{"there is none", true, nil, two.Len(), false},
		{"all is wanted", true, two, two.Len(), false},
		{"a pool is wanted otherwise", true, one, two.Len(),
			len(slices.Collect(two.Hairpins())) > len(slices.Collect(one.Hairpins()))},
		{"a part is wanted", true, part, 1, true},
	} {
		m.HeedHints(c.heed)
		o, err := m.Observe(t.Context(), c.want)
		require.NoError(t, err, c.name)
		require.Equal(t, c.found, o.Table.Len(), c.name)
		require.Equal(t, c.rest, o.Partial, c.name)
	}

	k.AddDrift("a chain")
	o := must.OK(m.Observe(t.Context(), two))(t)
	require.Empty(t, o.Drift)
	require.True(t, o.Partial)
}

func TestMemoryRefusesOnDemand(t *testing.T) {
	t.Parallel()
	m := New(nil)
	c := servicemodel.Diff(nil, memoryTable(t, "10.244.1.1"))
	unsupported := &backends.UnsupportedError{Backend: "memory", Object: "service default/web",
		Field: "scheduler", Value: "lc"}
	m.Refuse(func(*servicemodel.ChangeSet) error { return unsupported })
	require.ErrorIs(t, m.Check(c), backends.ErrUnsupported)
	m.Refuse(nil)
	require.NoError(t, m.Check(c))
}
