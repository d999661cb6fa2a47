package nftables

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/internal/test/proportion"
	"github.com/kernlb/kernlb/servicemodel"
)

// Next to many other parts, a part is applied, replaced and removed at the same cost. Each time a
// new backend does this, as for a CNI plugin.
func TestAPartCostsTheSameBesideManyOthers(t *testing.T) {
	var sent []backends.Stats
	proportion.Calls(t, proportion.Cost{}, func(n int) func() {
		ns, backend := newNS(t)
		state := func(owner string, services, version int) (s servicemodel.State) {
			for i := range services {
				svc := goldenService(func(svc *servicemodel.Service) {
					svc.Name = servicemodel.Name{Namespace: owner, Name: fmt.Sprint("port-", i)}
					svc.ClusterIPs[0] = netip.AddrFrom4([4]byte{10, 96 + byte(len(owner)),
						byte(i >> 8), byte(i)})
					svc.Ports[0].NodePort = 0
				})
				s = s.WithService(svc).WithEndpoints(svc.Name,
					goldenEndpoints(fmt.Sprint("10.244.1.", 1+version)))
			}

			return s
		}

		ok(dataplane.NewParts(backend, nil).Apply(t.Context(), "others", state("others", n, 0)))(t)
		return func() {
			total := backends.Stats{}
			for i := range 3 {
				b := ok(openBackend(&Config{NetNS: ns.NetNS()}))(t)
				p := dataplane.NewParts(b, nil)
				var r *dataplane.Result
				if i < 2 {
					r = ok(p.Apply(t.Context(), "own", state("own", 1, i)))(t)
				} else {
					r = ok(p.Remove(t.Context(), "own"))(t)
				}

				total = total.Plus(r.Stats)
				require.NoError(t, b.Close())
			}

			sent = append(sent, total)
		}
	})

	first, last := sent[1], sent[len(sent)-1] // the versions of instances differ
	require.Equal(t, first.Elements, last.Elements)
	require.Equal(t, first.Messages, last.Messages)
}
