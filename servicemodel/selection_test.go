package servicemodel_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	sm "github.com/kernlb/kernlb/servicemodel"
)

// A pool has exactly the endpoints that Select includes. The excluded endpoints have a reason.
// Foreign endpoints are of the other family, or share their address and port with an earlier
// choice.
func TestSelectionsAreWhatPoolsHave(t *testing.T) {
	t.Parallel()
	r := newSource(t)
	pools, foreign := 0, 0
	for range 300 {
		s := r.state()
		table := mustResolve(t, nil, s)
		for svc := range s.Services() {
			for _, p := range svc.Ports {
				for _, f := range []sm.Family{sm.IPv4, sm.IPv6} {
					id := sm.PoolID{Family: f, Service: sm.PortName{Name: svc.Name, Port: p.Name,
						Protocol: p.Protocol}}
					l := sm.Select(s, id.Service, f)
					require.Len(t, l, len(s.Endpoints(svc.Name)))
					for i, e := range s.Endpoints(svc.Name) {
						require.Equal(t, e, l[i].Endpoint)
						require.Equal(t, e.Addr, l[i].Target.Addr())
						other := sm.FamilyOf(e.Addr) != f
						require.Equal(t, l[i].Foreign, other || l[i].Cluster == "is listed again")
						require.Equal(t, other, l[i].Cluster == "is of the other family")
						if l[i].Foreign {
							foreign++
						}
					}

					for _, id.Local = range []bool{false, true} {
						if pool := table.Pool(id); pool != nil {
							pools++
							require.ElementsMatch(t, targets(l, id.Local), endpointsIn(pool), id)
						}
					}
				}
			}
		}
	}

	require.Greater(t, pools, 100)
	require.Greater(t, foreign, 100)
}

// targets are the selected endpoints.
func targets(l []sm.Selection, local bool) (in []netip.AddrPort) {
	for _, s := range l {
		if !local && s.Cluster == "" || local && s.Local == "" {
			in = append(in, s.Target)
		}
	}

	return in
}

func endpointsIn(p *sm.Pool) (in []netip.AddrPort) {
	for _, s := range p.Slots {
		in = append(in, s.Endpoint)
	}
	return slices.Clip(in)
}
