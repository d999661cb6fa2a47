package servicemodel_test

import (
	"cmp"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	sm "github.com/kernlb/kernlb/servicemodel"
)

func TestResolvingStepByStepGivesTheSameAsFromScratch(t *testing.T) {
	t.Parallel()
	r := newSource(t)
	for range 30 {
		s := r.state()
		table := mustResolve(t, nil, s)
		for range 20 {
			next := r.edit(s)
			resolved := mustResolve(t, table, next)
			scratch := mustResolve(t, nil, next)
			requireSame(t, scratch, resolved)
			require.Equal(t, slices.Collect(scratch.Warnings().All()),
				slices.Collect(resolved.Warnings().All()))
			require.Equal(t, scratch.Warnings().Len(), resolved.Warnings().Len())
			s, table = next, resolved
		}
	}
}

// requireSame compares all visible contents of two tables, except the order of slots.
func requireSame(t *testing.T, want, got *sm.Table) {
	t.Helper()
	require.Empty(t, sm.Diff(got, want.Arrange(got)).String())
	require.Equal(t, slices.Collect(want.Frontends()), slices.Collect(got.Frontends()))
	require.Equal(t, slices.Collect(want.Conflicts()), slices.Collect(got.Conflicts()))
	require.Equal(t, slices.Collect(want.HealthChecks()), slices.Collect(got.HealthChecks()))
	for f := range want.Frontends() {
		require.Equal(t, want.FrontendsOf(f.Service), got.FrontendsOf(f.Service))
	}
}

func TestEveryTableIsConsistent(t *testing.T) {
	t.Parallel()
	r := newSource(t)
	for range 100 {
		s := r.state()
		table := mustResolve(t, nil, s)
		pools := map[sm.PoolID]bool{}
		for f := range table.Frontends() {
			require.Contains(t, table.FrontendsOf(f.Service), f)
			for _, v := range []sm.Verdict{f.Internal, f.External} {
				if id, balances := f.Pool(v); balances {
					require.NotNil(t, table.Pool(id))
					pools[id] = true
				}
			}
		}

		var ids []sm.PoolID
		for p := range table.Pools() {
			require.True(t, pools[p.ID], "%v is used", p.ID)
			require.NotEmpty(t, p.Slots)
			seen := map[netip.AddrPort]bool{}
			for _, slot := range p.Slots {
				require.False(t, seen[slot.Endpoint])
				require.Positive(t, slot.Weight)
				require.Equal(t, p.ID.Family, sm.FamilyOf(slot.Endpoint.Addr()))
				seen[slot.Endpoint] = true
			}

			ids = append(ids, p.ID)
		}

		require.True(t, slices.IsSortedFunc(ids, sm.PoolID.Compare))
		require.Equal(t, wantHairpins(s, table), slices.Collect(table.Hairpins()))
		require.Equal(t, wantClusterIPs(s), slices.Collect(table.ClusterIPs()))
	}
}

// wantHairpins computes the hairpins in a simple way.
func wantHairpins(s sm.State, table *sm.Table) []netip.Addr {
	var all []netip.Addr
	for p := range table.Pools() {
		for _, slot := range p.Slots {
			// The first of the best duplicates decides; endpoints of one address that differ in
			// their node would make this ambiguous.
			best := -1
			eps := s.Endpoints(p.ID.Service.Name)
			for i, e := range eps {
				if !serves(s, e, p.ID.Service, slot.Endpoint) {
					continue
				}
				if best < 0 || rank(e) > rank(eps[best]) {
					best = i
				}
			}

			if n := eps[best].Node; n == "" || n == s.Node().Name {
				all = append(all, slot.Endpoint.Addr())
			}
		}
	}

	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}

func serves(s sm.State, e sm.Endpoint, n sm.PortName, at netip.AddrPort) bool {
	usual := uint16(0) // of an endpoint without a port
	for _, p := range s.Service(n.Name).Ports {
		if p.Name == n.Port && p.Protocol == n.Protocol {
			if usual = p.TargetPort; p.EndPort == 0 {
				usual = p.Port
			}
		}
	}

	return e.Addr == at.Addr() && slices.ContainsFunc(e.Ports, func(p sm.EndpointPort) bool {
		return p.Name == n.Port && p.Protocol == n.Protocol && cmp.Or(p.Port, usual) == at.Port()
	})
}

func rank(e sm.Endpoint) int {
	switch e.Condition {
	case sm.Ready:
		return 3
	case sm.Serving:
		return 2
	case sm.Terminating:
		return 0
	}

	return 1
}

