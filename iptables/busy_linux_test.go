package iptables

import (
	"context"
	"maps"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/wait"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// neighbour is another program that commits to nf_tables without pause until the test ends.
type neighbour struct {
	conn    *rawnl.Conn
	commits atomic.Int64
	stop    context.CancelFunc
	done    chan struct{}
}

// startNeighbour starts a neighbour that commits the messages of change. Odd rounds undo even ones.
func startNeighbour(
	tb testing.TB, ns *netnstest.NS, every time.Duration, change func(e *encoder, odd bool),
) *neighbour {
	tb.Helper()
	conn := ok(rawnl.Dial(&rawnl.Config{NetNS: ns.NetNS()}))(tb)
	ctx, stop := context.WithCancel(context.Background())
	n := &neighbour{conn: conn, stop: stop, done: make(chan struct{})}
	go n.run(ctx, tb, every, change)
	tb.Cleanup(n.end)
	return n
}

func (n *neighbour) run(
	ctx context.Context, tb testing.TB, every time.Duration, change func(e *encoder, odd bool),
) {
	defer close(n.done)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for odd := false; ctx.Err() == nil; odd = !odd {
		var batch rawnl.Batch
		change(newEncoder(&batch), odd)
		err := n.conn.Commit(context.Background(), &batch, 0)
		assert.NoError(tb, err, "the neighbour is not disturbed")
		n.commits.Add(1)
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

func (n *neighbour) end() {
	n.stop()
	<-n.done
	_ = n.conn.Close()
}

// inItsOwnTable adds and deletes a chain in the neighbour's own table.
func inItsOwnTable(e *encoder, odd bool) {
	table := nft.NewEncoder(e.batch, nft.IPv4, "neighbour")
	table.EnsureTable()
	if odd {
		table.DeleteChain("chain")
		return
	}

	table.CreateChain(&nft.Chain{Name: "chain"})
}

// anotherEndpoint returns the state with a different endpoint of one service.
func anotherEndpoint(s sm.State, i int) sm.State {
	name := svcName("service-3")
	eps := slices.Clone(s.Endpoints(name))
	eps[3].Addr = endpoint(3, 20+i%20)
	return s.WithEndpoints(name, eps)
}

// Neighbours commit without end, to their own tables and to the shared chains. No apply fails, the
// neighbours are not disturbed, and in the end the kernel holds the right rules.
func TestABusyNeighbourChangesNothing(t *testing.T) {
	t.Parallel()
	e, _, ns := engineOf(t)
	s := manyServices(300, 4)
	applied(t, e, s)
	own := startNeighbour(t, ns, time.Millisecond, inItsOwnTable)
	shared := newSharedNeighbour(t, ns, 2*time.Millisecond)
	observed := 0
	for i := range 60 {
		s = anotherEndpoint(s, i)
		if i%10 == 0 { // this changes rules in shared chains
			node := s.Node()
			node.LocalhostNodePorts = !node.LocalhostNodePorts
			s = s.WithNode(node)
		}

		r := applied(t, e, s)
		require.Empty(t, r.Drift)
		if r.Observed {
			observed++
		}
		if i%20 == 19 {
			requireAdopts(t, ns, s, r.Changes.New)
		}
	}

	require.LessOrEqual(t, observed, 3, "what neighbours do is no reason to read everything")
	require.Greater(t, own.commits.Load(), int64(20))
	require.Greater(t, shared.commits.Load(), int64(10))
	cleanUp(t, e)
	own.end()
	shared.end()
	require.NotContains(t, save(t, ns, nft.IPv4), "KUBE-")
}

// newSharedNeighbour starts a neighbour that inserts a rule at the beginning of PREROUTING and
// INPUT. It then deletes the rule by its handle, as iptables does.
func newSharedNeighbour(tb testing.TB, ns *netnstest.NS, every time.Duration) *neighbour {
	tb.Helper()
	conn := ok(rawnl.Dial(&rawnl.Config{NetNS: ns.NetNS()}))(tb)
	tb.Cleanup(func() { _ = conn.Close() })
	rd := newReader(conn)
	return startNeighbour(tb, ns, every, func(e *encoder, odd bool) {
		for _, id := range []chainID{nat4.chain("PREROUTING"), filter4.chain("INPUT")} {
			theirs := rule{proto: sm.TCP, ports: single(9), target: targetReturn}
			e.of(id).EnsureTable()
			if !odd {
				e.of(id).AddChain(chainOf(id))
				e.rule(id, nft.Before, 0, &theirs)
				continue
			}

			found, err := rd.rules(context.Background(), id, true)
			assert.NoError(tb, err)
			for i := range found {
				if found[i].rule.same(&theirs) {
					e.of(id).DeleteRule(id.name, found[i].handle)
				}
			}
		}
	})
}

// The neighbour is so busy that a list of chains is always interrupted. Still the backend does not
// read everything again, and a new process reads the right contents.
func TestTheListOfChainsIsNeverWhole(t *testing.T) {
	t.Parallel()
	b, ns, _ := opened(t, Config{})
	s := manyServices(1500, 1)
	want := apply(t, b, s)
	startNeighbour(t, ns, 20*time.Microsecond, inItsOwnTable)
	require.Eventually(t, func() bool {
		gen := b.kernel.gen
		whole, certain, err := b.look(t.Context())
		require.NoError(t, err)
		require.True(t, whole)
		if certain {
			return false
		}
		b.kernel.looks = wait.NewBudget(1, 20)
		i := ok(b.Integrity(t.Context()))(t)
		require.NotEqual(t, backends.Broken, i)
		return gen == b.kernel.gen
	}, time.Minute, time.Millisecond)

	requireAdopts(t, ns, s, want)
}

// A chain that is missing in an interrupted list is asked for by name.
func TestChainsThatTheListLacks(t *testing.T) {
	t.Parallel()
	b, ns, _ := opened(t, Config{})
	want := apply(t, b, richState(t, 9))
	require.NoError(t, ns.SetSysctl("net/ipv4/conf/all/route_localnet", "1"))
	r := &raw{}
	for _, f := range nft.Families {
		require.NoError(t, b.kernel.reader.findChains(t.Context(), b.l, f, r))
		for _, name := range []string{"PREROUTING", "OUTPUT", "POSTROUTING"} {
			c := r.chains[nat.of(f).chain(name)]
			require.NotNil(t, c)
			require.NotEmpty(t, c.Type)
		}
	}

	r.put(b.found.versions[0], &rawChain{})
	require.NoError(t, b.kernel.readChains(t.Context(), b.l, r))
	o := ok(b.l.interpret(r, nil))(t)
	require.Empty(t, o.text)
	requireSameTable(t, want.Arrange(o.state.table), o.state.table)
	found := maps.Clone(r.chains)
	require.NoError(t, b.kernel.reader.findChains(t.Context(), b.l, nft.IPv4, r))
	for id, c := range r.chains { // known chains are not asked for
		require.Same(t, found[id], c)
	}
}
