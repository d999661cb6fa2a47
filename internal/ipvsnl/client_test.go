package ipvsnl_test

import (
	"bytes"
	"context"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	. "github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/test/ipvsfake"
	"github.com/kernlb/kernlb/internal/test/must"
	"github.com/kernlb/kernlb/internal/test/rawnltest"
)

func TestAKernelWithoutIPVSSaysSo(t *testing.T) {
	t.Parallel()
	k := ipvsfake.New()
	k.Unload()
	_, err := k.Dial(t.Context(), nil)
	require.ErrorIs(t, err, ErrNotSupported)
	require.ErrorContains(t, err, "open an IPVS client: the kernel has no IPVS (module ip_vs): ")

	_, err = Dial(t.Context(), &rawnl.Config{NetNS: -1})
	require.ErrorContains(t, err, "NetNS: -1 is not a file descriptor")
}

func TestTheModuleIsLoadedWhereTheKernelDoesNot(t *testing.T) {
	t.Parallel()
	k := ipvsfake.New()
	sock := &rawnltest.Kernel{}
	sock.Answer = func(request []rawnltest.Message) []any {
		if len(sock.Loaded) == 0 {
			return []any{rawnltest.Error(request[0], syscall.ENOENT, "", 0)}
		}
		return k.Answer(request)
	}
	dial(t, sock)
	require.Equal(t, []string{"ip_vs"}, sock.Loaded)
}

func TestModulesThatMustNotBeLoadedUnderTheKernelsLockAreLoadedBefore(t *testing.T) {
	t.Parallel()
	c, sock := dialScripted(t, func(m rawnltest.Message) []any {
		return []any{rawnltest.Error(m, 0, "", 0)}
	})
	for _, scheduler := range []string{"rr", "lblc", "lblcr", "lblc"} {
		require.NoError(t, submit(t, c, newService(Service{ServiceKey: Web, Scheduler: scheduler})))
		require.NoError(t, submit(t, c, setService(Service{ServiceKey: Web, Scheduler: scheduler})))
	}
	require.Equal(t, []string{"ip_vs_lblc", "ip_vs_lblcr"}, sock.Loaded, "each once")
}

func TestEachCommandOfABatchSucceedsOrFailsByItself(t *testing.T) {
	t.Parallel()
	c, k := fakeClient(t)
	var b Batch
	b.NewService(Wanted(Web))
	b.NewService(Wanted(Web))
	b.NewDestination(Web, Dest("10.244.1.1:8080"))
	b.DelDestination(Web, DestKey("10.244.1.9:8080"))
	b.DelService(DNS6)
	b.SetService(Service{ServiceKey: Web, Scheduler: "nosuch"})
	b.NewDestination(Web, Dest("10.244.1.2:8080"))
	err := c.Submit(t.Context(), &b)

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
	for _, sentinel := range []error{ErrExists, ErrNoDestination, ErrNoService, ErrNoModule,
		syscall.ESRCH} {
		require.ErrorIs(t, err, sentinel)
	}
	require.Len(t, k.Log(), 3)
}

func TestAQueryWithoutReplyIsAnError(t *testing.T) {
	t.Parallel()
	c, _ := dialScripted(t, func(m rawnltest.Message) []any {
		return []any{rawnltest.Error(m, 0, "", 0)}
	})
	_, err := c.Timeouts(t.Context())
	require.EqualError(t, err, "get config: malformed netlink message: 0 replies")
}