func wantClusterIPs(s sm.State) []netip.Addr {
	var all []netip.Addr
	for svc := range s.Services() {
		for _, a := range svc.ClusterIPs {
			only := s.Node().OnlyFamily
			if len(svc.Ports) > 0 && (only == 0 || only == sm.FamilyOf(a)) {
				all = append(all, a)
			}
		}
	}

	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}

func TestApplyingADiffLeadsToTheOtherTable(t *testing.T) {
	t.Parallel()
	r := newSource(t)
	for range 100 {
		a, b := mustResolve(t, nil, r.state()), mustResolve(t, nil, r.state())
		c := sm.Diff(a, b)
		applied := a.Apply(c)
		require.True(t, applied.Equal(b), "%v", c)
		require.True(t, sm.Diff(applied, b).Empty())
		require.Equal(t, a.Equal(b), c.Empty())
		require.Equal(t, c.Empty(), c.String() == "")
		require.Equal(t, c.String(), sm.Diff(a, b).String())
		for f := range b.Frontends() {
			require.Equal(t, b.FrontendsOf(f.Service), applied.FrontendsOf(f.Service))
		}
		for f := range a.Frontends() {
			require.Equal(t, b.FrontendsOf(f.Service), applied.FrontendsOf(f.Service))
		}
		require.True(t, sm.Diff(a, a).Empty())
		back := sm.Diff(b, a)
		require.Equal(t, c.Counts(), sm.Counts{Added: back.Counts().Removed,
			Changed: back.Counts().Changed, Removed: back.Counts().Added})

		var empty *sm.Table
		require.True(t, empty.Apply(sm.Diff(nil, a)).Equal(a))
		require.True(t, a.Apply(sm.Diff(a, nil)).Equal(nil))
	}
}

func TestSlotsChangeNoMoreThanTheyMust(t *testing.T) {
	t.Parallel()
	r := newSource(t)
	id := sm.PoolID{Service: webHTTP, Family: sm.IPv4}
	for range 30 {
		eps := uniqueEndpoints(r, 1+r.IntN(20))
		table := tableOf(t, thisNode, webService(), eps...)
		for round := range 20 {
			next := slices.Clone(eps)
			gone := r.IntN(min(3, len(next)))
			r.Shuffle(len(next), func(i, j int) { next[i], next[j] = next[j], next[i] })
			next = next[gone:]
			fresh := r.IntN(3)
			for i := range fresh {
				next = append(next, endpoint(netip.AddrFrom4([4]byte{10, 65, byte(round), byte(i)}).
					String()))
			}

			resolved := mustResolve(t, table, stateOf(thisNode, webService(), next...))
			changes := sm.Diff(table, resolved).Pools
			slots := 0
			for _, c := range changes {
				require.Equal(t, id, c.New.ID)
				slots += len(slices.Collect(c.New.SlotsSince(c.Old)))
			}

			// New endpoints fill the slots of removed endpoints. If the pool shrinks, a slot is
			// removed and its endpoint fills a hole.
			require.LessOrEqual(t, slots, max(fresh, 2*gone-fresh))
			eps, table = next, resolved
		}
	}
}

func uniqueEndpoints(r source, n int) []sm.Endpoint {
	var eps []sm.Endpoint
	for _, i := range r.Perm(n) {
		eps = append(eps, endpoint(netip.AddrFrom4([4]byte{10, 64, 0, byte(i)}).String()))
	}
	return eps
}

func TestAChangeOfOneServiceSharesAllOthers(t *testing.T) {
	t.Parallel()
	s := benchState(2000, 3)
	table := mustResolve(t, nil, s)
	name := benchName(777)
	changed := benchEndpoints(777, 3)
	changed[1].Addr = ip("10.250.0.1")
	next := mustResolve(t, table, s.WithEndpoints(name, changed))
	c := sm.Diff(table, next)
	require.Equal(t, sm.Counts{Changed: 1}, c.Counts())
	require.Len(t, c.Hairpins, 2)
	require.Equal(t, len(slices.Collect(table.Pools())), len(slices.Collect(next.Pools())))
	for p := range next.Pools() {
		if p.ID.Service.Name != name {
			require.Same(t, table.Pool(p.ID), p)
		}
	}

	for f := range next.Frontends() {
		require.Same(t, table.Frontend(f.Key), f)
	}
}

