package iptables

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/rawnl"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// withoutIPv6 is a socket to a kernel that has no target REJECT for IPv6.
type withoutIPv6 struct{ rawnl.Socket }

func (s withoutIPv6) Send(p []byte) error {
	// the size of the header, and AF_INET6 as the first byte of the message
	const header, family = 16, 10
	p = bytes.Clone(p)
	for m := p; len(m) > header; {
		n := int(binary.NativeEndian.Uint32(m)+3) &^ 3
		if m[header] == family {
			copy(m, bytes.ReplaceAll(m[:n], []byte("REJECT\x00"), []byte("NO-ONE\x00")))
		}
		m = m[n:]
	}
	return s.Socket.Send(p)
}

// If the kernel cannot have IPv6 chains, IPv4 services still work. Services of IPv6 are refused by
// name.
func TestAKernelWithoutIPv6(t *testing.T) {
	t.Parallel()
	b, ns, _ := opened(t, Config{})
	conn, err := rawnl.Dial(&rawnl.Config{NetNS: ns.Fd(), Wrap: func(s rawnl.Socket) rawnl.Socket {
		return withoutIPv6{s}
	}})
	require.NoError(t, err)
	require.NoError(t, b.kernel.conn.Close())
	b.kernel.conn, b.kernel.reader = conn, newReader(conn)
	require.NoError(t, b.kernel.probe(t.Context()))
	require.ErrorIs(t, b.kernel.lacks.ipv6, dataplane.ErrMissingModule)
	require.False(t, b.kernel.lacks.recent)
	b.l.noIPv6 = b.kernel.lacks.ipv6 != nil

	node := testNode()
	node.ServiceCIDRs = prefixes("10.96.0.0/12", "fd00:10:96::/112")
	s := webService().WithNode(node)
	six, four := s.Service(svcName("web")), s.Service(svcName("web"))
	four.ClusterIPs = four.ClusterIPs[:1]
	four.ExternalTrafficPolicy, four.HealthCheckNodePort = sm.PolicyLocal, 32000
	six.Name, six.ClusterIPs = svcName("six"), six.ClusterIPs[1:]
	six.ExternalIPs, six.LoadBalancerIPs, six.Ports[0].NodePort = nil, nil, 0
	s = s.WithService(four).WithService(six)
	e := dataplane.New(b, nil)
	r := applied(t, e, s)
	require.Len(t, r.Refused, 1)
	require.Equal(t, six.Name, r.Refused[0].Service)
	require.ErrorIs(t, r.Refused[0].Err, dataplane.ErrUnsupported)
	require.ErrorContains(t, r.Refused[0].Err, "REJECT")

	held := resolve(t, nil, s.WithoutService(six.Name))
	o := observation(t, b)
	require.Empty(t, o.Drift)
	requireSameTable(t, held, o.Table)
	requireIntegrity(t, b, dataplane.Intact)
	whole, _, err := b.look(t.Context())
	require.NoError(t, err)
	require.True(t, whole)

	require.NoError(t, b.judge(t.Context()))
	b.l.noIPv6 = false
	require.ErrorIs(t, b.judge(t.Context()), dataplane.ErrMissingModule)
}
