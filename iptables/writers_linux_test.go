package iptables

import (
	"fmt"
	"math/rand/v2"
	"os/exec"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/dataplanetest"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/randstate"
	"github.com/kernlb/kernlb/internal/ration"
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

// localnetIsOff is what a program leaves that is killed between the transaction and the sysctl.
const localnetIsOff = "sysctl net.ipv4.conf.all.route_localnet is 0"

// Killed at any moment, a writer leaves the old state or the new one. The next apply ends at the
// wanted one, whoever deleted a table or wrote in between.
func TestKilledAtAnyMoment(t *testing.T) {
	dataplanetest.Killed(t, underTest, writerStates(), dataplanetest.KilledOptions{
		Damage: deleteATable, Harmless: []string{localnetIsOff}})
}

// deleteATable deletes one of our tables with all that is in it.
func deleteATable(ns *netnstest.NS, rng *rand.Rand) error {
	table := []string{"ip nat", "ip filter", "ip6 nat", "ip6 filter"}[rng.IntN(4)]
	return ns.Do(func() error {
		// Adding it first makes the command succeed if the table is not there.
		cmd := exec.Command("nft", "add table "+table+"; delete table "+table)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", cmd, err, out)
		}
		return nil
	})
}

// Writers that write without pause get their turns, and the kernel ends at the state of one of
// them.
func TestWritersTakeTurns(t *testing.T) {
	t.Parallel()
	dataplanetest.Writers(t, underTest, slices.Repeat(writerStates(), 10), localnetIsOff)
}

// Without turns, what they write is right all the same, though one may give up.
func TestWritersAreRightWithoutTurns(t *testing.T) {
	t.Parallel()
	dataplanetest.WritersWithoutTurns(t, underTest, slices.Repeat(writerStates(), 10),
		localnetIsOff)
}

// lateWriters are what is there when two writers begin.
var lateWriters = []struct {
	name  string
	first sm.State // what both know
	lost  bool     // the version is lost, as after "iptables -X"
}{
	{"nothing is there", sm.State{}, false},
	{"an instance is there", webService(), false},
	{"an instance without a version is there", webService(), true},
}

// A writer that is late is refused, and what the first wrote stays; it observes and succeeds.
func TestTheLateWriterIsRefused(t *testing.T) {
	t.Parallel()
	for _, c := range lateWriters {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			one, ns, table := opened(t, Config{})
			two, err := New(&Config{NetNS: ns.Fd()})
			require.NoError(t, err)
			defer two.Close()
			if c.first.Node().Name != "" {
				table = apply(t, one, c.first)
			}
			if c.lost {
				runTool(t, ns, "", "iptables", "-t", "nat", "-X",
					one.l.names.version(one.found.versions[0]))
			}
			for _, b := range []*Backend{one, two} {
				o, err := b.Observe(t.Context(), nil)
				require.NoError(t, err)
				require.Equal(t, c.lost, len(o.Drift) > 0)
				table = o.Table
			}
			// They change different services, so that nothing but the version stands in the way.
			a := resolve(t, table, c.first.WithNode(testNode()).WithService(plainService("a", 1)))
			b := resolve(t, table, c.first.WithNode(testNode()).WithService(plainService("b", 2)))
			_, err = one.Commit(t.Context(), sm.Diff(table, a))
			require.NoError(t, err)
			_, err = two.Commit(t.Context(), sm.Diff(table, b))
			require.ErrorIs(t, err, dataplane.ErrConflict)
			requireAdopts(t, ns, c.first.WithNode(testNode()).WithService(plainService("a", 1)), a)
			i, err := two.Integrity(t.Context())
			require.NoError(t, err)
			require.Equal(t, dataplane.Broken, i, "what it knows is worth nothing")
			_, err = two.Commit(t.Context(), sm.Diff(table, b))
			require.ErrorIs(t, err, errNotObserved)

			o, err := two.Observe(t.Context(), nil)
			require.NoError(t, err)
			_, err = two.Commit(t.Context(), sm.Diff(o.Table, b))
			require.NoError(t, err)
			one.kernel.looks = ration.Ration{} // where no look is due, too
			i, err = one.Integrity(t.Context())
			require.NoError(t, err)
			require.Equal(t, dataplane.Broken, i, "another writer was there")
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
