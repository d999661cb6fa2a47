package ipvsnl_test

import (
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
