package nftables

import (
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/nftables/internal/form"
	"github.com/kernlb/kernlb/servicemodel"
)

// wholeState is a service with many endpoints and addresses. Every eighth endpoint has the address
// of the previous one. heavy is the weight of the first endpoint. The endpoint with the number
// replaced has a different address.
func wholeState(whole bool, n, addresses, heavy, replaced int) servicemodel.State {
	svc := &servicemodel.Service{Name: stickyServiceName,
		Ports: []servicemodel.ServicePort{{Protocol: servicemodel.TCP, Port: 80}}}
	if whole {
		svc.SessionAffinity = servicemodel.SessionAffinity{ClientIP: true, WholeService: true}
	}
	for i := range addresses {
		svc.ExternalIPs = append(svc.ExternalIPs, netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)}))
	}
	var eps []servicemodel.Endpoint
	for i := range n {
		at, port := i, uint16(8080)
		if i%8 == 7 {
			at, port = i-1, 8081
		}
		a := netip.AddrFrom4([4]byte{10, 244, byte(at >> 8), byte(at)})
		if i == replaced {
			a = netip.AddrFrom4([4]byte{10, 245, byte(i >> 8), byte(i)})
		}
		e := servicemodel.Endpoint{Addr: a, Ports: []servicemodel.EndpointPort{
			{Protocol: servicemodel.TCP, Port: port}}}
		if i == 0 {
			e.Weight = uint16(heavy)
		}
		eps = append(eps, e)
	}

	return servicemodel.State{}.WithService(svc).WithEndpoints(svc.Name, eps)
}

var stickyServiceName = servicemodel.Name{Namespace: "default", Name: "whole"}

// A change of one endpoint of a whole service, or of its weight, costs at most three times as much
// as without the affinity, for any number of endpoints and addresses.
func TestAnEndpointOfAWholeServiceCostsLittle(t *testing.T) {
	for _, n := range []int{1000, 10_000} {
		for _, addresses := range []int{1, 12} {
			for what, to := range map[string][2]int{"an endpoint": {1, 6}, "a twin": {1, 15},
				"a weight": {2, -1}} {
				t.Run(fmt.Sprint(what, " of ", n, " at ", addresses, " addresses"),
					func(t *testing.T) {
						cost := func(whole bool) (allocs, elements, bytes float64) {
							b := newMemoryBackend(&memory{t: t})
							old := mustResolve(t, wholeState(whole, n, addresses, 1, -1))
							b.committed(b.pl.Plan(servicemodel.Diff(nil, old)))
							next := mustResolve(t,
								wholeState(whole, n, addresses, to[0], to[1])).Arrange(old)
							c := servicemodel.Diff(old, next)
							e, _ := b.pl.Plan(c).Load()
							const runs = 4
							var before, after runtime.MemStats
							runtime.ReadMemStats(&before)
							start := time.Now()
							for range runs {
								clear(b.pl.Writer.Changes[:])
								b.pl.Plan(c)
							}

							took := time.Since(start)
							runtime.ReadMemStats(&after)
							t.Logf("whole %v: %d elements, %v", whole, e, took/runs)
							return float64(after.Mallocs - before.Mallocs), float64(e),
								float64(after.TotalAlloc - before.TotalAlloc)
						}

						allocs, elements, bytes := cost(false)
						allocsWhole, elementsWhole, bytesWhole := cost(true)
						require.LessOrEqual(t, allocsWhole, 3*allocs)
						require.LessOrEqual(t, elementsWhole, 3*elements)
						require.LessOrEqual(t, bytesWhole, 3*bytes)
					})
			}
		}
	}
}

// The elements by address are right after any change of endpoints with shared addresses.
func TestElementsByAddressFollowTheEndpoints(t *testing.T) {
	t.Parallel()
	w := form.NewWriter()
	pools := make([]*servicemodel.Pool, 1<<4)
	for set := range pools { // two ports at each of two addresses
		p := &servicemodel.Pool{}
		for i := range 4 {
			if set>>i&1 > 0 {
				p.Slots = append(p.Slots, servicemodel.Slot{Weight: 1, Endpoint: netip.AddrPortFrom(
					netip.AddrFrom4([4]byte{10, 0, 0, byte(i / 2)}), uint16(80+i%2))})
			}
		}

		if slices.Reverse(p.Slots); set > 0 {
			pools[set] = p
		}
	}

	fe := &servicemodel.Frontend{Key: tcpKey("10.96.0.1:80"), AffinityService: true}
	elements := func(of *servicemodel.Pool) map[string]string {
		l := map[string]string{}
		w.ByAddress(fe, false, nil, of, nil, func(_ string, e nft.Elem) {
			l[string(e.Key)] = string(e.Data)
		})
		return l
	}

	for _, old := range pools {
		for _, next := range pools {
			have := elements(old)
			w.ByAddress(fe, false, old, next, func(_ string, e nft.Elem) {
				require.Equal(t, have[string(e.Key)], string(e.Data))
				delete(have, string(e.Key))
			}, func(_ string, e nft.Elem) {
				require.NotContains(t, have, string(e.Key))
				have[string(e.Key)] = string(e.Data)
			})

			require.Equal(t, elements(next), have)
		}
	}

	twins := elements(pools[3])
	require.Len(t, twins, 1)
	for _, data := range twins {
		require.Equal(t, string(nft.AppendEndpoint(nil, netip.MustParseAddrPort("10.0.0.0:80"))),
			data)
	}
}
