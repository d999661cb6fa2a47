package nftables

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/randstate"
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

// dumpsOf returns how many dumps a new backend needs to observe, given what is wanted.
func dumpsOf(t *testing.T, ns *netnstest.NS, want *servicemodel.Table) (int,
	*dataplane.Observation) {
	t.Helper()
	b := newBackend(t, ns, nil)
	counter := &dumpCounter{}
	conn, err := rawnl.Dial(&rawnl.Config{NetNS: ns.Fd(), Logger: slog.New(counter)})
	require.NoError(t, err)
	require.NoError(t, b.kernel.conn.Close())
	b.kernel.conn, b.kernel.askers[0].conn = conn, conn
	o, err := b.Observe(t.Context(), want)
	require.NoError(t, err)
	return int(counter.dumps.Load()), o
}

// A reading that finds what is wanted dumps no set of services or endpoints, nor does one that
// finds other endpoints, or fewer services. It dumps the small sets where services are that nobody
// wants.
func TestAReadingAsksForWhatIsWanted(t *testing.T) {
	t.Parallel()
	ns, b := newNS(t)
	s := manyServices(60)
	e := dataplane.New(b, nil)
	_, err := e.Apply(t.Context(), s)
	require.NoError(t, err)
	if count, err := b.kernel.readCount(t.Context(), nft.IPv4, DefaultTable,
		"services"); err != nil || count < 0 {
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
		{"another number of endpoints: the set of those with as many as are there",
			s.WithEndpoints(name, tenEndpoints(7, 10)[:9]), 1},
	} {
		n, o := dumpsOf(t, ns, mustResolve(t, tc.wanted))
		require.Equal(t, none+tc.dumps, n, tc.what)
		require.False(t, o.Unread, tc.what)
		require.Empty(t, o.Drift, tc.what)
		require.Empty(t, servicemodel.Diff(o.Table, mustResolve(t, s).Arrange(o.Table)).String(),
			tc.what)
	}
	n, o := dumpsOf(t, ns, mustResolve(t, manyServices(59)))
	require.Greater(t, n, none, "a service that nobody wants")
	require.LessOrEqual(t, n, none+4,
		"the sets of frontends, of their numbers of slots, of cluster IPs, and of who is "+
			"masqueraded")
	require.Equal(t, 60, o.Table.Len())
	full, _ := dumpsOf(t, ns, nil)
	require.Equal(t, n, full, "the same sets, and endpoints are asked for")
}

// Tables that were made for different settings are made anew, both.
func TestTablesOfDifferentSettingsAreMadeAnew(t *testing.T) {
	t.Parallel()
	ns, b := newNS(t)
	s := randstate.New(randomConfig(), rand.New(rand.NewPCG(9, 9))).State()
	_, err := dataplane.New(b, nil).Apply(t.Context(), s)
	require.NoError(t, err)
	require.True(t, b.pl.have[1].exists)
	var batch rawnl.Batch
	enc, set := nft.NewEncoder(&batch, nft.IPv6, DefaultTable),
		&nft.Set{Name: setSettings}
	var old, other nft.ElemList
	key := nft.Native32(settingsHaveFirst + 1)
	old.Add(nft.Elem{Key: key})
	other.Add(
		nft.Elem{Key: key, UserData: nft.AppendComment(nil, "masquerade-mark 0x80000")})
	enc.DeleteElements(set, &old)
	enc.AddElements(set, &other)
	require.NoError(t, b.kernel.conn.Commit(t.Context(), &batch, 0))

	next := newBackend(t, ns, nil)
	r, err := dataplane.New(next, nil).Apply(t.Context(), s)
	require.NoError(t, err)
	require.Contains(t, r.Drift, "the tables ip and ip6 were made for different settings")
	requireAdopts(t, newBackend(t, ns, nil), s, mustResolve(t, s))
}

// A sweep that ends when another writer has committed leaves the mark to him, and is no failure.
func TestASweepLeavesTheMarkToWhoCommittedLast(t *testing.T) {
	t.Parallel()
	ns, b := newNS(t)
	_, err := dataplane.New(b, nil).Apply(t.Context(), affinityState(10, -1))
	require.NoError(t, err)
	old := mustResolve(t, affinityState(10, -1))
	_, err = b.Commit(t.Context(), servicemodel.Diff(old, mustResolve(t, affinityState(10, 3)).
		Arrange(old)))
	require.NoError(t, err)

	other := newBackend(t, ns, nil)
	o, err := other.Observe(t.Context(), nil)
	require.NoError(t, err)
	_, err = other.Commit(t.Context(),
		servicemodel.Diff(o.Table, mustResolve(t, affinityState(11, 3)).Arrange(o.Table)))
	require.NoError(t, err)
	next, err := b.Settle(t.Context())
	require.NoError(t, err)
	require.Zero(t, next)
	i, err := b.Integrity(t.Context())
	require.NoError(t, err)
	require.Equal(t, dataplane.Broken, i)
	require.True(t, other.pl.version.unswept)
	require.NoError(t, func() error { _, err := other.Settle(t.Context()); return err }())
	require.False(t, other.pl.version.unswept)
}
