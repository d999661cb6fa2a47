package ipvs

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/servicemodel"
)

// A virtual server shows the pool for which it was made, unless all of its destinations drain.
func TestServersShowTheirPools(t *testing.T) {
	t.Parallel()
	b := withoutKernel(t)
	fe := &servicemodel.Frontend{Key: servicemodel.FrontendKey{
		Addr: netip.MustParseAddr("10.96.0.10"), Protocol: servicemodel.TCP, Port: 80}}
	k := ipvsnl.AddressService(ipvsnl.TCP, netip.AddrPortFrom(fe.Key.Addr, fe.Key.Port))
	for _, forwarding := range []servicemodel.Forwarding{servicemodel.ForwardNAT,
		servicemodel.ForwardDirect, servicemodel.ForwardTunnel} {
		p := &servicemodel.Pool{Forwarding: forwarding, Scheduler: servicemodel.LeastConn,
			Slots: []servicemodel.Slot{
				{Endpoint: netip.MustParseAddrPort("10.244.1.1:80"), Weight: 1},
				{Endpoint: netip.MustParseAddrPort("10.244.1.2:80"), Weight: 0xffff}}}
		s := b.pl.server(k, fe, p, false)
		require.Equal(t, p, s.pool(p.ID))
		for key, d := range s.dests {
			d.Weight = 0
			s.dests[key] = d
		}
		require.Nil(t, s.pool(p.ID))
	}
}
