package ipvs

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/test/dataplanetest"
)

// A running program notices each destination that goes or changes, within as many checks as there
// are virtual servers.
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
	c := r.client()
	for i, k := range r.fake.Keys() {
		dests := ok(c.Destinations(t.Context(), k))(t)
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

// A check compares at least one virtual server, and more for a share of the time since the last,
// up to a limit. A virtual server that differs keeps its turn.
func TestComparisonsTakeAShareOfTheTime(t *testing.T) {
	t.Parallel()
	servers := map[ipvsnl.ServiceKey]*server{}
	for i := range 1000 {
		servers[ipvsnl.MarkService(ipvsnl.FamilyIPv4, uint32(i)+1)] = &server{}
	}
	s := scrub{share: 1e-3, at: time.Now()}
	compared := func(took time.Duration, holds bool) (n int) {
		ok, err := s.each(servers, func(*server) (bool, error) {
			n++
			time.Sleep(took)
			return holds, nil
		})
		require.NoError(t, err)
		require.Equal(t, holds, ok)
		return n
	}
	require.Equal(t, 1, compared(time.Millisecond, true), "nothing has passed")
	s.at = s.at.Add(-time.Hour)
	require.Equal(t, 1, compared(2*scrubMost, true), "the limit")
	s.at = s.at.Add(-time.Hour)
	require.Greater(t, compared(0, true), 1)
	left := len(s.keys)
	require.Equal(t, 1, compared(0, false))
	require.Len(t, s.keys, left, "its turn comes again")
	none, err := s.each(nil, nil)
	require.NoError(t, err)
	require.True(t, none)
}

// The number of references to the module shows deleted virtual servers, except those that the
// backend deletes.
func TestReferencesTellOfDeletedServers(t *testing.T) {
	t.Parallel()
	r, b := rigWithBackend(t)
	b.kernel.references.file = filepath.Join(t.TempDir(), "refcnt")
	set := func(n int) {
		require.NoError(t, os.WriteFile(b.kernel.references.file,
			[]byte(strconv.Itoa(n)+"\n"), 0o600))
	}
	look := func(want dataplane.Integrity) {
		t.Helper()
		requireIntegrity(t, b, want)
	}
	set(3)
	e := dataplane.New(b, nil)
	applied(t, e, rigState([]string{"10.244.1.1"}))
	set(3 + len(r.fake.Keys()))
	look(dataplane.Intact)
	set(2 + len(r.fake.Keys()))
	look(dataplane.Touched)
	look(dataplane.Intact)
	set(20) // other virtual servers come and go
	look(dataplane.Intact)
	set(19)
	look(dataplane.Touched)
	applied(t, e, rigState([]string{"10.244.1.1"}, restrictedTo()))
	require.NoError(t, os.Remove(b.kernel.references.file))
	look(dataplane.Intact)
}
