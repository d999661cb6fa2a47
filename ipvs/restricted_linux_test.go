package ipvs_test

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/ipvs"
	"github.com/kernlb/kernlb/servicemodel"
)

// Only clients in the source ranges reach a load-balancer IP that is an address of the node, even
// while the service comes and goes, and while everything is removed.
func TestKernelSourceRangesHoldOnAddressesOfTheNode(t *testing.T) {
	t.Parallel()
	k := newKernel(t, ipvs.Config{})
	at := k.Node.IPv4
	only := func(s *servicemodel.Service) {
		s.Ports = []servicemodel.ServicePort{{Protocol: servicemodel.TCP, Port: 80}}
		s.LoadBalancerIPs = []servicemodel.LoadBalancerIP{{Addr: at}}
		s.LoadBalancerSourceRanges = []netip.Prefix{netip.PrefixFrom(k.Outside[0].IPv4, 32)}
	}
	with := k.state(web(only), "pod2", "pod3")
	without := servicemodel.State{}.WithNode(servicemodel.Node{Name: "this"})
	ctx, stop := context.WithCancel(t.Context())
	var asking sync.WaitGroup
	var asked, answered atomic.Int32
	for range 4 {
		asking.Go(func() {
			for ctx.Err() == nil {
				probe := netnstest.Probe{From: k.Outside[1], Proto: servicemodel.TCP,
					To: netip.AddrPortFrom(at, 80), Timeout: 30 * time.Millisecond}
				if probe.Send(ctx).Kind == netnstest.Answered {
					answered.Add(1)
				}
				asked.Add(1)
			}
		})
	}
	for i := range 30 {
		k.apply(with)
		if i%10 == 0 {
			out := netnstest.Probe{From: k.Outside[0], Proto: servicemodel.TCP,
				To: netip.AddrPortFrom(at, 80), Timeout: 5 * time.Second}.Send(t.Context())
			require.Equal(t, netnstest.Answered, out.Kind, out)
			ok(k.engine.Cleanup(t.Context()))(t)
		}
		k.apply(without)
	}
	stop()
	asking.Wait()
	require.Positive(t, asked.Load())
	require.Zero(t, answered.Load(), "of %d", asked.Load())
}