func TestAChangeOfZoneSharesWhatItDoesNotConcern(t *testing.T) {
	t.Parallel()
	s := benchState(300, 3).WithService(webService()).
		WithEndpoints(web, []sm.Endpoint{endpoint("10.64.0.1", zones("z1")),
			endpoint("10.64.0.2", zones("z2"))})
	n := s.Node()
	n.Zone = "z1"
	table := mustResolve(t, nil, s.WithNode(n))
	n.Zone = "z2"
	next := mustResolve(t, table, s.WithNode(n))
	require.Equal(t,
		"~ pool default/web:http/tcp IPv4 cluster: slot 0: 10.64.0.1:8080 -> 10.64.0.2:8080\n",
		sm.Diff(table, next).String())
	for p := range next.Pools() {
		if p.ID.Service != webHTTP {
			require.Same(t, table.Pool(p.ID), p)
		}
	}
}

func TestNothingChangedReturnsTheSameTable(t *testing.T) {
	t.Parallel()
	r := newSource(t)
	s := r.state().WithService(webService()).WithEndpoints(web,
		[]sm.Endpoint{endpoint("10.64.0.1", zones("a"), nodes("b"))})
	table := mustResolve(t, nil, s)
	nobody := sm.Name{Namespace: "no", Name: "such"}
	again := s.WithService(webService()).WithEndpoints(web,
		[]sm.Endpoint{endpoint("10.64.0.1", zones("a"), nodes("b"))}).
		WithNode(s.Node()).WithoutService(nobody).WithEndpoints(nobody, nil).WithService(nil)
	require.True(t, s.Same(again))
	require.Same(t, table, mustResolve(t, table, again))

	orphan := s.WithEndpoints(nobody, []sm.Endpoint{endpoint("10.64.0.1")})
	require.False(t, s.Same(orphan))
	require.True(t, sm.Diff(table, mustResolve(t, table, orphan)).Empty())
}

func TestResolveFailsJustWhereValidateDoes(t *testing.T) {
	t.Parallel()
	r := newSource(t)
	for range 80 {
		s := r.state()
		table := mustResolve(t, nil, s)
		require.NoError(t, s.Validate())
		bad := r.edit(s)
		n := r.name()
		switch r.IntN(4) {
		case 0:
			svc := r.service(n)
			svc.Scheduler = "fastest"
			bad = bad.WithService(svc)
		case 1:
			bad = bad.WithEndpoints(n, []sm.Endpoint{endpoint("127.0.0.1")})
		case 2:
			node := bad.Node()
			node.MasqueradeMark = 3
			bad = bad.WithNode(node)
		}

		want := bad.Validate()
		for _, prev := range []*sm.Table{nil, table, table.Apply(&sm.ChangeSet{})} {
			got, err := sm.Resolve(prev, bad)
			require.Equal(t, want, err)
			require.Equal(t, err == nil, got != nil)
		}

		var field *sm.FieldError
		require.Equal(t, want != nil, errors.As(want, &field))
	}
}

func TestArrangeKeepsWhatTheOtherHas(t *testing.T) {
	t.Parallel()
	table := tableOf(t, thisNode, webService(), uniqueEndpoints(newSource(t), 5)...)
	p := *table.Pool(sm.PoolID{Service: webHTTP, Family: sm.IPv4})
	p.Slots = slices.Clone(p.Slots)
	slices.Reverse(p.Slots)
	contents := table.Contents()
	contents.Pools = []*sm.Pool{&p}
	found := ok(sm.NewTable(contents))(t)
	require.Len(t, strings.Split(strings.TrimSpace(sm.Diff(found, table).String()), "\n"), 4,
		"all but the middle slot")
	arranged := table.Arrange(found)
	require.True(t, arranged.Equal(found))
	require.False(t, table.Equal(found), "the table itself stays as it is")
	require.Same(t, table, table.Arrange(nil))
	require.Nil(t, (*sm.Table)(nil).Arrange(found))

	// The next resolution keeps the slots of an arranged table.
	s := stateOf(thisNode, webService(), uniqueEndpoints(newSource(t), 5)...)
	next := mustResolve(t, mustResolve(t, nil, s).Arrange(found),
		s.WithEndpoints(web, append(s.Endpoints(web), endpoint("10.65.0.1"))))
	require.Equal(t, "~ pool default/web:http/tcp IPv4 cluster: slot 5: none -> 10.65.0.1:8080\n",
		sm.Diff(found, next).String())
}

func TestTablesMayBeUsedByManyAtOnce(t *testing.T) {
	t.Parallel()
	s := benchState(100, 3)
	table := mustResolve(t, nil, s)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			next, err := sm.Resolve(table, s.WithoutService(benchName(i)))
			if err != nil || len(sm.Diff(table, next).Pools) != 1 {
				t.Errorf("table without service %d: %v, %v", i, err, sm.Diff(table, next))
			}
		})
	}

	all.Wait()
}
