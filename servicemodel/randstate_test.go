package servicemodel_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/randstate"
	"github.com/kernlb/kernlb/servicemodel"
)

// Resolving one change after the other gives what resolving the last state from scratch gives.
func TestIncrementalIsFromScratch(t *testing.T) {
	t.Parallel()
	c := randstate.Config{Services: 12, EndpointPorts: []uint16{8080, 8081, 9090}, Weights: true}
	for i := range 8 {
		c.Places = append(c.Places, randstate.Place{
			IPv4: netip.AddrFrom4([4]byte{10, 244, byte(i % 3), byte(i + 1)}),
			IPv6: netip.MustParseAddr(fmt.Sprintf("fd00:10:244::%x", i+1)),
			Node: []string{"node-0", "node-1", ""}[i%3], Zone: "z" + fmt.Sprint(i%2)})
	}
	c.Nodes = []servicemodel.Node{
		{Name: "node-0", Zone: "z0", Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.10")}},
		{Name: "node-1", Zone: "z1", LocalPods: servicemodel.PodDetector{
			CIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}},
		{Name: "node-0", MasqueradeAll: true},
	}
	c.Node = c.Nodes[0]
	for seed := range uint64(50) {
		g := randstate.New(c, rand.New(rand.NewPCG(seed, 7)))
		s := g.State()
		var table *servicemodel.Table
		for step := range 60 {
			next, err := servicemodel.Resolve(table, s)
			require.NoError(t, err)
			scratch, err := servicemodel.Resolve(nil, s)
			require.NoError(t, err)
			d := servicemodel.Diff(next, scratch.Arrange(next))
			require.True(t, d.Empty(), "seed %d step %d: %s", seed, step, d)
			require.True(t, table.Apply(servicemodel.Diff(table, next)).Equal(next),
				"seed %d step %d", seed, step)
			table = next
			changed := g.Change(s)
			require.Equal(t, changed.Since(servicemodel.State{}).Growth,
				s.Since(servicemodel.State{}).Growth+changed.Since(s).Growth)
			s = changed
		}
	}
}
