package nftables

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/servicemodel"
)

// limited opens a backend that can send only this number of bytes at once.
func limited(t *testing.T, ns *netnstest.NS, bytes int) *backend {
	t.Helper()
	b := ok(openWith(rawnl.Config{NetNS: ns.NetNS(), Limit: bytes}))(t)
	t.Cleanup(func() { b.Close() })
	require.Equal(t, bytes, b.kernel.reader.Conn.MaxBatch())
	return b
}

func integrity(t *testing.T, b *backend) backends.Integrity {
	t.Helper()
	return ok(b.Integrity(t.Context()))(t)
}

// A single service that is too large for one transaction is an error, and changes nothing.
func TestAServiceThatIsTooLarge(t *testing.T) {
	t.Parallel()
	ns, b := newNS(t)
	s := manyServices(2)
	ok(dataplane.New(b, nil).Apply(t.Context(), s))(t)
	svc := goldenService(func(s *servicemodel.Service) { s.Ports[0].Name = "" })
	var eps []servicemodel.Endpoint
	for i := range 300 {
		eps = append(eps, tenEndpoints(i, 10)[0])
	}
	_, err := dataplane.New(limited(t, ns, 10_000), nil).Apply(t.Context(),
		s.WithService(svc).WithEndpoints(svc.Name, eps))
	require.ErrorIs(t, err, rawnl.ErrBatchTooLarge)
	require.NotErrorIs(t, err, kernelerr.ErrConflict)
	requireAdopts(t, newBackend(t, ns, nil), s, mustResolve(t, s))
}
