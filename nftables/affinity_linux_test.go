package nftables

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

// endpointsOfClients counts the clients that each endpoint was given.
func endpointsOfClients(t *testing.T, b *Backend) map[string]int {
	t.Helper()
	n := map[string]int{}
	for i := range affinityMaps {
		seen := map[string]bool{}
		err := b.kernel.dumpElements(t.Context(), nft.IPv4, DefaultTable, affinityMap(i),
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

// A process ends before its sweep. The next process finds the state that it wants, learns of the
// sweep by the mark of the version, and does it.
func TestASweepThatWasInterruptedIsEnded(t *testing.T) {
	t.Parallel()
	ns, b := newNS(t)
	e := dataplane.New(b, nil)
	_, err := e.Apply(t.Context(), affinityState(10, -1))
	require.NoError(t, err)
	rememberClients(t, b, 1000, 10)
	old := mustResolve(t, affinityState(10, -1))
	_, err = b.Commit(t.Context(), servicemodel.Diff(old, mustResolve(t, affinityState(10, 3)).
		Arrange(old)))
	require.NoError(t, err)
	require.Equal(t, 100, endpointsOfClients(t, b)["10.244.0.4"], "it is not settled")

	next := newBackend(t, ns, nil)
	o, err := dataplane.New(next, nil).Observe(t.Context())
	require.NoError(t, err)
	require.Empty(t, o.Drift)
	require.True(t, next.pl.version.unswept)
	r, err := dataplane.New(next, nil).Apply(t.Context(), affinityState(10, 3))
	require.NoError(t, err)
	require.True(t, r.Changes.Empty())
	left := endpointsOfClients(t, next)
	require.Zero(t, left["10.244.0.4"])
	require.Len(t, left, 9)
	for endpoint, n := range left {
		require.Equal(t, 100, n, "clients of %s stay", endpoint)
	}
	require.False(t, next.pl.version.unswept)
	last := newBackend(t, ns, nil)
	_, err = last.Observe(t.Context(), nil)
	require.NoError(t, err)
	require.Equal(t, next.pl.version, last.pl.version, "the mark is gone")
	wait, err := last.Settle(t.Context())
	require.NoError(t, err)
	require.Zero(t, wait)
	require.Equal(t, next.pl.version, last.pl.version, "and nothing is left to do")
}

// A sweep after two commits forgets the clients of both.
func TestASweepIsOfAllCommitsBefore(t *testing.T) {
	t.Parallel()
	_, b := newNS(t)
	_, err := dataplane.New(b, nil).Apply(t.Context(), affinityState(10, -1))
	require.NoError(t, err)
	rememberClients(t, b, 1000, 10)
	table := mustResolve(t, affinityState(10, -1))
	for _, replaced := range []int{3, 5} {
		next := mustResolve(t, affinityState(10, replaced)).Arrange(table)
		_, err = b.Commit(t.Context(), servicemodel.Diff(table, next))
		require.NoError(t, err)
		table = next
	}
	_, err = b.Settle(t.Context())
	require.NoError(t, err)
	left := endpointsOfClients(t, b)
	require.Zero(t, left["10.244.0.6"], "5 is replaced now")
	require.Zero(t, left["10.244.1.4"])
	require.Equal(t, 100, left["10.244.0.1"])
}

// A sweep succeeds even if entries expire while it deletes them.
func TestEntriesMayExpireWhileTheyAreForgotten(t *testing.T) {
	t.Parallel()
	_, b := newNS(t)
	e := dataplane.New(b, nil)
	_, err := e.Apply(t.Context(), affinityState(10, -1))
	require.NoError(t, err)
	rememberClientsFor(t, b, 5000, 10, func(i int) time.Duration {
		return time.Duration(1+i%200) * time.Millisecond
	})
	_, err = e.Apply(t.Context(), affinityState(10, 3))
	require.NoError(t, err)
	require.Zero(t, endpointsOfClients(t, b)["10.244.0.4"])

	rememberClients(t, b, 10, 10)
	keys := [][]byte{[]byte("too short")}
	require.Error(t, b.forgetClients(t.Context(), nft.IPv4, affinityMap(0), keys),
		"what is no expired entry is an error")
	require.NoError(t, b.forgetClients(t.Context(), nft.IPv4, affinityMap(0), nil))
}

// Which entries a sweep deletes.
func TestSweeps(t *testing.T) {
	t.Parallel()
	table := mustResolve(t, editedState().WithEndpoints(goldenService().Name,
		append(goldenEndpoints("10.244.1.1", "10.244.1.2"),
			servicemodel.Endpoint{Addr: netip.MustParseAddr("10.244.2.1"), Ready: true,
				Node: "other",
				Ports: []servicemodel.EndpointPort{{Name: "http", Protocol: servicemodel.TCP,
					Port: 8080}}})))
	entry := func(dst, endpoint string) nft.Elem {
		at := netip.MustParseAddrPort(dst)
		key := nft.AppendFrontend(nil, servicemodel.FrontendKey{Addr: at.Addr(),
			Protocol: servicemodel.TCP, Port: at.Port()})
		return nft.Elem{Key: nft.AppendAddr(key, netip.MustParseAddr("192.0.2.99")),
			Data: nft.AppendEndpoint(nil, netip.MustParseAddrPort(endpoint))}
	}
	fe := func(dst string) *servicemodel.Frontend {
		at := netip.MustParseAddrPort(dst)
		f := table.Frontend(servicemodel.FrontendKey{Addr: at.Addr(), Protocol: servicemodel.TCP,
			Port: at.Port()})
		require.NotNil(t, f, dst)
		return f
	}
	const clusterIP, loadBalancer, nodePort = "10.96.0.10:80", "203.0.113.10:80", "192.0.2.10:30080"
	some := sweepAfter(&plan{c: &servicemodel.ChangeSet{New: table}, forget: []forget{
		{frontend: fe(clusterIP), endpoints: []netip.AddrPort{
			netip.MustParseAddrPort("10.244.1.1:8080")}},
		forgetAll(fe("0.0.0.0:30080")),
	}})
	all := sweepAll(table)
	for _, tc := range []struct {
		dst, endpoint string
		some, all     bool
	}{
		{clusterIP, "10.244.1.1:8080", true, false},
		{clusterIP, "10.244.1.1:8081", false, true},
		{clusterIP, "10.244.1.2:8080", false, false},
		{clusterIP, "10.244.2.1:8080", false, false},
		{clusterIP, "10.244.9.9:8080", false, true},
		{loadBalancer, "10.244.1.1:8080", false, false},
		{loadBalancer, "10.244.2.1:8080", false, true}, // for clients inside only
		{nodePort, "10.244.1.1:8080", true, false},
		{nodePort, "10.244.9.9:8080", true, true},
		{"10.96.0.10:30080", "10.244.1.1:8080", true, false}, // any address may be the node's
		{"10.96.0.99:80", "10.244.1.1:8080", false, true},    // no frontend
	} {
		require.Equal(t, tc.some, some.takes(nft.IPv4, entry(tc.dst, tc.endpoint)), "%v: some", tc)
		require.Equal(t, tc.all, all.takes(nft.IPv4, entry(tc.dst, tc.endpoint)), "%v: all", tc)
	}
	short := entry(clusterIP, "10.244.9.9:8080")
	short.Key = short.Key[:len(short.Key)-4]
	require.False(t, all.takes(nft.IPv4, short), "what is not understood is left")
}

// When a sweep has ended.
func TestWhenASweepHasEnded(t *testing.T) {
	t.Parallel()
	type reading struct {
		found int
		sure  bool
	}
	for _, tc := range []struct {
		readings []reading
		done     bool
	}{
		{[]reading{{0, true}}, true},
		{[]reading{{0, false}}, false},
		{[]reading{{0, false}, {0, false}}, true},
		{[]reading{{0, false}, {0, true}}, true},
		{[]reading{{3, true}}, false},
		{[]reading{{3, true}, {0, true}}, true},
		{[]reading{{3, false}, {0, false}}, false},
		{[]reading{{0, false}, {1, false}, {0, false}}, false},
		{[]reading{{0, false}, {1, false}, {0, false}, {0, false}}, true},
	} {
		fs := &tableSweep{}
		for i, r := range tc.readings {
			require.False(t, fs.done, "%v", tc.readings)
			fs.note(uint64(i), r.found, r.sure)
			require.Equal(t, r.sure, fs.sure)
			require.Equal(t, uint64(i), fs.learnt)
		}
		require.Equal(t, tc.done, fs.done, "%v", tc.readings)
	}
}

// A reading returns how many clients it found that must go.
func TestASweepTellsWhatItFound(t *testing.T) {
	t.Parallel()
	_, b := newNS(t)
	_, err := dataplane.New(b, nil).Apply(t.Context(), affinityState(10, -1))
	require.NoError(t, err)
	rememberClients(t, b, 1000, 10)
	old := mustResolve(t, affinityState(10, -1))
	_, err = b.Commit(t.Context(), servicemodel.Diff(old, mustResolve(t, affinityState(10, 3)).
		Arrange(old)))
	require.NoError(t, err)
	for _, want := range []int{100, 0} {
		found, _, err := b.sweepMaps(t.Context(), nft.IPv4)
		require.NoError(t, err)
		require.Equal(t, want, found)
	}
}
