package nftables

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/wait"
	"github.com/kernlb/kernlb/nftables/internal/form"
	"github.com/kernlb/kernlb/nftables/internal/plan"
	"github.com/kernlb/kernlb/servicemodel"
)

// endpointsOfClients counts the clients that each endpoint was given.
func endpointsOfClients(t *testing.T, b *backend) map[string]int {
	t.Helper()
	n := map[string]int{}
	for i := range form.AffinityMaps {
		seen := map[string]bool{}
		err := b.kernel.reader.About(nft.IPv4, defaultTable).Elements(t.Context(),
			form.AffinityMap(form.GroupClients, i),
			func(e nft.Elem) error {
				if d := (nft.Reader{Bytes: e.Data}); !seen[string(e.Key)] {
					seen[string(e.Key)] = true
					n[d.Endpoint(4).Addr().String()]++
				}

				return nil
			})
		require.NoError(t, err)
	}

	return n
}

// A process ends before its sweep. The next process finds the desired state, learns of the sweep
// from the mark of the version, and does the sweep.
func TestASweepThatWasInterruptedIsEnded(t *testing.T) {
	t.Parallel()
	s := newSweeping(t)
	s.replace(3)
	require.Equal(t, 100, endpointsOfClients(t, s.backend)["10.244.0.4"], "it is not settled")

	next := newBackend(t, s.ns, nil)
	e := dataplane.New(next, nil)
	o := ok(e.Observe(t.Context()))(t)
	require.Empty(t, o.Drift)
	require.True(t, next.pl.Version.Unswept)
	r := ok(e.Apply(t.Context(), affinityState(10, 3)))(t)
	require.True(t, r.Changes.Empty())
	require.Zero(t, r.Settle)
	left := endpointsOfClients(t, next)
	require.Zero(t, left["10.244.0.4"])
	require.Len(t, left, 9)
	for endpoint, n := range left {
		require.Equal(t, 100, n, "clients of %s stay", endpoint)
	}
	require.False(t, next.pl.Version.Unswept)
	last := newBackend(t, s.ns, nil)
	ok(last.Observe(t.Context(), nil))(t)
	require.Equal(t, next.pl.Version, last.pl.Version, "the mark is gone")
	require.Zero(t, ok(last.Settle(t.Context()))(t))
	require.Equal(t, next.pl.Version, last.pl.Version, "and nothing is left to do")

	r = ok(e.Apply(t.Context(), affinityState(11, 3)))(t)
	require.Equal(t, left, endpointsOfClients(t, next), "an endpoint more moves nobody")
	require.Less(t, r.Stats.Elements, 10)
	ok(e.Apply(t.Context(), affinityState(11, 3).WithoutService(
		servicemodel.Name{Namespace: "default", Name: "sticky"})))(t)
	require.False(t, next.pl.Version.Unswept, "the service is gone, and the maps are empty")
	require.Empty(t, endpointsOfClients(t, next))
}

// A sweep after two commits forgets the clients of both.
func TestASweepIsOfAllCommitsBefore(t *testing.T) {
	t.Parallel()
	s := newSweeping(t)
	s.replace(3)
	s.replace(5)
	ok(s.Settle(t.Context()))(t)
	left := endpointsOfClients(t, s.backend)
	require.Zero(t, left["10.244.0.6"], "5 is replaced now")
	require.Zero(t, left["10.244.1.4"])
	require.Equal(t, 100, left["10.244.0.1"])
}

