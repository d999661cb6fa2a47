package iptables

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/dataplane/netns"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/test/dataplanetest"
	"github.com/kernlb/kernlb/internal/test/must"
	"github.com/kernlb/kernlb/internal/test/randstate"
	"github.com/kernlb/kernlb/internal/test/rawnltest"
	"github.com/kernlb/kernlb/internal/wait"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// underTest is the backend for the tests of package dataplanetest.
var underTest = dataplanetest.Backend{Loopback: true, Ranges: true, Shifted: true,
	Open: func(ns netns.Namespace) (backends.Backend, error) {
		return openBackend(&Config{NetNS: ns})
	}}

func TestConformance(t *testing.T) {
	t.Parallel()
	dataplanetest.Run(t, underTest)
}

func TestRandomPackets(t *testing.T) {
	t.Parallel()
	dataplanetest.Random(t, underTest, 0)
}

func TestEveryField(t *testing.T) {
	t.Parallel()
	dataplanetest.EveryField(t, underTest, dataplanetest.FieldsOptions{
		Ranges: true,
		Refused: []string{"node.Forbidden", "node.MasqueradeNeighbours", "node.NoEndpoints",
			"service.Forwarding", "service.MasqueradeIPs[new]",
			"service.Ports[last].NodePort", "service.Scheduler"},
		Second: func(ns netns.Namespace) (backends.Backend, error) {
			return openBackend(&Config{NetNS: ns, Prefix: "SECOND"})
		}})
}

// After a sequence of changes, a new process reads exactly the applied state, and the kernel holds
// the rules that this process would have written.
func TestKernelHoldsWhatWasApplied(t *testing.T) {
	t.Parallel()
	for seed := range uint64(4) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			t.Parallel()
			b, ns, _ := opened(t, Config{})
			g := randstate.New(randomConfig(), rand.New(rand.NewPCG(seed, 1)))
			e := dataplane.New(b, nil)
			s := g.State()
			for step := range 60 {
				r, err := e.Apply(t.Context(), s)
				require.NoError(t, err, "step %d", step)
				require.Empty(t, r.Drift)
				require.Equal(t, step == 0, r.Observed, "only the start reads the kernel")

				again := applied(t, e, s)
				require.True(t, again.Changes.Empty(), "the same state: %s", again.Changes)
				require.Zero(t, again.Stats.Messages)
				if step%10 == 0 {
					requireAdopts(t, ns, s, r.Changes.New)
				}
				s = g.Change(s)
			}
		})
	}
}

// requireAdopts reads the kernel with a new backend and requires that the kernel holds the table,
// and that applying the state changes nothing.
func requireAdopts(t *testing.T, ns *netnstest.NS, s sm.State, want *sm.Table) {
	t.Helper()
	b := another(t, ns)
	e := dataplane.New(b, nil)
	o := ok(e.Observe(t.Context()))(t)
	require.Empty(t, o.Drift)
	d := sm.Diff(o.Table, want)
	require.Empty(t, d.Frontends, "observed, and applied: %s", d)
	require.Empty(t, d.Pools, "observed, and applied: %s", d)
	require.Nil(t, d.Rules, "observed, and applied: %s", d)
	require.Empty(t, d.ClusterIPs, "observed, and applied: %s", d)
	require.Empty(t, d.Hairpins, "observed, and applied: %s", d)
	r := applied(t, e, s)
	require.Zero(t, r.Stats.Messages)
}

// OpenWith opens a backend with another connection to the kernel.
func OpenWith(c rawnl.Config, cfg *Config) (backends.Backend, error) {
	b, err := openBackend(cfg)
	if err != nil {
		return nil, err
	}
	return b.with(c)
}

// openWith opens a backend with another connection to the kernel.
func openWith(c rawnl.Config) (*backend, error) {
	b, err := openBackend(&Config{NetNS: c.NetNS, Logger: c.Logger})
	if err != nil {
		return nil, err
	}
	return b.with(c)
}

