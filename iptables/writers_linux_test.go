package iptables

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/netnstest"
	"github.com/kernlb/kernlb/internal/nfnl"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/randstate"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// envWriter makes the test program a writer, which applies states in the network namespace of
// file descriptor 3 until it is killed. Its value is the seed.
const envWriter = "KERNLB_TEST_IPTABLES_WRITER"

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

// writeUntilKilled is what the test program does as a writer. It says so once it knows the
// kernel.
func writeUntilKilled(seed string) int {
	n, _ := strconv.ParseUint(seed, 10, 64)
	rng := rand.New(rand.NewPCG(n, 1))
	b, err := New(&Config{NetNS: 3})
	if err == nil {
		states, e := writerStates(), dataplane.New(b, nil)
		if _, err = e.Observe(context.Background()); err == nil {
			fmt.Println("ready")
		}
		for err == nil {
			_, err = e.Apply(context.Background(), states[rng.IntN(len(states))])
			time.Sleep(time.Duration(rng.IntN(2000)) * time.Microsecond)
		}
	}
	fmt.Println(err)
	return 1
}

// startWriter starts a writer in a process of its own, which kill kills.
func startWriter(t *testing.T, ns *netnstest.NS, seed int) (kill func()) {
	t.Helper()
	fd, err := unix.FcntlInt(uintptr(ns.Fd()), unix.F_DUPFD_CLOEXEC, 0)
	require.NoError(t, err)
	file := os.NewFile(uintptr(fd), "network namespace")
	defer file.Close()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", envWriter, seed))
	cmd.ExtraFiles = []*os.File{file}
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "ready\n", line)
	return func() {
		require.NoError(t, cmd.Process.Kill())
		err := cmd.Wait()
		var exit *exec.ExitError
		require.True(t, errors.As(err, &exit) && !exit.Exited(), "it wrote until it was killed: %v",
			err)
	}
}

// requireOneOf requires that the kernel holds one of the states, or nothing, and no mixture.
func requireOneOf(t *testing.T, ns *netnstest.NS, states []sm.State) {
	t.Helper()
	b, err := New(&Config{NetNS: ns.Fd()})
	require.NoError(t, err)
	defer b.Close()
	o, err := b.Observe(t.Context(), nil)
	require.NoError(t, err)
	// A process that is killed between the transaction and the sysctl leaves the sysctl off.
	for _, line := range o.Drift {
		require.Equal(t, "sysctl net.ipv4.conf.all.route_localnet is 0", line)
	}
	if o.Table.Len() == 0 && o.Table.Rules().MasqueradeMark == 0 {
		return
	}
	for _, s := range states {
		d := sm.Diff(o.Table, resolve(t, nil, s).Arrange(o.Table))
		d.Health = nil
		if d.Empty() {
			return
		}
	}
	t.Fatal("the kernel holds none of the states that were written")
}

// flush deletes a table of a family with all that is in it, as "nft delete table" does.
func flush(t *testing.T, ns *netnstest.NS, f *nft.Family, of tableID) {
	t.Helper()
	conn, err := nfnl.Dial(&nfnl.Config{NetNS: ns.Fd()})
	require.NoError(t, err)
	defer conn.Close()
	var batch nfnl.Batch
	e := newEncoder(&batch)
	table := e.of(chainID{family: uint8(familyIndex(f.Model)), table: of})
	table.EnsureTable()
	table.DeleteTable()
	require.NoError(t, conn.Commit(t.Context(), &batch, 0))
}

// Killed at any moment, a writer leaves the old state or the new one. The next apply ends at the
// wanted one, whoever flushed or wrote in between.
func TestKilledAtAnyMoment(t *testing.T) {
	t.Parallel()
	_, ns, _ := opened(t, Config{})
	states := writerStates()
	times := 200
	if testing.Short() {
		times = 20
	}
	const seed = 31
	rng := rand.New(rand.NewPCG(seed, 0))
	for i := range times {
		kill := startWriter(t, ns, i)
		time.Sleep(time.Duration(rng.IntN(12_000)) * time.Microsecond)
		flushed := i%4 == 3
		switch i % 4 {
		case 1: // a second writer
			b, err := New(&Config{NetNS: ns.Fd()})
			require.NoError(t, err)
			_, err = dataplane.New(b, nil).Apply(t.Context(), states[rng.IntN(len(states))])
			require.NoError(t, err)
			require.NoError(t, b.Close())
			time.Sleep(time.Duration(rng.IntN(3000)) * time.Microsecond)
		case 3:
			flush(t, ns, nft.Families[rng.IntN(2)], tables[rng.IntN(2)])
			time.Sleep(time.Duration(rng.IntN(6000)) * time.Microsecond)
		}
		kill()
		if !flushed {
			requireOneOf(t, ns, states)
		}
		b, err := New(&Config{NetNS: ns.Fd()})
		require.NoError(t, err)
		s := states[rng.IntN(len(states))]
		r, err := dataplane.New(b, nil).Apply(t.Context(), s)
		require.NoError(t, err, "seed %d, round %d", seed, i)
		require.NoError(t, b.Close())
		requireAdopts(t, ns, s, r.Changes.New)
	}
}

// unlocked is a backend that waits for nobody.
type unlocked struct{ dataplane.Backend }

// Two writers that write without pause get their turns, and the kernel ends at the state of one
// of them. Without turns, what they write is right all the same, though one may give up.
func TestTwoWritersTakeTurns(t *testing.T) {
	t.Parallel()
	for _, turns := range []bool{true, false} {
		t.Run(fmt.Sprintf("turns=%t", turns), func(t *testing.T) {
			t.Parallel()
			_, ns, _ := opened(t, Config{})
			states := writerStates()
			var group sync.WaitGroup
			for w := range 3 {
				b, err := New(&Config{NetNS: ns.Fd()})
				require.NoError(t, err)
				defer b.Close()
				var backend dataplane.Backend = b
				if !turns {
					backend = unlocked{b}
				}
				e := dataplane.New(backend, nil)
				rng := rand.New(rand.NewPCG(41, uint64(w)))
				group.Go(func() {
					for range 25 {
						start := time.Now()
						_, err := e.Apply(t.Context(), states[rng.IntN(len(states))])
						if turns || !errors.Is(err, dataplane.ErrConflict) {
							assert.NoError(t, err)
						}
						assert.Less(t, time.Since(start), patience)
					}
				})
			}
			group.Go(func() { // whoever looks meanwhile sees one of the states
				for range 10 {
					b, err := New(&Config{NetNS: ns.Fd()})
					if !assert.NoError(t, err) {
						return
					}
					unlock, err := b.Lock(t.Context())
					assert.NoError(t, err)
					if turns {
						requireOneOf(t, ns, states)
					}
					unlock()
					assert.NoError(t, b.Close())
				}
			})
			group.Wait()
			requireOneOf(t, ns, states)
		})
	}
}

// A writer that is late is refused, and what the first wrote stays; it observes and succeeds.
func TestTheLateWriterIsRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		first sm.State // what both know
		lost  bool     // the version is lost, as after "iptables -X"
	}{
		{"nothing is there", sm.State{}, false},
		{"an instance is there", webService(), false},
		{"an instance without a version is there", webService(), true},
	} {
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