// A sweep succeeds even if entries expire while it deletes them.
func TestEntriesMayExpireWhileTheyAreForgotten(t *testing.T) {
	t.Parallel()
	_, b := newNS(t)
	e := dataplane.New(b, nil)
	ok(e.Apply(t.Context(), affinityState(10, -1)))(t)
	rememberClientsFor(t, b, 5000, 10, func(i int) time.Duration {
		return time.Duration(1+i%200) * time.Millisecond
	})
	ok(e.Apply(t.Context(), affinityState(10, 3)))(t)
	require.Zero(t, endpointsOfClients(t, b)["10.244.0.4"])

	rememberClients(t, b, 10, 10)
	keys := [][]byte{[]byte("too short")}
	require.Error(t, b.forgetClients(t.Context(), nft.IPv4, form.AffinityMap(form.GroupClients, 0),
		keys),
		"what is no expired entry is an error")
	require.NoError(t, b.forgetClients(t.Context(), nft.IPv4,
		form.AffinityMap(form.GroupClients, 0), nil))
}

// A sweep of some changes, and a sweep of unknown changes, delete these entries.
func TestSweeps(t *testing.T) {
	t.Parallel()
	table := mustResolve(t, editedState().WithEndpoints(goldenService().Name,
		append(goldenEndpoints("10.244.1.1", "10.244.1.2"),
			servicemodel.Endpoint{Addr: netip.MustParseAddr("10.244.2.1"),
				Node: "other",
				Ports: []servicemodel.EndpointPort{{Name: "http", Protocol: servicemodel.TCP,
					Port: 8080}}})))
	entry := func(dst, endpoint string) nft.Elem {
		key := nft.AppendAddr(nil, netip.MustParseAddr("192.0.2.99"))
		return nft.Elem{Key: nft.AppendFrontend(key, tcpKey(dst)),
			Data: nft.AppendEndpoint(nil, netip.MustParseAddrPort(endpoint))}
	}

	fe := func(dst string) *servicemodel.Frontend {
		f := table.Frontend(tcpKey(dst))
		require.NotNil(t, f, dst)
		return f
	}

	const clusterIP, loadBalancer, nodePort = "10.96.0.10:80", "203.0.113.10:80", "192.0.2.10:30080"
	at := netip.MustParseAddrPort
	some := plan.NewSweep(nil).After(&plan.Plan{Changes: &servicemodel.ChangeSet{New: table},
		Forget: []plan.Forget{
			{Frontend: fe(clusterIP), Lost: [2][]netip.AddrPort{{at("10.244.9.9:8080"),
				at("10.244.1.1:8080")}}},
			{Frontend: fe(loadBalancer), Lost: [2][]netip.AddrPort{{at("10.244.2.1:8080")},
				{at("10.244.9.8:8080")}}},
			{Frontend: fe(loadBalancer), Lost: [2][]netip.AddrPort{nil, {at("10.244.9.9:8080")}}},
			plan.ForgetAll(fe("0.0.0.0:30080")),
		}}, time.Now())
	local := plan.NewSweep(nil).After(&plan.Plan{Changes: &servicemodel.ChangeSet{New: table},
		Forget: []plan.Forget{
			{Frontend: fe(loadBalancer), Lost: [2][]netip.AddrPort{nil, {at("10.244.2.1:8080")}}},
		}}, time.Now())
	all := plan.SweepAll(table)
	takes := func(s *plan.Sweep, e nft.Elem) bool {
		s.Aim()
		s.Of[0].Pending(func(f *plan.Forget) { f.Read = true })
		return s.Takes(nft.IPv4, form.GroupClients, e)
	}

	for _, tc := range []struct {
		dst, endpoint string
		some, all     bool
	}{
		{clusterIP, "10.244.9.9:8080", true, true},
		{clusterIP, "10.244.9.8:8080", false, true},
		{clusterIP, "10.244.1.1:8080", false, false}, // it was lost, and came back
		{clusterIP, "10.244.1.1:8081", false, true},
		{clusterIP, "10.244.1.2:8080", false, false},
		{clusterIP, "10.244.2.1:8080", false, false},
		{loadBalancer, "10.244.1.1:8080", false, false},
		{loadBalancer, "10.244.2.1:8080", false, true}, // lost inside only, and came back
		{loadBalancer, "10.244.9.8:8080", true, true},
		{loadBalancer, "10.244.9.9:8080", true, true}, // of the second commit
		{nodePort, "10.244.1.1:8080", false, false},
		{nodePort, "10.244.9.9:8080", true, true},
		{"10.96.0.10:30080", "10.244.9.9:8080", true, true}, // any address may be the node's
		{"10.96.0.99:80", "10.244.9.9:8080", false, true},   // no frontend
	} {
		require.Equal(t, tc.some, takes(some, entry(tc.dst, tc.endpoint)), "%v: some", tc)
		require.Equal(t, tc.all, takes(all, entry(tc.dst, tc.endpoint)), "%v: all", tc)
	}

	require.True(t, takes(local, entry(loadBalancer, "10.244.2.1:8080")),
		"clients outside lost it, and have not got it back")
	short := entry(clusterIP, "10.244.9.9:8080")
	short.Key = short.Key[:len(short.Key)-4]
	require.False(t, takes(all, short), "what is not understood is left")

	all.Drop(0, func(f *plan.Forget) bool { return f.Frontend != nil })
	require.False(t, takes(all, entry(nodePort, "10.244.9.9:8080")), "its own sweep has ended")
	require.False(t, takes(all, entry(clusterIP, "10.244.9.9:8080")), "its own sweep has ended")
	require.True(t, takes(all, entry("10.96.0.99:80", "10.244.9.9:8080")))
}

