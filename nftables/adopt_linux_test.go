package nftables

import (
	"context"
	"log/slog"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/servicemodel"
)

// dumpCounter counts the dumps that a connection logs.
type dumpCounter struct {
	slog.Handler
	dumps atomic.Int64
}

func (d *dumpCounter) Enabled(context.Context, slog.Level) bool { return true }

func (d *dumpCounter) Handle(_ context.Context, r slog.Record) error {
	if strings.HasSuffix(r.Message, " dump") {
		d.dumps.Add(1)
	}
	return nil
}

// dumpsOf returns the number of dumps with which a new backend observes the tables, given want.
func dumpsOf(t *testing.T, ns *netnstest.NS, want *servicemodel.Table) (int,
	*backends.Observation) {
	t.Helper()
	b := newBackend(t, ns, nil)
	counter := &dumpCounter{}
	dial(t, b, &rawnl.Config{NetNS: ns.NetNS(), Logger: slog.New(counter)})
	o := ok(b.Observe(t.Context(), want))(t)
	return int(counter.dumps.Load()), o
}

// A reading that finds everything that is wanted dumps no set of services or endpoints. Neither
// does a reading that finds other endpoints or fewer services. If the kernel has unwanted services,
// the reading dumps the small sets that contain them.
func TestAReadingAsksForWhatIsWanted(t *testing.T) {
	t.Parallel()
	ns, b := newNS(t)
	s := manyServices(60)
	e := dataplane.New(b, nil)
	ok(e.Apply(t.Context(), s))(t)
	if !tellsCounts(t, b) {
		t.Skip("the kernel does not say how many elements a set has (Linux 6.16)")
	}
	name := servicemodel.Name{Namespace: "default", Name: "s7"}
	none, _ := dumpsOf(t, ns, mustResolve(t, s))
	require.Positive(t, none, "dumps are counted")
	for _, tc := range []struct {
		what   string
		wanted servicemodel.State
		dumps  int
	}{
		{"another endpoint", s.WithEndpoints(name, tenEndpoints(7, 77)), 0},
		{"a service that is not there", manyServices(61), 0},
		{"an endpoint less", s.WithEndpoints(name, tenEndpoints(7, 10)[:9]), 0},
		{"another class: the set of those with more than 8",
			s.WithEndpoints(name, tenEndpoints(7, 10)[:8]), 1},
	} {
		n, o := dumpsOf(t, ns, mustResolve(t, tc.wanted))
		require.Equal(t, none+tc.dumps, n, tc.what)
		require.False(t, o.Partial, tc.what)
		require.Empty(t, o.Drift, tc.what)
		require.Empty(t, servicemodel.Diff(o.Table, mustResolve(t, s).Arrange(o.Table)).String(),
			tc.what)
	}

	n, o := dumpsOf(t, ns, mustResolve(t, manyServices(59)))
	require.Greater(t, n, none, "a service that nobody wants")
	require.LessOrEqual(t, n, none+4,
		"the sets of frontends, of their classes, of cluster IPs, and of who is "+
			"masqueraded")
	require.Equal(t, 60, o.Table.Len())
	full, _ := dumpsOf(t, ns, nil)
	require.Equal(t, n, full, "the same sets, and endpoints are asked for")
}

// During a slow start, a full reading asks for the present weights. So it makes no more dumps than
// a reading after the slow start.
func TestAReadingDuringASlowStartAsksForPresentWeights(t *testing.T) {
	t.Parallel()
	ns, b := newNS(t)
	counter := &dumpCounter{}
	dial(t, b, &rawnl.Config{NetNS: ns.NetNS(), Logger: slog.New(counter)})
	e := dataplane.New(b, nil)
	dumps := func(s servicemodel.State) int {
		e.Resync()
		before := counter.dumps.Load()
		r := ok(e.Apply(t.Context(), s))(t)
		require.True(t, r.Observed)
		require.Zero(t, r.Stats.Messages, "nothing differs")
		return int(counter.dumps.Load() - before)
	}

	name := servicemodel.Name{Namespace: "default", Name: "s7"}
	s := manyServices(60)
	svc := s.Service(name)
	svc.SlowStart = time.Hour
	s = s.WithService(svc).WithEndpoints(name, tenEndpoints(7, 10)[:1])
	ok(e.Apply(t.Context(), s))(t)
	if !tellsCounts(t, b) {
		t.Skip("the kernel does not say how many elements a set has (Linux 6.16)")
	}
	grown := dumps(s)
	s = s.WithEndpoints(name, tenEndpoints(7, 10)[:2])
	ok(e.Apply(t.Context(), s))(t)
	require.Equal(t, grown, dumps(s))
}

// If another writer commits during a sweep, the sweep leaves the mark to that writer, and does not
// fail.
func TestASweepLeavesTheMarkToWhoCommittedLast(t *testing.T) {
	t.Parallel()
	b := newSweeping(t)
	b.replace(3)
	other := newBackend(t, b.ns, nil)
	o := ok(other.Observe(t.Context(), nil))(t)
	ok(other.Commit(t.Context(),
		servicemodel.Diff(o.Table, mustResolve(t, affinityState(11, 3)).Arrange(o.Table))))(t)
	require.Zero(t, ok(b.Settle(t.Context()))(t))
	require.False(t, b.observed)
	require.Equal(t, backends.Broken, integrity(t, b.backend))
	require.True(t, other.pl.Version.Unswept)
	ok(other.Settle(t.Context()))(t)
	require.False(t, other.pl.Version.Unswept)
}

// The sets for large pools are added with the first large pool. They are removed when the rules are
// rewritten and no large pool is left.
func TestLargePoolsComeAndGo(t *testing.T) {
	t.Parallel()
	ns, b := newNS(t)
	e := dataplane.New(b, nil)
	s := manyServices(3)
	name := servicemodel.Name{Namespace: "default", Name: "s0"}
	local := *s.Service(servicemodel.Name{Namespace: "default", Name: "s1"})
	local.ExternalIPs = []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	local.ExternalTrafficPolicy = servicemodel.PolicyLocal
	for _, step := range []struct {
		endpoints   int
		local, want bool
	}{
		{128, false, false}, {129, false, true}, {3000, false, true}, {128, false, true},
		{128, true, false}, {200, true, true}, {0, true, true}, {0, false, true},
	} {
		var eps []servicemodel.Endpoint
		for i := range step.endpoints {
			eps = append(eps, tenEndpoints(i, 10)[0])
		}
		s = s.WithEndpoints(name, eps)
		if step.local {
			s = s.WithService(&local)
		} else {
			s = s.WithService(manyServices(3).Service(local.Name))
		}

		ok(e.Apply(t.Context(), s))(t)
		r := ok(b.kernel.reader.Table(t.Context(), nft.IPv4, defaultTable))(t)
		require.Equal(t, step.want, r.Has("service-over-128"), "%+v", step)
		require.Equal(t, backends.Intact, integrity(t, b))
		requireAdopts(t, newBackend(t, ns, nil), s, mustResolve(t, s))
	}
}
