package nftables

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/test/rawnltest"
	"github.com/kernlb/kernlb/internal/wait"
	"github.com/kernlb/kernlb/servicemodel"
)

// Every error of the kernel or of the connection is returned, for any desired state and any
// contents of the tables.
func TestNoErrorIsSwallowed(t *testing.T) {
	t.Parallel()
	ns, b := newNS(t)
	apply := func(s servicemodel.State) {
		ok(dataplane.New(b, nil).Apply(t.Context(), s))(t)
	}
	apply(unitsState())
	want := mustResolve(t, unitsState())
	some := unitsState().WithoutService(goldenService().Name)
	for name, wanted := range map[string]*servicemodel.Table{"all": want, "nothing": nil,
		"some": mustResolve(t, some), "none": mustResolve(t, servicemodel.State{})} {
		reader := newBackend(t, ns, nil)
		reader.kernel.reader.Chunk = 1
		rawnltest.FailEach(t, "observe "+name, func(ctx context.Context) error {
			_, err := reader.Observe(ctx, wanted)
			require.Equal(t, err == nil, reader.observed)
			return err
		})
	}

	rawnltest.FailEach(t, "integrity", func(ctx context.Context) error {
		b.kernel.gen = 0
		b.looks = wait.NewBudget(8, 20)
		i, err := b.Integrity(ctx)
		if err != nil {
			require.Equal(t, backends.Broken, i)
		}
		return err
	})

	require.NoError(t, byHand(t, b, nft.IPv4, func(e *nft.Encoder) {
		e.AddChain(&nft.Chain{Name: "mine"})
	}))
	rawnltest.FailEach(t, "observe a chain of others", func(ctx context.Context) error {
		_, err := b.Observe(ctx, nil)
		return err
	})

	rawnltest.FailEach(t, "cleanup", func(ctx context.Context) error {
		_, err := b.Cleanup(ctx)
		require.False(t, b.observed)
		return err
	})
}

// Every error of a sweep is returned, and the next sweep finishes the work.
func TestNoErrorOfASweepIsSwallowed(t *testing.T) {
	t.Parallel()
	b := newSweeping(t)
	for replaced := range 3 {
		b.replace(replaced)
	}
	rawnltest.FailEach(t, "settle", func(ctx context.Context) error {
		wait, err := b.Settle(ctx)
		require.Zero(t, wait)
		if err != nil {
			require.False(t, b.observed)
			_, again := b.Observe(t.Context(), nil)
			require.NoError(t, again)
			require.True(t, b.pl.Version.Unswept, "it is left to do")
		}

		return err
	})
}

// Only checks that find nothing count against the rate limit.
func TestOnlyLooksThatFindNothingAreRationed(t *testing.T) {
	t.Parallel()
	_, b := newNS(t)
	ok(dataplane.New(b, nil).Apply(t.Context(), editedState()))(t)
	see := func() backends.Integrity {
		return ok(b.look(t.Context()))(t)
	}
	b.looks = wait.NewBudget(1, 20)
	set := &nft.Set{Name: "mine", Key: []nft.Field{nft.IPv4.Addr}}
	edit := func(do func(e *nft.Encoder)) {
		require.NoError(t, byHand(t, b, nft.IPv4, do))
	}
	edit(func(e *nft.Encoder) { e.AddSet(set) })
	for range 3 {
		require.Equal(t, backends.Broken, see())
	}
	edit(func(e *nft.Encoder) { e.DeleteSet(set) })
	looked := see()
	edit(func(e *nft.Encoder) { e.AddSet(set) })
	require.Equal(t, backends.Touched, see(), "there is no look left")
	if tellsCounts(t, b) {
		require.Equal(t, backends.Intact, looked)
	}
}

// A sweep that finds the tables deleted makes the backend unobserved.
func TestASweepOfTablesThatAreGone(t *testing.T) {
	t.Parallel()
	b := newSweeping(t)
	b.replace(3)
	require.True(t, b.pl.Version.Unswept)
	ok(newBackend(t, b.ns, nil).Cleanup(t.Context()))(t)
	wait := ok(b.Settle(t.Context()))(t)
	require.Zero(t, wait)
	require.False(t, b.observed)
	_, err := b.Commit(t.Context(), servicemodel.Diff(b.table, b.table))
	require.ErrorIs(t, err, errNotObserved)
}

// Counters in other programs' tables do not count as learnt clients.
func TestCountersOfOthersAreNotRead(t *testing.T) {
	t.Parallel()
	ns, b := newNS(t)
	ok(dataplane.New(b, nil).Apply(t.Context(), affinityState(10, -1)))(t)
	runNft(t, ns, nftPrograms(t)[0],
		"table ip other { chain learn { counter packets 7 bytes 700; }; }", "-f", "-")
	n := ok(b.kernel.reader.Learnt(t.Context(), nft.IPv4, defaultTable))(t)
	require.Zero(t, n)
	n = ok(b.kernel.reader.Learnt(t.Context(), nft.IPv4, "other"))(t)
	require.Equal(t, uint64(7), n)
}

// After a cleanup, even if it found no tables, the backend is unobserved and the kernel has none of
// its objects.
func TestNothingIsKnownAfterACleanup(t *testing.T) {
	t.Parallel()
	_, b := newNS(t)
	none := servicemodel.Diff(nil, nil)
	for _, messages := range []int{4, 0} { // three chains and the table
		if messages > 0 {
			ok(dataplane.New(b, nil).Apply(t.Context(), affinityState(2, -1)))(t)
		}
		stats := ok(b.Cleanup(t.Context()))(t)
		require.Equal(t, messages, stats.Messages)
		require.Equal(t, messages > 0, stats.Bytes > 0)
		require.Equal(t, backends.Broken, integrity(t, b))
		_, err := b.Plan(none)
		require.ErrorIs(t, err, errNotObserved)
		_, err = b.Commit(t.Context(), none)
		require.ErrorIs(t, err, errNotObserved)
	}
}