// The clients of a commit count as forgotten after these readings.
func TestWhenASweepHasEnded(t *testing.T) {
	t.Parallel()
	type reading struct {
		found bool
		sure  bool
	}
	start := time.Now()
	at := func(n int) time.Time { return start.Add(time.Duration(n) * time.Second) }
	for _, tc := range []struct {
		readings []reading
		done     bool
	}{
		{[]reading{{false, true}}, true},
		{[]reading{{false, false}}, false},
		{[]reading{{false, false}, {false, false}}, true},
		{[]reading{{false, false}, {false, true}}, true},
		{[]reading{{true, true}}, false},
		{[]reading{{true, true}, {false, true}}, true},
		{[]reading{{true, false}, {false, false}}, false},
		{[]reading{{false, false}, {true, false}, {false, false}}, false},
		{[]reading{{false, false}, {true, false}, {false, false}, {false, false}}, true},
	} {
		f := &plan.Forget{Since: at(0)}
		done := false
		for i, r := range tc.readings {
			require.False(t, done, "%v", tc.readings)
			f.Found = r.found
			done = f.Note(at(2*i), at(2*i+1), r.sure)
		}

		require.Equal(t, tc.done, done, "%v", tc.readings)
	}

	f := &plan.Forget{Since: at(5)}
	require.False(t, f.Note(at(4), at(6), true), "packets from before the commit are under way")
	require.True(t, f.Note(at(5), at(7), true))
	f.Found = true
	require.False(t, f.Note(at(6), at(8), true))
	f.Found = false
	require.False(t, f.Note(at(7), at(9), true), "packets from before the deletion are under way")
	require.True(t, f.Note(at(8), at(10), true))
}

// sweeping is a backend with affinity whose sweeps return instead of waiting.
type sweeping struct {
	*backend
	t     *testing.T
	ns    *netnstest.NS
	table *servicemodel.Table
}

func newSweeping(t *testing.T) *sweeping {
	t.Helper()
	ns, b := newNS(t)
	ok(dataplane.New(b, nil).Apply(t.Context(), affinityState(10, -1)))(t)
	rememberClients(t, b, 1000, 10)
	return &sweeping{b, t, ns, mustResolve(t, affinityState(10, -1))}
}

// replace commits a state in which one endpoint is replaced; -1 means no endpoint.
func (s *sweeping) replace(replaced int) {
	s.t.Helper()
	next := mustResolve(s.t, affinityState(10, replaced)).Arrange(s.table)
	ok(s.Commit(s.t.Context(), servicemodel.Diff(s.table, next)))(s.t)
	s.table = next
}

