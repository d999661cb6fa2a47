package nftables

import (
	"bytes"
	"encoding/binary"
	"io/fs"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/test/dataplanetest"
	"github.com/kernlb/kernlb/servicemodel"
)

// Each call of a program that has no capabilities, or gives them up, returns an error that says so.
func TestApplySaysThatThePermissionIsMissing(t *testing.T) {
	t.Parallel()
	_, b := newNS(t)
	e, one := dataplane.New(b, nil), affinityState(1, -1)
	for name, call := range map[string]func() error{
		"open":    func() error { _, err := openBackend(nil); return err },
		"apply":   func() error { _, err := e.Apply(t.Context(), one); return err },
		"observe": func() error { _, err := e.Observe(t.Context()); return err },
		"cleanup": func() error { _, err := e.Cleanup(t.Context()); return err },
		"probe":   func() error { return Candidate(nil).Probe(t.Context()) },
	} {
		err := dataplanetest.WithoutCapabilities(call)
		require.ErrorIs(t, err, dataplane.ErrNoPermission, name)
		require.ErrorIs(t, err, fs.ErrPermission, name)
		if name == "open" {
			require.ErrorContains(t, err, "nftables: open: no permission: it takes CAP_NET_ADMIN")
		}
		var refused *dataplane.OpError
		require.ErrorAs(t, err, &refused, name)
		require.Equal(t, unix.EPERM, refused.Errno, name)
		require.NotEmpty(t, refused.Op+refused.Object, name)
	}
	ok(e.Apply(t.Context(), one))(t)
}

// lackingFamily is a socket to a kernel that lacks an expression in tables of a family.
type lackingFamily struct {
	rawnl.Socket
	f *nft.Family
}

func (s lackingFamily) Send(p []byte) error {
	const header = 16 // its size; the family is the first byte of the message
	p = bytes.Clone(p)
	for m := p; len(m) > header; {
		n := int(binary.NativeEndian.Uint32(m)+3) &^ 3
		if m[header] == s.f.NFProto {
			copy(m, bytes.ReplaceAll(m[:n], []byte("reject\x00"), []byte("no-one\x00")))
		}
		m = m[n:]
	}
	return s.Socket.Send(p)
}

// If the kernel cannot have tables of a family, services of the other one still work, and so do
// addresses of the other one of dual-stack services. The result names the family.
func TestAKernelWithoutAFamily(t *testing.T) {
	t.Parallel()
	for i, f := range nft.Families {
		ns, b := newNS(t)
		dial(t, b, &rawnl.Config{NetNS: ns.Fd(), Wrap: func(s rawnl.Socket) rawnl.Socket {
			return lackingFamily{s, f}
		}})
		four := goldenService()
		both := goldenService(func(s *servicemodel.Service) {
			s.Name.Name, s.Ports[0].NodePort = "both", 0
			s.ClusterIPs = []netip.Addr{netip.MustParseAddr("10.96.0.11"),
				netip.MustParseAddr("fd00:10:96::10")}
		})
		node := goldenNode()
		node.ServiceCIDRs = append(node.ServiceCIDRs, netip.MustParsePrefix("fd00:10:96::/112"))
		s := servicemodel.State{}.WithNode(node).WithService(four).WithService(both).
			WithEndpoints(both.Name, goldenEndpoints("10.244.1.1", "fd00:10:244::1"))
		e := dataplane.New(b, nil)
		for range 3 { // the second one knows, the reading before the third asks again
			r, err := e.Apply(t.Context(), s)
			require.NoError(t, err)
			require.Len(t, r.Refused, 1)
			require.Equal(t, f.Model, r.Refused[0].Family)
			require.ErrorIs(t, r.Refused[0].Err, dataplane.ErrUnsupported)
			require.ErrorContains(t, r.Refused[0].Err, "nft_reject")
			require.ErrorContains(t, r.Refused[0].Err, f.Model.String())
			s = s.WithEndpoints(both.Name, goldenEndpoints("10.244.1.2", "fd00:10:244::2"))
			e.Resync()
		}
		trace := e.Status().Trace(servicemodel.Packet{Src: netip.MustParseAddrPort("192.0.2.1:1"),
			Dst: netip.AddrPortFrom(both.ClusterIPs[i], 80), Protocol: servicemodel.TCP},
			servicemodel.Locality{})
		require.Contains(t, trace.String(), "refused      "+f.Model.String()+": nftables cannot")
		require.NotContains(t, trace.String(), "the service that has")
		node.OnlyFamily = nft.Families[1-i].Model
		held := s.WithNode(node)
		require.NotZero(t, mustResolve(t, held).Len())
		requireAdopts(t, newBackend(t, ns, nil), held, mustResolve(t, held))
	}
}
