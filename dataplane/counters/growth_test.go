package counters

import (
	"net/netip"
	"testing"

	"github.com/kernlb/kernlb/internal/test/growth"
	"github.com/kernlb/kernlb/servicemodel"
)

// The time to sum up grows with the number of counted pairs.
//
//nolint:paralleltest // it measures
func TestCostsAreLinear(t *testing.T) {
	growth.Linear(t, 1<<16, func(n int) *Reading {
		r := &Reading{Pairs: map[Pair]Values{}}
		for i := range n {
			a := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
			r.Pairs[Pair{servicemodel.TCP, netip.AddrPortFrom(a, 80),
				netip.AddrPortFrom(a, 8080)}] = Values{Connections: 1}
		}

		return r
	}, func(r *Reading) { r.Of(nil, nil) })
}