// settle calls Settle as if the kernel were done with the packets of the time done. It returns
// whether to call Settle again.
func (s *sweeping) settle(done time.Time) (again bool) {
	s.t.Helper()
	for {
		p := &wait.Packets{Done: done, Piece: true}
		next := ok(s.Settle(p.In(s.t.Context())))(s.t)
		require.Equal(s.t, p.Awaited || p.More, next > 0)
		if !p.More {
			return p.Awaited
		}
	}
}

// A sweep that waits for packets makes its caller wait, and then continues with the work of all
// commits that happened during the wait.
func TestCommitsGoOnBetweenTheStepsOfASweep(t *testing.T) {
	t.Parallel()
	s := newSweeping(t)
	start := time.Now()
	s.replace(3)
	require.True(t, s.settle(start))
	require.Equal(t, 100, endpointsOfClients(t, s.backend)["10.244.0.4"], "nothing is read yet")

	between := time.Now()
	s.replace(5) // and 3 is back
	require.True(t, s.settle(between))
	clients := endpointsOfClients(t, s.backend)
	require.Equal(t, 100, clients["10.244.0.4"], "it has come back")
	require.Zero(t, clients["10.244.0.6"], "one reading serves all commits before it")
	require.True(t, s.pl.Version.Unswept)
	_, left := s.sweep.Oldest()
	require.True(t, left, "a packet may bring it back")

	require.True(t, s.settle(between))
	require.False(t, s.settle(time.Now()), "nobody was learnt since")
	require.False(t, s.pl.Version.Unswept)
	require.Nil(t, s.sweep)
	require.False(t, s.settle(time.Time{}), "nothing is left to do")
}

// A sweep in progress starts over if a commit adds maps of another kind.
func TestASweepBeginsAnewWithOtherMaps(t *testing.T) {
	t.Parallel()
	s := newSweeping(t)
	s.replace(3)
	piece := func() {
		p := &wait.Packets{Done: time.Now(), Piece: true}
		ok(s.Settle(p.In(t.Context())))(t)
	}

	piece()
	require.NotNil(t, s.sweep.Reading)

	state := affinityState(10, 3)
	svc := *state.Service(stickyName)
	svc.Name.Name, svc.ClusterIPs = "whole", []netip.Addr{netip.MustParseAddr("10.96.0.2")}
	svc.SessionAffinity = affinityKinds["whole service"]
	next := mustResolve(t, state.WithService(&svc).WithEndpoints(svc.Name,
		state.Endpoints(stickyName))).Arrange(s.table)
	ok(s.Commit(t.Context(), servicemodel.Diff(s.table, next)))(t)
	for pieces := 0; s.pl.Version.Unswept; pieces++ {
		require.Less(t, pieces, 6*form.AffinityMaps)
		piece()
	}

	require.Zero(t, endpointsOfClients(t, s.backend)["10.244.0.4"])
}

// If a packet restores entries after their deletion, the sweep finds these entries.
func TestASweepFindsWhatComesBack(t *testing.T) {
	t.Parallel()
	s := newSweeping(t)
	s.replace(3)
	require.True(t, s.settle(time.Now()))
	require.Zero(t, endpointsOfClients(t, s.backend)["10.244.0.4"])
	var l nft.ElemList
	key := nft.AppendAddr(nil, netip.MustParseAddr("100.0.0.3"))
	l.Add(nft.Elem{Key: nft.AppendFrontend(key, tcpKey("10.96.0.1:80")),
		Data: nft.AppendEndpoint(nil, netip.MustParseAddrPort("10.244.0.4:8080"))})
	sets := form.SetsOf(nft.IPv4, &s.pl.Tables[0].Shape)
	i := slices.IndexFunc(sets, func(set *nft.Set) bool {
		return set.Name == form.AffinityMap(form.GroupClients, 3)
	})
	s.kernel.batch.Reset()
	nft.NewEncoder(&s.kernel.batch, nft.IPv4, defaultTable).Elements(nft.Add, sets[i], &l)
	ok(s.kernel.commit(t.Context()))(t)
	s.sweep.Of[0].Learnt++ // as if packets had been counted
	require.Equal(t, 1, endpointsOfClients(t, s.backend)["10.244.0.4"])
	require.True(t, s.settle(time.Now()))
	require.Zero(t, endpointsOfClients(t, s.backend)["10.244.0.4"])
	require.False(t, s.settle(time.Now()))
}

