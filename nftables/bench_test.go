package nftables

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/kernlb/kernlb/nftables/internal/plan"
	"github.com/kernlb/kernlb/servicemodel"
)

// Measures the plan for the replacement of one endpoint of many.
func BenchmarkPlanOneEndpoint(b *testing.B) {
	for _, n := range []int{10, 1000, 5000} {
		b.Run(fmt.Sprintf("endpoints=%d", n), func(b *testing.B) {
			var eps []servicemodel.Endpoint
			for i := range n {
				a := netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)})
				eps = append(eps, goldenEndpoints(a.String())...)
			}

			before := servicemodel.State{}.WithNode(goldenNode()).WithService(
				goldenService()).WithEndpoints(goldenService().Name, eps)
			eps = slices.Clone(eps)
			eps[n/2].Addr = netip.MustParseAddr("10.245.0.1")
			after := before.WithEndpoints(goldenService().Name, eps)
			old, err := servicemodel.Resolve(nil, before)
			if err != nil {
				b.Fatal(err)
			}
			next, err := servicemodel.Resolve(old, after)
			if err != nil {
				b.Fatal(err)
			}
			pl := plan.NewPlanner(defaultTable, firstEpoch)
			first := pl.Plan(servicemodel.Diff(nil, old))
			for i := range first.Tables {
				pl.Tables[i].Committed(first.Tables[i])
			}
			b.ReportAllocs()
			for b.Loop() {
				pl.Plan(servicemodel.Diff(old, next))
			}
		})
	}
}
