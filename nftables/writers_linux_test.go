package nftables_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/kernlb/kernlb/internal/test/dataplanetest"
	"github.com/kernlb/kernlb/internal/test/randstate"
	"github.com/kernlb/kernlb/servicemodel"
)

// randomStates returns n states, most of which differ little from the previous state.
func randomStates(seed uint64, n int) []servicemodel.State {
	c := randstate.Config{Services: 12, EndpointPorts: []uint16{8080, 8081, 9090}, Weights: true,
		Ranges: true, NodeRanges: true, Shifted: true, Edit: randstate.ForRanges,
		Node: servicemodel.Node{Name: "node-0"}}
	for i := range 8 {
		c.Places = append(c.Places,
			randstate.Place{IPv4: netip.AddrFrom4([4]byte{10, 244, 0, byte(i + 1)}),
				IPv6: netip.MustParseAddr(fmt.Sprintf("fd00:10:244::%x", i+1)),
				Node: []string{"node-0", "node-1"}[i%2]})
	}

	g := randstate.New(c, rand.New(rand.NewPCG(seed, 1)))
	l := []servicemodel.State{g.State()}
	for len(l) < n {
		l = append(l, g.Change(l[len(l)-1]))
	}
	return l
}

func TestWritersOfOneInstance(t *testing.T) {
	t.Parallel()
	n := 240
	if testing.Short() { // so that the race detector takes seconds and not minutes
		n = 60
	}
	dataplanetest.Writers(t, underTest, randomStates(1, n))
}

func TestWritersWithoutTurns(t *testing.T) {
	t.Parallel()
	dataplanetest.WritersWithoutTurns(t, underTest, randomStates(3, 120))
}

func TestKilledAtAnyMoment(t *testing.T) {
	dataplanetest.Killed(t, underTest, randomStates(2, 100), dataplanetest.KilledOptions{})
}

func TestEndures(t *testing.T) { dataplanetest.Endures(t, underTest, randomStates(4, 100)) }

func TestRolls(t *testing.T) { dataplanetest.Rolls(t, underTest) }
