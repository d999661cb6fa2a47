package ipvsnl_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	. "github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/ipvsnl/ipvsfake"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/rawnl/rawnltest"
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
		require.NoError(t, submit(t, c, func(b *Batch) {
			b.NewService(Service{ServiceKey: Web, Scheduler: scheduler})
		}))
		require.NoError(t, submit(t, c, func(b *Batch) {
			b.SetService(Service{ServiceKey: Web, Scheduler: scheduler})
		}))
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

func TestARefusalIsItsErrnoAndSaysWhatTheKernelSaid(t *testing.T) {
	t.Parallel()
	c, _ := dialScripted(t, func(m rawnltest.Message) []any {
		return []any{rawnltest.Error(m, syscall.EPERM, "no way", 0)}
	})
	err := c.SetTimeouts(t.Context(), Timeouts{})
	require.EqualError(t, err, "set config: operation not permitted (no way)")
	require.ErrorIs(t, err, os.ErrPermission)
	require.NotErrorIs(t, err, ErrNoService)
}

func TestABatchGoesInWindows(t *testing.T) {
	t.Parallel()
	for _, window := range []int{140, 1000, 10_000} {
		k := ipvsfake.New()
		sock := k.Socket()
		c, err := Dial(t.Context(), &rawnl.Config{Socket: sock, Limit: window})
		require.NoError(t, err)
		add, remove := Many(10, 10)
		add.DelService(DNS6)
		sock.Sent = nil
		err = c.Submit(t.Context(), add)
		require.Greater(t, len(sock.Sent), len(add.Wire().Bytes())/window)
		for _, request := range sock.Sent {
			require.LessOrEqual(t, len(request), window)
		}
		var failed *rawnl.OpError
		require.ErrorAs(t, err, &failed)
		require.Equal(t, 110, failed.Index)
		require.NoError(t, c.Submit(t.Context(), remove))
		require.Empty(t, k.Keys())
	}
}

func TestARequestIsNoLargerThanTheTransportTakes(t *testing.T) {
	t.Parallel()
	k := ipvsfake.New()
	k.SetQueue(100_000)
	c, err := k.Dial(t.Context(), &rawnl.Config{Limit: 1 << 30})
	require.NoError(t, err)
	add, _ := Many(1000, 1)
	require.Greater(t, len(add.Wire().Bytes()), 2*ipvsfake.RequestLimit)
	require.NoError(t, c.Submit(t.Context(), add))
	require.Len(t, k.Keys(), 1000)
}

func TestAWindowFitsTheReceiveQueueEvenIfAllFails(t *testing.T) {
	t.Parallel()
	k := ipvsfake.New()
	k.SetQueue(10)
	c, err := k.Dial(t.Context(), nil)
	require.NoError(t, err)
	_, remove := Many(100, 0)
	err = c.Submit(t.Context(), remove)
	require.NotErrorIs(t, err, rawnl.ErrAnswersLost)
	require.Len(t, rawnl.Refusals(err), 100)
}

func TestLostAnswersAreReported(t *testing.T) {
	t.Parallel()
	k := ipvsfake.New()
	c, err := k.Dial(t.Context(), nil)
	require.NoError(t, err)
	k.SetQueue(10) // the client still believes in 128
	_, remove := Many(100, 0)
	err = c.Submit(t.Context(), remove)
	require.ErrorIs(t, err, rawnl.ErrAnswersLost)
	require.Len(t, rawnl.Refusals(err), 10)
	require.ErrorContains(t, err,
		"0 of 100 messages were answered: answers of the kernel are missing")
}

func TestASilentKernelIsAnError(t *testing.T) {
	t.Parallel()
	c, _ := dialScripted(t, func(rawnltest.Message) []any { return nil })
	require.ErrorIs(t, submit(t, c, func(b *Batch) { b.NewService(Wanted(Web)) }),
		rawnl.ErrAnswersLost)
	_, err := c.Services(t.Context())
	require.ErrorIs(t, err, rawnl.ErrAnswersLost)
	require.ErrorIs(t, c.SetTimeouts(t.Context(), Timeouts{}), rawnl.ErrAnswersLost)
}

func TestAnswersToOthersAreIgnored(t *testing.T) {
	t.Parallel()
	c, _ := dialScripted(t, func(m rawnltest.Message) []any {
		other := m
		other.Seq += 1000
		refusal := rawnltest.Error(other, syscall.EIO, "", 0)
		return []any{refusal, append(refusal, rawnltest.Error(m, 0, "", 0)...)}
	})
	require.NoError(t, submit(t, c, func(b *Batch) { b.NewService(Wanted(Web)) }))
	require.NoError(t, c.SetTimeouts(t.Context(), Timeouts{}))
}

