package ipvs

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/test/nstest"
	"github.com/kernlb/kernlb/servicemodel"
)

// The socket options and generic netlink agree about virtual servers of all kinds. A destination
// that was deleted by hand is noticed long before its virtual server is compared in full.
func TestKernelOutlinesAreWhatTheKernelHas(t *testing.T) {
	needIPVS(t)
	ns := nstest.New(t)
	b := ok(openBackend(&Config{NetNS: ns.Fd(), AffinityMask4: 24}))(t)
	defer b.Close()
	state := rigState([]string{"10.244.1.1", "10.244.2.2"},
		func(s *servicemodel.Service) {
			// this needs a virtual server by mark
			s.ExternalTrafficPolicy = servicemodel.PolicyLocal
			s.SessionAffinity = servicemodel.SessionAffinity{ClientIP: true}
		})
	ok(dataplane.New(b, nil).Apply(t.Context(), state))(t)
	o, have := &b.kernel.outlines, b.pl.have.servers
	require.NoError(t, o.readHeads())
	require.NotNil(t, o.read)
	require.True(t, o.hold(have))
	one := holdAllDests(t, o, have)
	start := time.Now()
	const times = 100
	for range times {
		require.NoError(t, o.readHeads())
	}
	t.Logf("%d virtual servers of IPv4: %v", len(o.heads)/len(ipvsnl.Outline{}),
		time.Since(start)/times)

	b.scrub.share = 0
	var batch ipvsnl.Batch
	batch.DelDestination(one.svc.ServiceKey, sortedDests(one.dests)[0])
	require.NoError(t, b.kernel.vs.Submit(t.Context(), &batch))
	require.NoError(t, o.readHeads())
	require.False(t, o.hold(have))
	holds, _, err := o.holdsDests(one)
	require.NoError(t, err)
	require.False(t, holds)
	o.due = time.Time{}
	requireIntegrity(t, b, dataplane.Broken)
}

// holdAllDests requires that all IPv4 virtual servers have their destinations, and returns one with
// two. Some of them are by mark.
func holdAllDests(t *testing.T, o *outlines, have map[ipvsnl.ServiceKey]*server) (one *server) {
	t.Helper()
	marks := 0
	for k, s := range have {
		if k.Family == ipvsnl.FamilyIPv4 && k.FWMark != 0 {
			marks++
		}
		holds, known, err := o.holdsDests(s)
		require.NoError(t, err)
		require.Equal(t, k.Family == ipvsnl.FamilyIPv4, known, k)
		require.Equal(t, known, holds, k)
		if known && len(s.dests) > 1 {
			one = s
		}
	}
	require.Positive(t, marks)
	require.NotNil(t, one)
	return one
}
