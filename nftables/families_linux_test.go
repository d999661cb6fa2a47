package nftables

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/test/nstest"
	"github.com/kernlb/kernlb/servicemodel"
)

// dualState is a state with a dual-stack service, on a node that serves one family or both.
func dualState(only servicemodel.Family, endpoint string) servicemodel.State {
	svc := goldenService(func(s *servicemodel.Service) {
		s.ClusterIPs = append(s.ClusterIPs, netip.MustParseAddr("fd00:10:96::10"))
		s.SessionAffinity.ClientIP = true
	})
	node := goldenNode()
	node.OnlyFamily = only
	return servicemodel.State{}.WithNode(node).WithService(svc).WithEndpoints(svc.Name,
		goldenEndpoints("10.244.1."+endpoint, "fd00:10:244::"+endpoint))
}

// requireTables requires that the instance has the tables of exactly these families.
func requireTables(t *testing.T, b *backend, want ...*nft.Family) {
	t.Helper()
	var have []*nft.Family
	for _, f := range nft.Families {
		q := nft.Query{Conn: b.kernel.reader.Conn, Family: f, Table: defaultTable}
		_, exists, err := q.Info(t.Context())
		require.NoError(t, err)
		if exists {
			have = append(have, f)
		}
	}

	require.Equal(t, want, have)
}

// An instance has tables of the families that it serves. When these families change, the version
// continues, and other writers notice.
func TestTheFamiliesOfAnInstanceChange(t *testing.T) {
	t.Parallel()
	ns, b := newNS(t)
	four, six := []*nft.Family{nft.IPv4}, []*nft.Family{nft.IPv6}
	both := []*nft.Family{nft.IPv4, nft.IPv6}
	e, second := dataplane.New(b, nil), newBackend(t, ns, nil)
	other := dataplane.New(second, nil)
	var last servicemodel.Family
	for i, step := range []struct {
		only   servicemodel.Family
		tables []*nft.Family
		home   *nft.Family // of the version
	}{
		{servicemodel.IPv4, four, nft.IPv4}, {0, both, nft.IPv4},
		{servicemodel.IPv6, six, nft.IPv6}, {0, both, nft.IPv6},
		{servicemodel.IPv4, four, nft.IPv4},
		{servicemodel.IPv6, six, nft.IPv6}, {servicemodel.IPv4, four, nft.IPv4},
	} {
		// alternate, so that each writer finds the other writer's changes
		writer, reader := e, second
		if i%2 == 1 {
			writer, reader = other, b
		}
		s := dualState(step.only, "1")
		before := b.pl.Version
		ok(writer.Apply(t.Context(), s))(t)
		requireTables(t, b, step.tables...)
		if reader.observed {
			require.Equal(t, backends.Broken, integrity(t, reader))
			was := mustResolve(t, dualState(last, "2"))
			_, err := reader.Commit(t.Context(), servicemodel.Diff(was,
				mustResolve(t, dualState(last, "3")).Arrange(was)))
			require.ErrorIs(t, err, kernelerr.ErrConflict, "step %d", i)
		}

		requireAdopts(t, newBackend(t, ns, nil), s, mustResolve(t, s))
		v := ok(b.kernel.reader.Version(t.Context(), defaultTable))(t)
		require.Equal(t, step.home, v.Home)
		require.NotEqual(t, before, v)
		for _, only := range []servicemodel.Family{step.only, step.only} {
			ok(writer.Apply(t.Context(), dualState(only, "2")))(t)
		}
		last = step.only
	}

	ok(e.Cleanup(t.Context()))(t)
	requireTables(t, b)
}

// Two writers that create an instance at the same time, each in a different family, both leave a
// version. The next apply replaces the tables, with one version.
func TestTwoVersionsAreNone(t *testing.T) {
	t.Parallel()
	ns, b := newNS(t)
	second := newBackend(t, ns, nil)
	for _, w := range []*backend{b, second} {
		ok(w.Observe(t.Context(), nil))(t)
	}
	four, six := mustResolve(t, dualState(servicemodel.IPv4, "1")),
		mustResolve(t, dualState(servicemodel.IPv6, "1"))
	ok(b.Commit(t.Context(), servicemodel.Diff(nil, four)))(t)
	ok(second.Commit(t.Context(), servicemodel.Diff(nil, six)))(t)
	require.Equal(t, backends.Broken, integrity(t, b))

	s := dualState(0, "1")
	r := ok(dataplane.New(newBackend(t, ns, nil), nil).Apply(t.Context(), s))(t)
	require.Contains(t, strings.Join(r.Drift, "\n"), "the tables have no version")
	requireAdopts(t, newBackend(t, ns, nil), s, mustResolve(t, s))
}

// An instance whose services have addresses of one family has one table, whatever families the node
// serves.
func TestServicesOfOneFamilyNeedOneTable(t *testing.T) {
	t.Parallel()
	for i, f := range nft.Families {
		_, b := newNS(t)
		svc := goldenService(func(s *servicemodel.Service) {
			s.ClusterIPs = []netip.Addr{netip.MustParseAddr([]string{"10.96.0.1", "fd00::1"}[i])}
		})
		node := goldenNode()
		node.ServiceCIDRs = nil
		ok(dataplane.New(b, nil).Apply(t.Context(),
			servicemodel.State{}.WithNode(node).WithService(svc)))(t)
		requireTables(t, b, f)
	}
}

// A kernel that lacked a feature is asked again after a while, because the module may have been
// loaded. A kernel that lacked nothing is not asked again.
func TestAKernelThatLackedSomethingIsAskedAgain(t *testing.T) {
	t.Parallel()
	b, tap := tapped(t, nstest.New(t))
	c := &touched{}
	c.count(tap)
	family, table := nft.Families[0], &b.lacking[0]
	lacked := errors.New("no such module")
	for _, tc := range []struct {
		lacked error
		ago    time.Duration
		asks   bool
	}{{nil, 0, false}, {nil, 2 * probeAgain, false}, {lacked, 0, false},
		{lacked, 2 * probeAgain, true}} {
		*c = touched{}
		table.err, table.probed = tc.lacked, time.Now().Add(-tc.ago)
		err := b.lacks(family)
		require.Equal(t, tc.asks, c.requests > 0, "%v", tc)
		if tc.asks {
			require.NoError(t, err)
			require.WithinDuration(t, time.Now(), table.probed, probeAgain)
		} else {
			require.Equal(t, tc.lacked, err)
		}
	}

	table.probed = time.Time{}
	require.NoError(t, b.lacks(family), "it was never asked")
	require.False(t, table.probed.IsZero())
}