func TestMalformedAnswersAreErrors(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func(m rawnltest.Message) []byte{
		"half a message": func(rawnltest.Message) []byte { return []byte{1, 2, 3} },
		"an error without number": func(m rawnltest.Message) []byte {
			return rawnltest.Reply(2, 0, m.Seq, nil) // NLMSG_ERROR
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, _ := dialScripted(t, func(m rawnltest.Message) []any { return []any{answer(m)} })
			require.ErrorIs(t, submit(t, c, func(b *Batch) {
				b.NewService(Wanted(Web))
			}), rawnl.ErrMalformed)
			require.ErrorIs(t, c.SetTimeouts(t.Context(), Timeouts{}), rawnl.ErrMalformed)
			_, err := c.Service(t.Context(), Web)
			require.ErrorIs(t, err, rawnl.ErrMalformed)
		})
	}
}

func TestAQueryWithoutReplyIsAnError(t *testing.T) {
	t.Parallel()
	c, _ := dialScripted(t, func(m rawnltest.Message) []any {
		return []any{rawnltest.Error(m, 0, "", 0)}
	})
	_, err := c.Info(t.Context())
	require.EqualError(t, err, "get info: malformed netlink message: 0 replies")
}

func TestSubmitStopsBetweenWindows(t *testing.T) {
	t.Parallel()
	k := ipvsfake.New()
	sock := k.Socket()
	add, _ := Many(100, 0)
	window := len(add.Wire().Bytes()) / 10
	c, err := Dial(t.Context(), &rawnl.Config{Socket: sock, Limit: window})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	sock.Answer = func(request []rawnltest.Message) []any {
		if len(sock.Sent) == 4 { // the first asked for the family
			cancel()
		}
		return k.Answer(request)
	}
	err = c.Submit(ctx, add)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "30 of 100 messages were answered")
	require.Len(t, k.Keys(), 30)
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
		"AllDestinations": func() error {
			_, err := c.AllDestinations(ctx, []ServiceKey{Web})
			return err
		},
		"Info":        func() error { _, err := c.Info(ctx); return err },
		"Timeouts":    func() error { _, err := c.Timeouts(ctx); return err },
		"SetTimeouts": func() error { return c.SetTimeouts(ctx, Timeouts{}) },
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
	_, err := k.Dial(ctx, nil)
	require.NoError(t, err)
}

func TestManyGoroutinesTakeTurns(t *testing.T) {
	t.Parallel()
	c, k := fakeClient(t)
	var wg sync.WaitGroup
	errs := make(chan error, 100)
	for i := range 10 {
		wg.Go(func() {
			k := MarkService(FamilyIPv4, uint32(i)+1)
			var b Batch
			b.NewService(Wanted(k))
			b.NewDestination(k, Dest("10.0.0.1:0"))
			errs <- c.Submit(t.Context(), &b)
			list, err := c.Destinations(t.Context(), k)
			if err == nil && len(list) != 1 {
				err = errors.New("not one destination")
			}
			errs <- err
			_, err = c.Services(t.Context())
			errs <- err
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		require.NoError(t, err)
	}
	require.Len(t, k.Keys(), 10)
}

func TestArgumentsAreLookedAtFirst(t *testing.T) {
	t.Parallel()
	c, _ := fakeClient(t)
	ctx := t.Context()
	_, err := c.Service(ctx, ServiceKey{})
	require.ErrorIs(t, err, ErrInvalid)
	_, err = c.Destinations(ctx, ServiceKey{})
	require.ErrorIs(t, err, ErrInvalid)
	require.ErrorIs(t, c.SetTimeouts(ctx, Timeouts{TCP: -1}), ErrInvalid)
	require.NoError(t, c.Submit(ctx, &Batch{}))
}

func TestRequestsAreLogged(t *testing.T) {
	t.Parallel()
	var text bytes.Buffer
	log := slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{
		Level: slog.LevelDebug,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey || a.Key == "duration" || a.Key == "bytes" {
				return slog.Attr{}
			}
			return a
		},
	}))
	c, err := ipvsfake.New().Dial(t.Context(), &rawnl.Config{Logger: log})
	require.NoError(t, err)
	text.Reset()
	require.NoError(t, submit(t, c, func(b *Batch) { b.NewService(Wanted(Web)) }))
	require.Error(t, submit(t, c, func(b *Batch) { b.NewService(Wanted(Web)) }))
	_, err = c.Services(t.Context())
	require.NoError(t, err)
	//revive:disable:line-length-limit
	require.Equal(t, `level=DEBUG msg="netlink requests" messages=1
level=DEBUG msg="netlink requests" messages=1 error="new service TCP 10.96.0.1:80: exists already"
level=DEBUG msg="netlink dump" messages=1
`, text.String())
	//revive:enable:line-length-limit
}
