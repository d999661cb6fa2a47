package servicemodel_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/test/growth"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// manyPorts returns a service with n ports. edit changes the service, and returns its endpoints. It
// also gets the endpoint ports that serve these ports.
func manyPorts(n int, edit func(*sm.Service, []sm.EndpointPort) []sm.Endpoint) sm.State {
	svc := webService(func(s *sm.Service) { s.Ports = nil })
	var ports []sm.EndpointPort
	for i := range n {
		name := fmt.Sprintf("p%d", i)
		svc.Ports = append(svc.Ports, sm.ServicePort{Name: name, Protocol: sm.TCP,
			Port: uint16(1 + i), NodePort: uint16(30000 + i)})
		ports = append(ports, sm.EndpointPort{Name: name, Protocol: sm.TCP, Port: uint16(8000 + i)})
	}

	eps := edit(svc, ports)
	return stateOf(thisNode, svc, eps...)
}

func numbered(i int) string { return netip.AddrFrom4([4]byte{10, 65, 0, byte(i)}).String() }

// The time for a service with thousands of ports is proportional to their number. Otherwise anyone
// who may create such a service could hold up all services.
//
//nolint:paralleltest // it measures
func TestTimeGrowsAsPortsDo(t *testing.T) {
	for name, edit := range map[string]func(*sm.Service, []sm.EndpointPort) []sm.Endpoint{
		"endpoints with all ports": func(_ *sm.Service, ports []sm.EndpointPort) (l []sm.Endpoint) {
			for i := range 10 {
				l = append(l, endpoint(numbered(i), here, withPorts(ports)))
			}
			return l
		},
		"endpoints that share no ports": func(_ *sm.Service, ports []sm.EndpointPort) (
			l []sm.Endpoint) {
			for i := range 4 {
				l = append(l, endpoint(numbered(2*i), withPorts(ports)),
					endpoint(numbered(2*i+1), withPorts(ports[1:])))
			}

			return l
		},
		"endpoints without the ports": func(s *sm.Service, ports []sm.EndpointPort) (
			l []sm.Endpoint) {
			externalLocal(s)
			s.HealthCheckNodePort = 29999
			for i := range ports {
				ports[i].Name = "other-" + ports[i].Name
			}
			return append(l, endpoint(numbered(0), here, withPorts(ports)))
		},
		"slow start": func(s *sm.Service, ports []sm.EndpointPort) (l []sm.Endpoint) {
			slowly(time.Minute)(s)
			return append(l, endpoint(numbered(0), withPorts(ports)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			growth.Linear(t, 1<<13, func(n int) sm.State { return manyPorts(n, edit) },
				func(s sm.State) {
					table := mustResolve(t, nil, s)
					more := s.WithEndpoints(web, append(s.Endpoints(web), endpoint("10.66.0.1",
						withPorts(s.Endpoints(web)[0].Ports))))
					next := mustResolve(t, table, more)
					require.NotNil(t, next.At(time.Now, table))
				})
		})
	}
}

func withPorts(ports []sm.EndpointPort) func(*sm.Endpoint) {
	return func(e *sm.Endpoint) { e.Ports = ports }
}
