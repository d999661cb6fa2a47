package iptables

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/rawnl"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// A state that is too large for one transaction is added, changed and removed in several. After
// each apply the kernel holds the whole state. The limit is that of a socket with a wmem_max of 104
// KiB.
func TestALargeLoadComesChangesAndGoesInParts(t *testing.T) {
	t.Parallel()
	const services, each, limit = 1600, 2, 208 << 10
	all := manyServices(services, each)
	other, half := all, sm.State{}.WithNode(all.Node())
	for i := range services {
		svc := all.Service(svcName(fmt.Sprint("service-", i)))
		eps := all.Endpoints(svc.Name)
		other = other.WithEndpoints(svc.Name, endpoints(i+services, each, eps[0].Ports))
		if i%2 > 0 {
			svc.Name.Namespace = "new"
		}
		half = half.WithService(svc).WithEndpoints(svc.Name, eps)
	}
	b, ns, _ := opened(t, Config{})
	conn := ok(rawnl.Dial(&rawnl.Config{NetNS: ns.Fd(), Limit: limit}))(t)
	require.NoError(t, b.kernel.conn.Close())
	b.kernel.conn, b.kernel.reader = conn, newReader(conn)
	e := dataplane.New(b, nil)
	for i, s := range []sm.State{all, other, half, sm.State{}.WithNode(all.Node()), all} {
		r := applied(t, e, s)
		require.Greater(t, r.Bytes, limit, "the state %d", i)

		fresh := ok(openBackend(&Config{NetNS: ns.Fd()}))(t)
		again := applied(t, dataplane.New(fresh, nil), s)
		require.True(t, again.Changes.Empty())
		require.Zero(t, again.Messages)
		require.NoError(t, fresh.Close())
	}
}
