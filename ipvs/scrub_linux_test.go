package ipvs

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/dataplanetest"
	"github.com/kernlb/kernlb/internal/ipvsnl"
)

// Each destination that goes or changes is noticed by a program that runs, within as many looks as
// there are virtual servers.
func TestDestinationsAreComparedInTurn(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.run("ip address add 192.0.2.10/32 dev lo")
	b := r.backend()
	e := dataplane.New(b, nil)
	s := rigState([]string{"10.244.1.1", "10.244.2.2"})
	r.apply(e, s)
	want := r.state()
	dataplanetest.RunEngine(t, e, s)
	c, err := r.fake.Dial(t.Context(), nil)
	require.NoError(t, err)
	defer c.Close()
	for i, k := range r.fake.Keys() {
		dests, err := c.Destinations(t.Context(), k)
		require.NoError(t, err)
		if len(dests) == 0 {
			continue
		}
		var batch ipvsnl.Batch
		if d := dests[0].Destination; i%2 == 0 {
			batch.DelDestination(k, d.DestinationKey)
		} else {
			d.Weight++
			batch.SetDestination(k, d)
		}
		require.NoError(t, c.Submit(t.Context(), &batch))
		require.Eventually(t, func() bool {
			return e.Status().Totals.Repairs == i+1
		}, 20*time.Second, time.Millisecond, "%v", k)
	}
	require.Equal(t, want, r.state())
}

// The budget is a part of the time that passes, saved up to a limit, and may be spent once.
func TestTheBudgetOfScrubbing(t *testing.T) {
	t.Parallel()
	s := scrub{share: 1.0 / 8}
	at := time.Now()
	after := func(d time.Duration) time.Time { at = at.Add(d); return at }
	s.begin(at)
	require.Zero(t, s.budget, "nothing has passed")
	s.begin(after(80 * time.Microsecond))
	require.Equal(t, 10*time.Microsecond, s.budget)
	require.True(t, s.goOn(after(4*time.Microsecond)))
	require.False(t, s.goOn(after(6*time.Microsecond)))
	require.False(t, s.goOn(after(5*time.Microsecond)))
	require.Equal(t, -5*time.Microsecond, s.budget)
	s.begin(after(40 * time.Microsecond))
	require.Zero(t, s.budget)
	s.begin(after(time.Hour))
	require.Equal(t, scrubMost, s.budget)
}

// The number of references to the module tells that virtual servers were deleted, and not those
// that the backend deletes.
func TestReferencesTellOfDeletedServers(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	b := r.backend()
	b.kernel.references.file = filepath.Join(t.TempDir(), "refcnt")
	set := func(n int) {
		require.NoError(t, os.WriteFile(b.kernel.references.file,
			[]byte(strconv.Itoa(n)+"\n"), 0o600))
	}
	look := func(want dataplane.Integrity) {
		t.Helper()
		i, err := b.Integrity(t.Context())
		require.NoError(t, err)
		require.Equal(t, want, i)
	}
	set(3)
	e := dataplane.New(b, nil)
	_, err := e.Apply(t.Context(), rigState([]string{"10.244.1.1"}))
	require.NoError(t, err)
	set(3 + len(r.fake.Keys()))
	look(dataplane.Intact)
	set(2 + len(r.fake.Keys()))
	look(dataplane.Touched)
	look(dataplane.Intact)
	set(20) // others come and go
	look(dataplane.Intact)
	set(19)
	look(dataplane.Touched)
	_, err = e.Apply(t.Context(), rigState([]string{"10.244.1.1"}, restrictedTo()))
	require.NoError(t, err)
	require.NoError(t, os.Remove(b.kernel.references.file))
	look(dataplane.Intact)
}
