package ipvs_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/test/nstest"
	"github.com/kernlb/kernlb/ipvs"
	"github.com/kernlb/kernlb/servicemodel"
)

// manyServices returns a state of n services with ten endpoints each.
func manyServices(n int) servicemodel.State {
	s := servicemodel.State{}.WithNode(servicemodel.Node{Name: "this"})
	for i := range n {
		svc := &servicemodel.Service{Name: servicemodel.Name{Namespace: "default",
			Name: fmt.Sprintf("s%d", i)},
			ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})},
			Ports:      []servicemodel.ServicePort{{Protocol: servicemodel.TCP, Port: 80}}}
		s = s.WithService(svc).WithEndpoints(svc.Name, tenEndpoints(i, 10))
	}
	return s
}

func tenEndpoints(i, n int) (l []servicemodel.Endpoint) {
	for j := range n {
		l = append(l,
			servicemodel.Endpoint{
				Addr:  netip.AddrFrom4([4]byte{10, 128 + byte(j), byte(i >> 8), byte(i)}),
				Ready: true, Serving: true,
				Ports: []servicemodel.EndpointPort{{Protocol: servicemodel.TCP, Port: 8080}}})
	}
	return l
}

// TestManyServices applies many services, changes one endpoint, and reads everything in a new
// backend, which writes nothing. It logs the times, without and with a device.
func TestManyServices(t *testing.T) {
	needIPVS(t)
	for _, n := range []int{100, 1000, 5000} {
		applyMany(t, n, ipvs.Config{})
	}
	applyMany(t, 1000, withDevice)
}

func applyMany(t *testing.T, n int, cfg ipvs.Config) {
	t.Helper()
	ns := nstest.New(t)
	require.NoError(t, ns.SetSysctl("net/ipv4/ip_forward", "1"))
	cfg.NetNS = ns.Fd()
	b := ok(ipvs.New(&cfg))(t)
	defer b.Close()
	e, s := dataplane.New(b, nil), manyServices(n)
	start := time.Now()
	ok(e.Apply(t.Context(), s))(t)
	full := time.Since(start)
	name := servicemodel.Name{Namespace: "default", Name: "s1"}
	const times = 20
	start = time.Now()
	for i := range times {
		s = s.WithEndpoints(name, tenEndpoints(1, 10-i%2))
		ok(e.Apply(t.Context(), s))(t)
	}
	one := time.Since(start) / times
	other := ok(ipvs.New(&cfg))(t)
	defer other.Close()
	start = time.Now()
	r := ok(dataplane.New(other, nil).Apply(t.Context(), s))(t)
	require.Zero(t, r.Messages)
	require.Empty(t, r.Drift)
	t.Logf("%d services, device %q: full sync %v, one endpoint changed %v, adopted in %v", n,
		cfg.Device, full, one, time.Since(start))
}
