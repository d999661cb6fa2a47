package iptables

import (
	"fmt"
	"math/rand/v2"
	"os/exec"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/test/dataplanetest"
	"github.com/kernlb/kernlb/internal/test/randstate"
	"github.com/kernlb/kernlb/internal/wait"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// writerStates are the states that writers apply, on different nodes.
func writerStates() []sm.State {
	g := randstate.New(randomConfig(), rand.New(rand.NewPCG(21, 0)))
	s := g.State()
	var l []sm.State
	for range 8 {
		l = append(l, s)
		for range 6 {
			s = g.Change(s)
		}
	}
	return l
}

// localnetIsOff is the drift after a program is killed between the transaction and the sysctl.
const localnetIsOff = "sysctl net.ipv4.conf.all.route_localnet is 0"

// A writer is killed at any moment. It leaves the old state or the new one. The next apply results
// in the wanted one, even if a table was deleted or another writer committed in between.
func TestKilledAtAnyMoment(t *testing.T) {
	dataplanetest.Killed(t, underTest, writerStates(), dataplanetest.KilledOptions{
		Damage: deleteATable, Harmless: []string{localnetIsOff}})
}

// deleteATable deletes one of our tables with all that is in it.
func deleteATable(ns *netnstest.NS, rng *rand.Rand) error {
	table := []string{"ip nat", "ip filter", "ip6 nat", "ip6 filter"}[rng.IntN(4)]
	return ns.Do(func() error {
		// Adding the table first makes the command succeed even if the table does not exist.
		cmd := exec.Command("nft", "add table "+table+"; delete table "+table)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", cmd, err, out)
		}
		return nil
	})
}

// Writers that write without pause all get their turns, and the kernel ends up with the state of
// one of them.
func TestWritersTakeTurns(t *testing.T) {
	t.Parallel()
	dataplanetest.Writers(t, underTest, slices.Repeat(writerStates(), 10), localnetIsOff)
}

// Without turns, the result is still right, though one writer may give up.
func TestWritersAreRightWithoutTurns(t *testing.T) {
	t.Parallel()
	dataplanetest.WritersWithoutTurns(t, underTest, slices.Repeat(writerStates(), 10),
		localnetIsOff)
}

// lateWriters are the states of the kernel when two writers begin.
var lateWriters = []struct {
	name  string
	first sm.State // the state that both know
	lost  bool     // the version is lost, as after "iptables -X"
}{
	{"nothing is there", sm.State{}, false},
	{"an instance is there", webService(), false},
	{"an instance without a version is there", webService(), true},
}

// A late writer is refused, and the first writer's objects stay. The late writer observes and then
// succeeds.
func TestTheLateWriterIsRefused(t *testing.T) {
	t.Parallel()
	for _, c := range lateWriters {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			one, ns, table := opened(t, Config{})
			two := another(t, ns)
			if c.first.Node().Name != "" {
				table = apply(t, one, c.first)
			}
			if c.lost {
				runTool(t, ns, "", "iptables", "-t", "nat", "-X",
					one.found.versions[0].name)
			}
			for _, b := range []*backend{one, two} {
				o := observation(t, b)
				require.Equal(t, c.lost, len(o.Drift) > 0)
				table = o.Table
			}
			// The writers change different services, so that only the version prevents the second
			// commit.
			a := resolve(t, table, c.first.WithNode(testNode()).WithService(plainService("a", 1)))
			b := resolve(t, table, c.first.WithNode(testNode()).WithService(plainService("b", 2)))
			ok(one.Commit(t.Context(), sm.Diff(table, a)))(t)
			_, err := two.Commit(t.Context(), sm.Diff(table, b))
			require.ErrorIs(t, err, dataplane.ErrConflict)
			requireAdopts(t, ns, c.first.WithNode(testNode()).WithService(plainService("a", 1)), a)
			requireIntegrity(t, two, dataplane.Broken, "what it knows is worth nothing")
			_, err = two.Commit(t.Context(), sm.Diff(table, b))
			require.ErrorIs(t, err, errNotObserved)

			o := observation(t, two)
			ok(two.Commit(t.Context(), sm.Diff(o.Table, b)))(t)
			one.kernel.looks = wait.Budget{} // also when no check is due
			requireIntegrity(t, one, dataplane.Broken, "another writer was there")
		})
	}
}

// plainService is a service without endpoints.
func plainService(name string, i int) *sm.Service {
	return &sm.Service{
		Name: svcName(name), Ports: []sm.ServicePort{{Protocol: sm.TCP, Port: 80}},
		ClusterIPs: addrs(fmt.Sprintf("10.96.1.%d", i)),
	}
}