// A commit that rewrites the rules resets their counters. The sweep then reads again, because
// nothing tells whether a packet has restored an entry.
func TestASweepReadsAgainAfterItsCountersWereReset(t *testing.T) {
	t.Parallel()
	ns, b := newNS(t)
	state := func(endpoints int, more ...string) servicemodel.State {
		s := affinityState(endpoints, -1)
		svc := *s.Service(servicemodel.Name{Namespace: "default", Name: "sticky"})
		svc.SessionAffinity.Bits4 = 24
		for _, name := range more {
			other := svc
			other.Name.Name, other.SessionAffinity.Timeout = name, time.Minute
			other.ClusterIPs = []netip.Addr{netip.MustParseAddr("10.96.0.2")}
			s = s.WithService(&other)
		}

		return s.WithService(&svc)
	}

	s := &sweeping{b, t, ns, nil}
	commit := func(state servicemodel.State) {
		next := mustResolve(t, state).Arrange(s.table)
		ok(s.Commit(t.Context(), servicemodel.Diff(s.table, next)))(t)
		s.table = next
	}

	remember := func() {
		key := nft.AppendAddr(nil, netip.MustParseAddr("100.0.0.0"))
		require.NoError(t, addTo(t, b, form.AffinityMap(form.GroupClients, 5), nft.Elem{
			Key:  nft.AppendFrontend(key, tcpKey("10.96.0.1:80")),
			Data: nft.AppendEndpoint(nil, netip.MustParseAddrPort("10.244.0.2:8080"))}))
	}

	ok(b.Observe(t.Context(), nil))(t)
	commit(state(2))
	remember()
	commit(state(1))
	require.True(t, s.settle(time.Now()))
	remember() // like a packet in flight
	commit(state(1, "another"))
	for s.settle(time.Now()) {
	}
	require.NoError(t, b.kernel.reader.About(nft.IPv4, defaultTable).Elements(t.Context(),
		form.AffinityMap(form.GroupClients, 5), func(nft.Elem) error {
			return errors.New("the client is remembered")
		}))
}

// A reading because of another program's commits does not make the sweep forget more.
func TestASweepGoesOnAfterAReading(t *testing.T) {
	t.Parallel()
	s := newSweeping(t)
	s.replace(3)
	before := s.sweep
	o := ok(s.Observe(t.Context(), nil))(t)
	require.Empty(t, o.Drift)
	require.Same(t, before, s.sweep)
	s.pl.Version.Number++ // another writer has committed
	ok(s.Observe(t.Context(), nil))(t)
	require.NotSame(t, before, s.sweep)
	require.NotNil(t, s.sweep.Of[0].ByKey[plan.AllOthers], "nothing tells what it left")
}

// Commits that leave clients come without end: before each reading comes a commit whose packets the
// reading does not wait for. The work of each commit ends separately, so little work is left at any
// time.
func TestASweepEndsForEachCommitBesideOthers(t *testing.T) {
	t.Parallel()
	s := newSweeping(t)
	for n := range 40 {
		done := time.Now()
		s.replace(n % 10)
		s.settle(done)
		left := 0
		for i := range s.sweep.Of {
			s.sweep.Of[i].Pending(func(*plan.Forget) { left++ })
		}
		require.LessOrEqual(t, left, 4, "after %d commits", n+1)
	}

	for s.settle(time.Now()) {
	}
	require.Nil(t, s.sweep)
}
