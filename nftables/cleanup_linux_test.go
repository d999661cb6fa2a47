package nftables_test

import (
	"context"
	"net/netip"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/test/must"
	"github.com/kernlb/kernlb/internal/test/nstest"
	"github.com/kernlb/kernlb/servicemodel"
)

// A cleanup loses no packet of a service that another program serves, too. Here, the network beyond
// the node answers for the addresses of services. The other program also translates addresses, so
// that the replies to the last translated packets find their way.
func TestACleanupLosesNoPacket(t *testing.T) {
	t.Parallel()
	c := netnstest.Start(t, netnstest.Options{})
	require.NoError(t, c.Pods[1].Serve(servicemodel.UDP, 8080))
	nstest.Exec(t, c.Node.NS, `table ip other {
		chain c { type nat hook prerouting priority 0; ip daddr 192.0.2.99 dnat to 192.0.2.98; }
	}`, "nft", "-f", "-")
	l := newLocalhost(t, c, "")
	to := netip.MustParseAddrPort("10.96.0.10:80")
	svc := &servicemodel.Service{
		Name:       servicemodel.Name{Namespace: "default", Name: "web"},
		Ports:      []servicemodel.ServicePort{{Protocol: servicemodel.UDP, Port: to.Port()}},
		ClusterIPs: []netip.Addr{to.Addr()},
		Masquerade: servicemodel.MasqueradeAt(servicemodel.MasqueradeNever),
	}
	s := servicemodel.State{}.WithNode(servicemodel.Node{
		ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}}).WithService(svc).
		WithEndpoints(svc.Name, []servicemodel.Endpoint{{Addr: c.Pods[1].IPv4,
			Ports: []servicemodel.EndpointPort{{Protocol: servicemodel.UDP, Port: 8080}}}})

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	probe := netnstest.Probe{From: c.Pods[0], Proto: servicemodel.UDP, To: to}
	const clients = 8
	var served sync.RWMutex // no packet is in flight when the service is added
	by := make(chan map[string]int, clients)
	for range clients {
		go func() {
			answers := map[string]int{}
			for ctx.Err() == nil {
				served.RLock()
				o := probe.Send(t.Context())
				served.RUnlock()
				if o.Kind == netnstest.Answered {
					answers[o.Server]++
				} else {
					answers[o.String()]++
				}
			}

			by <- answers
		}()
	}

	for i := range 25 {
		served.Lock()
		l.apply(s)
		served.Unlock()
		if i%5 == 0 { // an earlier cleanup was killed between its two transactions
			nstest.Exec(t, c.Node.NS, "", "nft", "delete chain ip kernlb filter-input; "+
				"delete chain ip kernlb filter-forward; delete chain ip kernlb filter-output")
		}

		ok(l.engine.Cleanup(t.Context()))(t)
	}

	cancel()
	total := map[string]int{}
	for range clients {
		for k, n := range <-by {
			total[k] += n
		}
	}

	t.Log(total)
	require.Len(t, total, 2, "lost packets: %v", total)
}

func ok[T any](v T, err error) func(testing.TB) T { return must.OK(v, err) }
