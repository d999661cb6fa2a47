package flows_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/kernlb/kernlb/dataplane/flows"
	"github.com/kernlb/kernlb/internal/test/growth"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// When all endpoints of a service are removed, the time to find stale flows grows with the number
// of its ports.
//
//nolint:paralleltest // it measures
func TestTimeGrowsAsPortsDo(t *testing.T) {
	for _, p := range []sm.Protocol{sm.TCP, sm.UDP} {
		t.Run(p.String(), func(t *testing.T) {
			growth.Linear(t, 1<<13, func(n int) (tables [2]sm.State) {
				svc := &sm.Service{Name: sm.Name{Namespace: "default", Name: "web"},
					ClusterIPs:  []netip.Addr{netip.MustParseAddr("10.96.0.1")},
					Connections: sm.ConnectionPolicy{Mode: sm.CutConnections}}
				var ports []sm.EndpointPort
				for i := range n {
					name := fmt.Sprint("p", i)
					svc.Ports = append(svc.Ports, sm.ServicePort{Name: name, Protocol: p,
						Port: uint16(1 + i)})
					ports = append(ports, sm.EndpointPort{Name: name, Protocol: p,
						Port: uint16(1 + i)})
				}

				for i := range tables {
					var eps []sm.Endpoint
					for k := range 4 {
						eps = append(eps, sm.Endpoint{
							Addr:  netip.AddrFrom4([4]byte{10, 244, 1, byte(k)}),
							Ports: ports})
						if i == 1 && k > 0 {
							eps[k].Condition = sm.Serving
						}
					}

					tables[i] = sm.State{}.WithService(svc).WithEndpoints(svc.Name, eps)
				}

				return tables
			}, func(states [2]sm.State) {
				k := ok(flows.New(&fakeTable{}, nil))(t)
				var before *sm.Table
				for _, s := range states {
					table := ok(sm.Resolve(before, s))(t)
					k.Changed(s, sm.Diff(before, table))
					ok(k.Settle(t.Context()))(t)
					before = table
				}
			})
		})
	}
}