func TestACancelledContextStopsEverything(t *testing.T) {
	t.Parallel()
	c, k := fakeClient(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var b Batch
	b.NewService(Service{ServiceKey: Web, Scheduler: "lblc"})
	calls := map[string]func() error{
		"Submit":       func() error { return c.Submit(ctx, &b) },
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
	require.NoError(t, c.Close(), "closing twice is not an error")
	require.Empty(t, k.Log())
	ok(k.Dial(ctx, nil))(t)
}

func TestABatchGoesInWindows(t *testing.T) {
	t.Parallel()
	k := ipvsfake.New()
	sock := k.Socket()
	c := dial(t, sock)
	add, remove := Many(1000, 1)
	sock.Sent = nil
	require.NoError(t, c.Submit(t.Context(), add))
	require.Greater(t, len(sock.Sent), len(add.Wire().Bytes())/Window)
	for _, request := range sock.Sent {
		require.LessOrEqual(t, len(request), Window)
	}
	require.NoError(t, c.Submit(t.Context(), remove))
	require.Empty(t, k.Keys())
}

func ok[T any](v T, err error) func(testing.TB) T { return must.OK(v, err) }

func TestABatchCanBeUsedAgain(t *testing.T) {
	t.Parallel()
	c, k := fakeClient(t)
	var b Batch
	b.NewService(Service{})
	b.Reset()
	require.Zero(t, b.Len())
	b.NewService(Wanted(Web))
	before := bytes.Clone(b.Wire().Bytes())
	require.NoError(t, c.Submit(t.Context(), &b))
	require.ErrorIs(t, c.Submit(t.Context(), &b), ErrExists)
	after := b.Wire().Bytes()
	clear(after[4:6])  // nlmsg_type
	clear(after[8:12]) // nlmsg_seq
	require.Equal(t, before, after,
		"but for type and sequence number, sending leaves the bytes as they were")
	require.Len(t, k.Keys(), 1)
}

func TestAddingToABatchWithRoomAllocatesNothing(t *testing.T) {
	var b Batch
	s, d := Wanted(Web), Dest("10.244.1.1:8080")
	fill := func() {
		b.Reset()
		b.NewService(s)
		b.SetService(s)
		b.NewDestination(Web, d)
		b.SetDestination(Web, d)
		b.DelDestination(Web, d.DestinationKey)
		b.DelService(Web)
	}
	fill()
	require.Zero(t, testing.AllocsPerRun(100, fill))
}

func TestARequestCanBeDescribedFromItsBytes(t *testing.T) {
	t.Parallel()
	var b Batch
	b.DelDestination(DNS6, DestKey("[2001:db8::2]:53"))
	request := b.Wire().Bytes()
	require.Equal(t, "[2001:db8::2]:53 of UDP [2001:db8::1]:53",
		CommandDelDestination.DescribePart(request, 0))
	b.Reset()
	b.NewService(Wanted(Marks))
	require.Equal(t, "FWM 7 IPv4", CommandNewService.DescribePart(b.Wire().Bytes(), 0))
	require.Empty(t, CommandNewService.DescribePart([]byte("short"), 0))
	require.Empty(t, CommandNewService.DescribePart(append(request, 1), 0))
	require.NoError(t, CommandGetConfig.Explain(syscall.ENOENT), "that is just an errno")
}

// shown makes a part of the answer to m, with one service.
func shown(m rawnltest.Message, s ObservedService) []byte {
	return rawnltest.Reply(m.Type, rawnl.FlagMulti, m.Seq, ipvsfake.ServiceBody(s))
}

func TestAnInterruptedDumpIsRepeated(t *testing.T) {
	t.Parallel()
	c, k := fakeClient(t)
	require.NoError(t, submit(t, c, func(b *Batch) {
		b.NewService(Wanted(Web))
		b.NewDestination(Web, Dest("10.0.0.1:80"))
	}))
	k.InterruptDumps(DumpAttempts - 1)
	services := servicesOf(t, c)
	require.Len(t, services, 1)
	k.InterruptDumps(DumpAttempts - 1)
	lists := allDestsOf(t, c, []ServiceKey{Web})
	require.Len(t, lists[0], 1)

	k.InterruptDumps(DumpAttempts)
	_, err := c.Services(t.Context())
	require.ErrorIs(t, err, rawnl.ErrDumpInterrupted)
	k.InterruptDumps(DumpAttempts)
	_, err = c.Destinations(t.Context(), Web)
	require.ErrorIs(t, err, rawnl.ErrDumpInterrupted)
	require.ErrorContains(t, err,
		"list destinations of TCP 10.96.0.1:80: 5 attempts: the dump was interrupted")
}

func TestADumpThatShowsSomethingTwiceIsRepeated(t *testing.T) {
	t.Parallel()
	dumps := 0
	c, _ := dialScripted(t, func(m rawnltest.Message) []any {
		dumps++
		part := shown(m, ObservedService{Service: Wanted(Web)})
		parts := []any{part}
		if dumps < 3 {
			parts = append(parts, part)
		}
		return append(parts, rawnltest.Done(m.Seq, 0, 0))
	})
	services := servicesOf(t, c)
	require.Len(t, services, 1)
	require.Equal(t, 3, dumps)
}

func TestADumpInPartsIsWholeAndSorted(t *testing.T) {
	t.Parallel()
	c, _ := fakeClient(t)
	add, _ := Many(300, 0)
	require.NoError(t, c.Submit(t.Context(), add))
	require.NoError(t, submit(t, c, func(b *Batch) {
		for i := range 300 {
			d := Dest("10.0.0.1:80")
			d.Port = uint16(300 - i)
			b.NewDestination(AddressService(TCP, AddrPort("10.96.0.1:80")), d)
		}
	}))
	services := servicesOf(t, c)
	require.Len(t, services, 300)
	for i := 1; i < len(services); i++ {
		require.Negative(t, services[i-1].Compare(services[i].ServiceKey))
	}
	list := destsOf(t, c, Web)
	require.Len(t, list, 300)
	require.Equal(t, uint16(1), list[0].Port)
}

func TestStatisticsAreReadBack(t *testing.T) {
	t.Parallel()
	c, k := fakeClient(t)
	d := Dest("10.244.1.1:8080")
	require.NoError(t, submit(t, c, func(b *Batch) {
		b.NewService(Wanted(Web))
		b.NewDestination(Web, d)
	}))
	k.SetStats(Web, d.DestinationKey, SomeStats)
	k.SetStats(Web, DestinationKey{}, Stats{Connections: 1 << 40})

	list := destsOf(t, c, Web)
	require.Equal(t, []ObservedDestination{{Destination: d, Stats: SomeStats}}, list)
	s := serviceOf(t, c, Web)
	require.Equal(t, uint64(1)<<40, s.Stats.Connections)
}

func TestAForeignServiceIsRead(t *testing.T) {
	t.Parallel()
	c, _ := fakeClient(t)
	esp := Web
	esp.Protocol = 50
	require.NoError(t, submit(t, c, func(b *Batch) {
		b.NewService(Service{ServiceKey: esp, Scheduler: "rr", Flags: 1 << 30})
	}))
	services := servicesOf(t, c)
	require.Equal(t, ServiceFlags(1<<30), services[0].Flags)
	destsOf(t, c, services[0].ServiceKey)
}

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
	k := ipvsfake.New()
	sock := &rawnltest.Kernel{Answer: k.Answer}
	c := dial(t, sock)
	sock.Answer = func(request []rawnltest.Message) (answers []any) {
		for _, m := range request {
			answers = append(answers, answer(m)...)
		}
		return answers
	}
	return c, sock
}

// submit sends the commands that fill adds.
func submit(tb testing.TB, c *Client, fill func(b *Batch)) error {
	tb.Helper()
	var b Batch
	fill(&b)
	return c.Submit(tb.Context(), &b)
}

// servicesOf, serviceOf, destsOf and allDestsOf read objects that must exist.
func servicesOf(tb testing.TB, c *Client) []ObservedService {
	tb.Helper()
	return ok(c.Services(tb.Context()))(tb)
}

func serviceOf(tb testing.TB, c *Client, k ServiceKey) ObservedService {
	tb.Helper()
	return ok(c.Service(tb.Context(), k))(tb)
}

func destsOf(tb testing.TB, c *Client, k ServiceKey) []ObservedDestination {
	tb.Helper()
	return ok(c.Destinations(tb.Context(), k))(tb)
}

func allDestsOf(tb testing.TB, c *Client, keys []ServiceKey) [][]ObservedDestination {
	tb.Helper()
	l := make([][]ObservedDestination, len(keys))
	for i, k := range keys {
		l[i] = ok(c.DestinationsIf(tb.Context(), k))(tb)
	}
	return l
}