// with replaces the connection to the kernel.
func (b *backend) with(c rawnl.Config) (*backend, error) {
	conn, err := rawnl.Dial(&c)
	if err != nil {
		return nil, errors.Join(err, b.Close())
	}
	b.kernel.conn.Close()
	b.kernel.conn, b.kernel.reader = conn, newReader(conn)
	if err := b.kernel.probe(context.Background()); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

// machine is the backend, with access to its connection.
func machine() dataplanetest.FaultyBackend {
	return dataplanetest.FaultyBackend{Backend: underTest,
		OpenWith: func(c rawnl.Config) (backends.Backend, error) { return openWith(c) }}
}

func TestEachCallGoesWrong(t *testing.T) {
	t.Parallel()
	dataplanetest.Faulted(t, machine)
}

func TestKernelClockJumps(t *testing.T) { dataplanetest.ClockJumps(t, underTest) }

// The rulesets of older programs were recorded with iptables-save and ip6tables-save. A file's name
// is the program's commit.
func TestObstacles(t *testing.T) {
	t.Parallel()
	o := dataplanetest.Obstacles{Machine: machine, Instance: defaultPrefix,
		Needs: "REJECT", Crowded: []string{"ip foreign", "ip nat"},
		Default: func() (backends.Backend, error) { return openBackend(nil) },
		Culprits: []string{"nft flush ruleset", "iptables -F", "iptables -t nat -F PREROUTING",
			"iptables -t nat -A KUBE-SERVICES"},
		Layouts: []dataplanetest.Layout{
			{Name: "older", Recorded: `
				iptables-restore < testdata/layouts/752c62b.ipv4
				ip6tables-restore < testdata/layouts/752c62b.ipv6`},
			{Name: "newer by its number", Edit: newerNumber},
			{Name: "newer by its objects", Edit: newerNumber + newerObjects}}}
	o.Run(t)
}

// An answer that cannot be decoded never counts as a missing object.
func TestGarbledAnswersAreErrors(t *testing.T) {
	t.Parallel()
	for _, c := range failing {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, ns, _ := opened(t, Config{})
			b, tap := tapped(t, ns)
			const getTable = uint16(rawnl.SubsysNFTables)<<8 | uint16(nft.MsgGetTable)
			rawnltest.GarbleEach(t, c.name, tap, func() error {
				answer := tap.Answer
				tap.Answer = nil
				c.prepare(t, b, ns)
				tap.Answer = answer
				return c.run(t.Context(), t, b)
			}, getTable) // this only asks whether the table exists
		})
	}
}

const newerNumber = `iptables -t nat -R KUBE-SETTINGS 1 -m comment --comment "layout 1000"
`

const newerObjects = `iptables-restore --noflush << END
*nat
:KUBE-SVC-SOMETHINGNEWNEWN -
-A KUBE-SVC-SOMETHINGNEWNEWN -d 10.96.0.10/32 -j RETURN
-A KUBE-SETTINGS -m comment --comment "something new"
-I KUBE-SERVICES -j KUBE-SVC-SOMETHINGNEWNEWN
COMMIT
END
`

func TestMain(m *testing.M) { netnstest.Main(m) }

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

// A writer is killed at any moment. It leaves the old state or the new state. The next apply
// produces the wanted state, even if a table was deleted or another writer committed in between.
func TestKilledAtAnyMoment(t *testing.T) {
	var deletions []string // adding a table first makes them succeed even if it does not exist
	for _, table := range []string{"ip nat", "ip filter", "ip6 nat", "ip6 filter"} {
		deletions = append(deletions, "nft add table "+table+"; delete table "+table)
	}
	dataplanetest.Killed(t, underTest, writerStates(), dataplanetest.KilledOptions{
		Damage: deletions, Harmless: []string{localnetIsOff}})
}

func TestEndures(t *testing.T) { dataplanetest.Endures(t, underTest, writerStates()) }

func TestRolls(t *testing.T) { dataplanetest.Rolls(t, underTest) }

// Writers that write without pause all get their turns, and the kernel ends up with the state of
// one of them.
func TestWritersTakeTurns(t *testing.T) {
	t.Parallel()
	dataplanetest.Writers(t, underTest, slices.Repeat(writerStates(), 10), localnetIsOff)
}

// Without turns, the result is still right, although one writer may give up.
func TestWritersAreRightWithoutTurns(t *testing.T) {
	t.Parallel()
	dataplanetest.WritersWithoutTurns(t, underTest, slices.Repeat(writerStates(), 10),
		localnetIsOff)
}

// lateWriters are the states of the kernel when two writers begin.
var lateWriters = []struct {
	name  string
	first sm.State // the state that both writers know
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
				runTool(t, ns, "", "iptables", "-t", "nat", "-X", one.found.versions[0].name)
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
			require.ErrorIs(t, err, kernelerr.ErrConflict)
			requireAdopts(t, ns, c.first.WithNode(testNode()).WithService(plainService("a", 1)), a)
			requireIntegrity(t, two, backends.Broken, "what it knows is worth nothing")
			_, err = two.Commit(t.Context(), sm.Diff(table, b))
			require.ErrorIs(t, err, errNotObserved)

			o := observation(t, two)
			ok(two.Commit(t.Context(), sm.Diff(o.Table, b)))(t)
			one.kernel.looks = wait.Budget{} // even when no check is due
			requireIntegrity(t, one, backends.Broken, "another writer was there")
		})
	}
}

// plainService is a service without endpoints.
func plainService(name string, i int) *sm.Service {
	return &sm.Service{
		Name: svcName(name), Ports: []sm.ServicePort{{Protocol: sm.TCP, Port: 80}},
		ClusterIPs: must.Addrs(fmt.Sprintf("10.96.1.%d", i)),
	}
}
