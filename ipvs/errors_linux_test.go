package ipvs

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/ration"
	"github.com/kernlb/kernlb/servicemodel"
)

// countdown is a context that has ended for the one who looks at it after so many others, and for
// nobody else: one request fails, and those after it do not.
type countdown struct {
	context.Context
	left atomic.Int64
}

func (c *countdown) Err() error {
	if c.left.Add(-1) == -1 {
		return context.Canceled
	}
	return nil
}

// requireErrors calls what takes a context, so that it fails a little later each time, until it
// succeeds. Each failure is told.
func requireErrors(t *testing.T, what string, f func(context.Context) error) {
	t.Helper()
	for n := int64(0); ; n++ {
		ctx := &countdown{Context: t.Context()}
		ctx.left.Store(n)
		err := f(ctx)
		if ctx.left.Load() >= 0 {
			require.NoError(t, err, what)
			require.Positive(t, n, what)
			return
		}
		require.ErrorIs(t, err, context.Canceled, "%s: %d", what, n)
	}
}

// Whatever request fails, Observe, Integrity, Commit, Settle and Cleanup say so, and the next
// attempt begins at what is there.
func TestEachFailureIsTold(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	b := r.backend()
	requireErrors(t, "observe nothing", func(ctx context.Context) error {
		o, err := b.Observe(ctx, nil)
		require.Equal(t, err == nil, o != nil)
		require.Equal(t, err == nil, b.observed)
		return err
	})
	n := 0
	state := func() servicemodel.State {
		n++
		return rigState([]string{"10.244.1.1", fmt.Sprintf("10.244.2.%d", n%7+1)},
			restrictedTo("198.51.100.0/24"))
	}
	for range 2 { // from nothing, and to other endpoints
		requireErrors(t, "commit", func(ctx context.Context) error {
			b, c := r.change(state())
			_, err := b.Commit(ctx, c)
			require.Equal(t, err == nil, b.observed)
			return err
		})
	}
	requireErrors(t, "observe", func(ctx context.Context) error {
		_, err := b.Observe(ctx, nil)
		return err
	})
	require.Positive(t, len(b.draining))
	requireEachLaterFailureIsTold(t, r, b, state)
	require.Empty(t, r.servers())
	require.NotContains(t, r.run("nft list tables"), "kernlb")
}

// requireEachLaterFailureIsTold requires the same where a commit was made.
func requireEachLaterFailureIsTold(t *testing.T, r *rig, b *Backend,
	state func() servicemodel.State) {
	t.Helper()
	requireErrors(t, "look", func(ctx context.Context) error {
		b.kernel.gen--
		b.looks = ration.New(8, 20)
		i, err := b.Integrity(ctx)
		require.Equal(t, err == nil, i == dataplane.Intact)
		return err
	})
	requireErrors(t, "settle", func(ctx context.Context) error {
		b, c := r.change(state())
		_, err := b.Commit(t.Context(), c)
		require.NoError(t, err)
		require.NotEmpty(t, b.draining)
		_, err = b.Settle(ctx)
		require.Equal(t, err == nil, b.observed)
		return err
	})
	requireErrors(t, "clean up", func(ctx context.Context) error {
		b, c := r.change(state())
		_, err := b.Commit(t.Context(), c)
		require.NoError(t, err)
		_, err = b.Cleanup(ctx)
		return err
	})
}

// What cannot be said of addresses is an error of a reading.
func TestUnreadableAddressesAreAnError(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	b := r.backend()
	_, err := b.Observe(t.Context(), nil)
	require.NoError(t, err)
	b.kernel.device = "lo"
	b.kernel.changes.suspect.Store(true)
	_, err = b.Integrity(t.Context())
	require.ErrorContains(t, err, "want a dummy device")
	_, err = b.Observe(t.Context(), nil)
	require.ErrorContains(t, err, "want a dummy device")
	require.False(t, b.observed)
}

// While there are no services, an address that comes is nothing that has to be put right.
func TestAddressesDoNotMatterWithoutServices(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, err := r.engine().Apply(t.Context(), servicemodel.State{}.WithNode(goldenNode()))
	require.NoError(t, err)
	r.run("ip address add 192.0.2.10/32 dev lo")
	o, err := r.backend().Observe(t.Context(), nil)
	require.NoError(t, err)
	require.Empty(t, o.Drift)
}

// A reading knows the marks that are taken: those of records, and those of others.
func TestMarksAreReadBack(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	local := func(s *servicemodel.Service) { s.ExternalTrafficPolicy = servicemodel.PolicyLocal }
	r.apply(r.engine(), rigState([]string{"10.244.1.1", "10.244.2.2"}, local))
	c, err := r.fake.Dial(t.Context(), nil)
	require.NoError(t, err)
	defer c.Close()
	var batch ipvsnl.Batch
	batch.NewService(ipvsnl.Service{ServiceKey: ipvsnl.MarkService(ipvsnl.FamilyIPv4, 0xc0000099),
		Scheduler: "rr"})
	require.NoError(t, c.Submit(t.Context(), &batch))
	b, _ := r.change(rigState(nil))
	require.Equal(t, map[uint32]bool{splitMarks + 1: true, splitMarks + 2: true, 0xc0000099: true},
		b.pl.have.index.marks)
}
