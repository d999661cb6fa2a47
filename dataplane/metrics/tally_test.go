package metrics

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/test/must"
	"github.com/kernlb/kernlb/internal/test/randstate"
	"github.com/kernlb/kernlb/servicemodel"
)

// Counting each change gives the same numbers as counting the whole table.
func TestTallyFollowsTheTable(t *testing.T) {
	t.Parallel()
	c := randstate.Config{Services: 12, EndpointPorts: []uint16{8080, 8081},
		Node: servicemodel.Node{Name: "node-0"}}
	for i := range 6 {
		c.Places = append(c.Places, randstate.Place{
			IPv4: netip.AddrFrom4([4]byte{10, 244, 0, byte(i + 1)}),
			IPv6: netip.MustParseAddr(fmt.Sprintf("fd00:10:244::%x", i+1)),
			Node: []string{"node-0", "node-1", ""}[i%3]})
	}

	dropped := false
	for seed := range uint64(20) {
		g := randstate.New(c, rand.New(rand.NewPCG(seed, 3)))
		var followed tally
		var table *servicemodel.Table
		for s, step := g.State(), 0; step < 40; s, step = g.Change(s), step+1 {
			next := ok(servicemodel.Resolve(table, s))(t)
			followed.follow(servicemodel.Diff(table, next))
			var anew tally
			anew.follow(servicemodel.Diff(nil, next))
			require.Equal(t, anew, followed, "seed %d step %d", seed, step)
			require.Equal(t, next.Len(), followed.frontends)
			dropped = dropped || len(anew.noLocal) > 0
			table = next
		}
	}

	require.True(t, dropped, "no random state drops for want of an endpoint on the node")
}

func ok[T any](v T, err error) func(testing.TB) T { return must.OK(v, err) }
