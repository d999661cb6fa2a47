package ipvsnl_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	. "github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/test/ipvsfake"
	"github.com/kernlb/kernlb/internal/test/must"
	"github.com/kernlb/kernlb/internal/test/rawnltest"
)

// dial returns a client that uses the socket.
func dial(tb testing.TB, sock rawnl.Socket) *Client {
	tb.Helper()
	c := ok(Dial(tb.Context(), &rawnl.Config{Socket: sock}))(tb)
	tb.Cleanup(func() { require.NoError(tb, c.Close()) })
	return c
}

// fakeClient returns a client of a new fake.
func fakeClient(tb testing.TB) (*Client, *ipvsfake.Kernel) {
	tb.Helper()
	k := ipvsfake.New()
	return dial(tb, k.Socket()), k
}

// dialScripted returns a client whose kernel knows the family and passes all other requests to
// answer.
func dialScripted(t *testing.T, answer func(m rawnltest.Message) []any) (*Client,
	*rawnltest.Kernel) {
	t.Helper()
	sock := &rawnltest.Kernel{Answer: ipvsfake.New().Answer}
	c := dial(t, sock)
	sock.Answer = func(request []rawnltest.Message) (answers []any) {
		for _, m := range request {
			answers = append(answers, answer(m)...)
		}
		return answers
	}

	return c, sock
}

func acknowledge(m rawnltest.Message) []any { return []any{rawnltest.Error(m, 0, "", 0)} }

func ok[T any](v T, err error) func(testing.TB) T { return must.OK(v, err) }

func TestAKernelWithoutIPVSSaysSo(t *testing.T) {
	t.Parallel()
	k := ipvsfake.New()
	k.Unload()
	_, err := k.Dial(t.Context(), nil)
	require.ErrorIs(t, err, ErrNotSupported)
	require.ErrorContains(t, err, "open an IPVS client: the kernel has no IPVS (module ip_vs): ")
}

func TestModulesThatTheKernelDoesNotLoadWell(t *testing.T) {
	t.Parallel()
	k := ipvsfake.New()
	sock := &rawnltest.Kernel{}
	sock.Answer = func(request []rawnltest.Message) []any {
		if len(sock.Loaded) == 0 {
			return []any{rawnltest.Error(request[0], syscall.ENOENT, "", 0)}
		}
		return k.Answer(request)
	}

	c := dial(t, sock)
	for _, scheduler := range []string{"rr", "lblc", "lblcr", "lblc"} {
		s := Service{ServiceKey: Web, Scheduler: scheduler}
		require.NoError(t, c.Submit(t.Context(), NewService(s), SetService(s), DelService(Web)))
	}

	require.Equal(t, []string{"ip_vs", "ip_vs_lblc", "ip_vs_lblcr"}, sock.Loaded, "each once")
}

func TestEachCommandSucceedsOrFailsByItself(t *testing.T) {
	t.Parallel()
	c, k := fakeClient(t)
	err := c.Submit(t.Context(),
		NewService(Wanted(Web)), NewService(Wanted(Web)),
		NewDestination(Web, Dest("10.244.1.1:8080")),
		DelDestination(Web, DestKey("10.244.1.9:8080")),
		DelService(DNS6), SetService(Service{ServiceKey: Web, Scheduler: "nosuch"}),
		NewDestination(Web, Dest("10.244.1.2:8080")))
	var failed rawnl.OpErrors
	require.ErrorAs(t, err, &failed)
	require.Equal(t, rawnl.OpErrors{
		{Index: 1, Op: "new service", Object: "TCP 10.96.0.1:80", Errno: syscall.EEXIST,
			Meaning: ErrExists},
		{Index: 3, Op: "delete destination", Object: "10.244.1.9:8080 of TCP 10.96.0.1:80",
			Errno: syscall.ENOENT, Meaning: ErrNoDestination},
		{Index: 4, Op: "delete service", Object: "UDP [2001:db8::1]:53", Errno: syscall.ESRCH,
			Meaning: ErrNoService},
		{Index: 5, Op: "set service", Object: "TCP 10.96.0.1:80", Errno: syscall.ENOENT,
			Meaning: ErrNoModule},
	}, failed)
	require.EqualError(t, err, "new service TCP 10.96.0.1:80: exists already; "+
		"delete destination 10.244.1.9:8080 of TCP 10.96.0.1:80: no such destination; "+
		"delete service UDP [2001:db8::1]:53: no such service; and 1 more")
	require.Len(t, k.Log(), 3)
}

func TestAQueryWithoutReplyIsAnError(t *testing.T) {
	t.Parallel()
	c, _ := dialScripted(t, acknowledge)
	_, err := c.Timeouts(t.Context())
	require.EqualError(t, err, "get config: malformed netlink message: 0 replies")
}

