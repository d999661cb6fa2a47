package nftables

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/test/dataplanetest"
	"github.com/kernlb/kernlb/servicemodel"
)

// limited makes a backend send no more than a number of bytes at once.
func limited(t *testing.T, b *backend, netns, limit int) {
	t.Helper()
	dial(t, b, &rawnl.Config{NetNS: netns, Limit: limit})
	require.Equal(t, limit, b.kernel.conn.MaxBatch())
}

func integrity(t *testing.T, b *backend) dataplane.Integrity {
	t.Helper()
	return ok(b.Integrity(t.Context()))(t)
}

// A state that is too large for one transaction is added, changed and removed in several.
func TestALargeLoadComesInParts(t *testing.T) {
	t.Parallel()
	dataplanetest.InParts(t, dataplanetest.Backend{Open: open}, func(ns *netnstest.NS, limit int) (
		dataplane.Backend, error) {
		b, err := openBackend(&Config{NetNS: ns.Fd()})
		if err == nil {
			limited(t, b, ns.Fd(), limit)
		}
		return b, err
	})
}

// A single service that is too large for one transaction is an error, and changes nothing.
func TestAServiceThatIsTooLarge(t *testing.T) {
	t.Parallel()
	ns, b := newNS(t)
	e, s := dataplane.New(b, nil), manyServices(2)
	ok(e.Apply(t.Context(), s))(t)
	limited(t, b, ns.Fd(), 10_000)
	svc := goldenService(func(s *servicemodel.Service) { s.Ports[0].Name = "" })
	var eps []servicemodel.Endpoint
	for i := range 300 {
		eps = append(eps, tenEndpoints(i, 10)[0])
	}
	_, err := e.Apply(t.Context(), s.WithService(svc).WithEndpoints(svc.Name, eps))
	require.ErrorIs(t, err, rawnl.ErrBatchTooLarge)
	require.NotErrorIs(t, err, dataplane.ErrConflict)
	requireAdopts(t, newBackend(t, ns, nil), s, mustResolve(t, s))
}
