package nftables

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/servicemodel"
)

// BenchmarkPart opens a backend next to 5,100 frontends of other owners, publishes or removes three
// ports of a pod, and closes the backend. This is the work of a process except its start.
// examples/publish has a benchmark of the whole process.
func BenchmarkPart(b *testing.B) {
	ns, backend := newNS(b)
	do := func(what func(p *dataplane.Parts) (*dataplane.Result, error)) *dataplane.Result {
		backend := ok(openBackend(&Config{NetNS: ns.NetNS()}))(b)
		r := ok(what(dataplane.NewParts(backend, nil)))(b)
		require.NoError(b, backend.Close())
		return r
	}

	state := func(i int) (s servicemodel.State) {
		for port := range uint16(3) {
			svc := goldenService(func(svc *servicemodel.Service) {
				svc.Name = servicemodel.Name{Namespace: fmt.Sprint("pod-", i),
					Name: fmt.Sprint("port-", port)}
				svc.ClusterIPs[0] = netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})
				svc.Ports[0].Port, svc.Ports[0].NodePort = 80+port, 0
			})
			s = s.WithService(svc).WithEndpoints(svc.Name, goldenEndpoints("10.244.1.1"))
		}

		return s
	}

	others := dataplane.NewParts(backend, nil)
	for i := range 1700 {
		ok(others.Apply(b.Context(), fmt.Sprint("pod-", i), state(i)))(b)
	}
	own := state(1700)
	b.ReportAllocs()
	for b.Loop() {
		r := do(func(p *dataplane.Parts) (*dataplane.Result, error) {
			return p.Apply(b.Context(), "pod-1700", own)
		})
		require.Equal(b, 3, r.Counts.Added)
		do(func(p *dataplane.Parts) (*dataplane.Result, error) {
			return p.Remove(b.Context(), "pod-1700")
		})
	}
}