func TestACancelledContextStopsEverything(t *testing.T) {
	t.Parallel()
	c, k := fakeClient(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	calls := map[string]func() error{
		"Submit": func() error {
			return c.Submit(ctx, NewService(Service{ServiceKey: Web, Scheduler: "lblc"}))
		},
		"Services":     func() error { _, err := c.Services(ctx); return err },
		"Service":      func() error { _, err := c.Service(ctx, Web); return err },
		"Destinations": func() error { _, err := c.Destinations(ctx, Web); return err },
		"Timeouts":     func() error { _, err := c.Timeouts(ctx); return err },
		"SetTimeouts":  func() error { return c.SetTimeouts(ctx, Timeouts{}) },
	}
	for name, call := range calls {
		require.ErrorIs(t, call(), context.Canceled, name)
	}
	require.NoError(t, c.Close())
	ctx = t.Context()
	for name, call := range calls {
		require.ErrorIs(t, call(), rawnl.ErrClosed, name)
	}
	require.Empty(t, k.Log())
}

func TestCommandsGoInWindows(t *testing.T) {
	t.Parallel()
	c, sock := dialScripted(t, acknowledge)
	sock.Sent = nil
	add, _ := Many(1000, 1)
	require.NoError(t, c.Submit(t.Context(), add...))
	require.Greater(t, len(sock.Sent), 1)
	for _, request := range sock.Sent {
		require.LessOrEqual(t, len(request), Window)
	}
}

func TestAnInterruptedDumpIsRepeated(t *testing.T) {
	t.Parallel()
	c, k := fakeClient(t)
	require.NoError(t, c.Submit(t.Context(), NewService(Wanted(Web)),
		NewDestination(Web, Dest("10.0.0.1:80"))))
	k.InterruptDumps(DumpAttempts - 1)
	require.Len(t, ok(c.Services(t.Context()))(t), 1)
	k.InterruptDumps(DumpAttempts)
	_, err := c.Destinations(t.Context(), Web)
	require.ErrorIs(t, err, rawnl.ErrDumpInterrupted)
	require.ErrorContains(t, err,
		"list destinations of TCP 10.96.0.1:80: 5 attempts: the dump was interrupted")
}

func TestADumpThatShowsADestinationTwiceIsRepeated(t *testing.T) {
	t.Parallel()
	dumps := 0
	c, _ := dialScripted(t, func(m rawnltest.Message) []any {
		dumps++
		part := rawnltest.Reply(m.Type, rawnl.FlagMulti, m.Seq,
			ipvsfake.DestinationBody(ObservedDestination{Destination: Dest("10.0.0.1:80")}))
		parts := []any{part}
		if dumps < 3 {
			parts = append(parts, part)
		}
		return append(parts, rawnltest.Done(m.Seq, 0, 0))
	})
	require.Len(t, ok(c.Destinations(t.Context(), Web))(t), 1)
	require.Equal(t, 3, dumps)
}

// In each round one of the two dumps misses a run of services or shows a run twice, as can happen
// when another network namespace removes or adds services. Between the dumps, a service is added or
// removed.
func TestServicesThatADumpHidesAreSeen(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		kernel := ipvsfake.New()
		sock := &rawnltest.Kernel{Answer: kernel.Answer}
		c := dial(t, sock)
		n := 1 + rnd.IntN(30)
		add, remove := Many(n, 0)
		require.NoError(t, c.Submit(t.Context(), add...))

		other := dial(t, kernel.Socket())
		torn, dumps := rnd.IntN(2), 0
		change := remove[rnd.IntN(n)]
		if torn == 0 && rnd.IntN(2) == 0 {
			change = NewService(Wanted(DNS6))
		}
		sock.Answer = func(request []rawnltest.Message) []any {
			answer := kernel.Answer(request)
			if request[0].Flags&rawnl.FlagDump != rawnl.FlagDump {
				return answer
			}
			if dumps == torn {
				answer = tear(t, rnd, answer)
			}
			if dumps++; dumps == 1 && seed%3 > 0 {
				require.NoError(t, other.Submit(t.Context(), change))
			}
			return answer
		}

		var keys []ServiceKey
		for _, s := range ok(c.Services(t.Context()))(t) {
			keys = append(keys, s.ServiceKey)
		}
		require.Equal(t, kernel.Keys(), keys, "seed %d", seed)
	}
}

// tear removes a run of messages from a dump, or repeats one.
func tear(t *testing.T, rnd *rand.Rand, answer []any) []any {
	var all []rawnltest.Message
	for _, datagram := range answer {
		all = append(all, ok(rawnltest.Split(datagram.([]byte)))(t)...)
	}
	done := len(all) - 1
	if i, j := rnd.IntN(done+1), rnd.IntN(done+1); i <= j {
		all = slices.Delete(all, i, j)
	} else {
		all = slices.Insert(all, i, all[j])
	}

	torn := []any{}
	for _, m := range all {
		torn = append(torn, rawnltest.Reply(m.Type, m.Flags, m.Seq, m.Body))
	}
	return torn
}

// requireWholeDumps requires that a dump in many parts is whole and sorted.
func requireWholeDumps(t *testing.T, c *Client) {
	t.Helper()
	const n = 300
	add, _ := Many(n, 0)
	for i := range n {
		add = append(add, NewDestination(Web, Dest(fmt.Sprintf("10.244.1.1:%d", n-i))))
	}
	require.NoError(t, c.Submit(t.Context(), add...))
	services := ok(c.Services(t.Context()))(t)
	require.Len(t, services, n)
	for i := 1; i < n; i++ {
		require.Negative(t, services[i-1].Compare(services[i].ServiceKey))
	}
	list := ok(c.Destinations(t.Context(), Web))(t)
	require.Len(t, list, n)
	require.Equal(t, uint16(1), list[0].Port)
}

func TestADumpInPartsIsWholeAndSorted(t *testing.T) {
	t.Parallel()
	c, _ := fakeClient(t)
	requireWholeDumps(t, c)
}

func TestStatisticsAreReadBack(t *testing.T) {
	t.Parallel()
	c, k := fakeClient(t)
	d := Dest("10.244.1.1:8080")
	require.NoError(t, c.Submit(t.Context(), NewService(Wanted(Web)), NewDestination(Web, d)))
	k.SetStats(Web, d.DestinationKey, someStats)
	k.SetStats(Web, DestinationKey{}, Stats{Connections: 1 << 40})
	require.Equal(t, []ObservedDestination{{Destination: d, Stats: someStats}},
		ok(c.Destinations(t.Context(), Web))(t))
	require.Equal(t, uint64(1)<<40, ok(c.Service(t.Context(), Web))(t).Stats.Connections)
}
