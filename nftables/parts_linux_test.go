package nftables

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/servicemodel"
)

// limited makes a backend send no more than a number of bytes at once.
func limited(t *testing.T, b *backend, netns, limit int) {
	t.Helper()
	dial(t, b, &rawnl.Config{NetNS: netns, Limit: limit})
	require.Equal(t, limit, b.kernel.conn.MaxBatch())
}

// A load that is too large for one transaction is committed in several. The result is the same.
func TestALargeLoadComesInParts(t *testing.T) {
	t.Parallel()
	ns, b := newNS(t)
	limited(t, b, ns.Fd(), 100_000)
	e := dataplane.New(b, nil)
	s := manyServices(500)
	r := ok(e.Apply(t.Context(), s))(t)
	require.Greater(t, r.Bytes, 300_000)
	require.Equal(t, 500, r.Added)
	requireAdopts(t, newBackend(t, ns, nil), s, mustResolve(t, s))
	require.Equal(t, dataplane.Intact, integrity(t, b))

	// Services that are added later are committed in several transactions, too.
	more := manyServices(1200)
	ok(e.Apply(t.Context(), more))(t)
	requireAdopts(t, newBackend(t, ns, nil), more, mustResolve(t, more))

	// A single service that is too large is an error, and changes nothing.
	limited(t, b, ns.Fd(), 10_000)
	name := servicemodel.Name{Namespace: "default", Name: "large"}
	var eps []servicemodel.Endpoint
	for i := range 300 {
		eps = append(eps, tenEndpoints(i, 10)[0])
	}
	svc := *more.Service(servicemodel.Name{Namespace: "default", Name: "s1"})
	svc.Name, svc.ClusterIPs = name, svc.ClusterIPs[:0:0]
	svc.ClusterIPs = append(svc.ClusterIPs, goldenService().ClusterIPs[0].Next().Next())
	_, err := e.Apply(t.Context(), manyServices(2).WithService(&svc).WithEndpoints(name, eps))
	require.ErrorIs(t, err, rawnl.ErrBatchTooLarge)
	require.NotErrorIs(t, err, dataplane.ErrConflict)
	requireAdopts(t, newBackend(t, ns, nil), more, mustResolve(t, more))
}

func integrity(t *testing.T, b *backend) dataplane.Integrity {
	t.Helper()
	return ok(b.Integrity(t.Context()))(t)
}

// A change or a removal that is too large is also committed in several transactions.
func TestWhatChangesAndGoesComesInParts(t *testing.T) {
	t.Parallel()
	const services = 500
	all := manyServices(services)
	other, half := all, servicemodel.State{}.WithNode(all.Node())
	for i := range services {
		name := servicemodel.Name{Namespace: "default", Name: fmt.Sprint("s", i)}
		other = other.WithEndpoints(name, tenEndpoints(i+7000, 10))
		svc := all.Service(name)
		if i%2 > 0 {
			svc.Name.Namespace = "new"
		}
		half = half.WithService(svc).WithEndpoints(svc.Name, tenEndpoints(i, 10))
	}
	ns, b := newNS(t)
	limited(t, b, ns.Fd(), 100_000)
	e := dataplane.New(b, nil)
	for _, s := range []servicemodel.State{all, other, half, {}, all} {
		ok(e.Apply(t.Context(), s))(t)
		requireAdopts(t, newBackend(t, ns, nil), s, mustResolve(t, s))
	}
}
