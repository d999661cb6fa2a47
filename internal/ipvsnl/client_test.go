package ipvsnl

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// scripted is a transport whose kernel is a function from a request to the datagrams of the answer.
type scripted struct {
	answer func(request []byte) [][]byte
	closed bool
	loaded []string
}

func (s *scripted) Limits() (bytes, answers int) { return 1 << 16, 64 }

func (s *scripted) LoadModule(name string) { s.loaded = append(s.loaded, name) }

func (s *scripted) Close() error {
	s.closed = true
	return nil
}

func (s *scripted) RoundTrip(request []byte, take func([]byte) (bool, error)) error {
	for _, datagram := range s.answer(request) {
		if done, err := take(datagram); done || err != nil {
			return err
		}
	}
	return ErrAnswersLost
}

// dialScripted returns a client whose kernel knows the family and leaves the rest to answer.
func dialScripted(t *testing.T, answer func(m message) [][]byte) (*Client, *scripted) {
	t.Helper()
	f := NewFake()
	s := &scripted{answer: func(request []byte) [][]byte {
		m, _, err := nextMessage(request)
		require.NoError(t, err)
		if m.typ == typeControl {
			replies, _ := f.handle(m)
			return replies
		}
		return answer(m)
	}}
	c, err := NewClient(t.Context(), s, nil)
	require.NoError(t, err)
	return c, s
}

func TestAKernelWithoutIPVSSaysSo(t *testing.T) {
	t.Parallel()
	f := NewFake()
	f.Unload()
	_, err := f.Dial(t.Context(), nil)
	require.ErrorIs(t, err, ErrNotSupported)
	require.EqualError(t, err, "open an IPVS client: the kernel has no IPVS (module ip_vs)")

	_, err = Dial(t.Context(), &Config{NetNS: -1})
	require.ErrorIs(t, err, ErrInvalid)
	require.ErrorContains(t, err, "NetNS: invalid: -1 is not a file descriptor")
}

func TestTheModuleIsLoadedWhereTheKernelDoesNot(t *testing.T) {
	t.Parallel()
	f := NewFake()
	s := &scripted{}
	s.answer = func(request []byte) [][]byte {
		m, _, err := nextMessage(request)
		require.NoError(t, err)
		if len(s.loaded) == 0 {
			return [][]byte{appendVerdict(nil, typeError, m, syscall.ENOENT)}
		}
		replies, _ := f.handle(m)
		return replies
	}
	_, err := NewClient(t.Context(), s, nil)
	require.NoError(t, err)
	require.Equal(t, []string{"ip_vs"}, s.loaded)
}

func TestModulesThatMustNotBeLoadedUnderTheKernelsLockAreLoadedBefore(t *testing.T) {
	t.Parallel()
	c, s := dialScripted(t, func(m message) [][]byte {
		return [][]byte{appendVerdict(nil, typeError, m, 0)}
	})
	for _, scheduler := range []string{"rr", "lblc", "lblcr", "lblc"} {
		require.NoError(t, submit(t, c, func(b *Batch) {
			b.NewService(Service{ServiceKey: web, Scheduler: scheduler})
		}))
		require.NoError(t, submit(t, c, func(b *Batch) {
			b.SetService(Service{ServiceKey: web, Scheduler: scheduler})
		}))
	}
	require.Equal(t, []string{"ip_vs_lblc", "ip_vs_lblcr"}, s.loaded, "each once")
}

func TestDialFailsIfTheControllerMakesNoSense(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		answer func(m message) []byte
		want   string
	}{
		{"another family", func(m message) []byte {
			return reply(m, 0, appendFamily(genBody(ctrlNewFamily), "other", 0x20))
		},
			"its number is 0"},
		{"a number of netlink's own", func(m message) []byte {
			return reply(m, 0, appendFamily(genBody(ctrlNewFamily), familyName, 3))
		}, "its number is 3"},
		{"attributes that are cut off", func(m message) []byte {
			return reply(m, 0, append(genBody(ctrlNewFamily), 9, 0, 1, 0))
		}, "claims 9 bytes"},
		{"a refusal", func(m message) []byte {
			return appendVerdict(nil, typeError, m, syscall.ENOMEM)
		},
			"open an IPVS client: find the generic netlink family IPVS: cannot allocate memory"},
		{"half a message", func(message) []byte {
			return []byte{1, 2, 3}
		}, "3 bytes are too short"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := &scripted{answer: func(request []byte) [][]byte {
				m, _, err := nextMessage(request)
				require.NoError(t, err)
				return [][]byte{tt.answer(m)}
			}}
			_, err := NewClient(t.Context(), s, nil)
			require.ErrorContains(t, err, tt.want)
			require.True(t, s.closed)
		})
	}
}

func TestEachCommandOfABatchSucceedsOrFailsByItself(t *testing.T) {
	t.Parallel()
	c, f := fakeClient(t)
	var b Batch
	b.NewService(wanted(web))
	b.NewService(wanted(web))
	b.NewDestination(web, dest("10.244.1.1:8080"))
	b.DelDestination(web, destKey("10.244.1.9:8080"))
	b.DelService(dns6)
	b.SetService(Service{ServiceKey: web, Scheduler: "nosuch"})
	b.NewDestination(web, dest("10.244.1.2:8080"))
	err := c.Submit(t.Context(), &b)

	var failed *BatchError
	require.ErrorAs(t, err, &failed)
	require.NoError(t, failed.Cause)
	require.Equal(t, 7, failed.Total)
	require.Equal(t, 7, failed.Answered)
	require.Equal(t, []*CommandError{
		{Index: 1, Command: CommandNewService, Service: web, Errno: syscall.EEXIST},
		{Index: 3, Command: CommandDelDestination, Service: web,
			Destination: destKey("10.244.1.9:8080"), Errno: syscall.ENOENT},
		{Index: 4, Command: CommandDelService, Service: dns6, Errno: syscall.ESRCH},
		{Index: 5, Command: CommandSetService, Service: web, Errno: syscall.ENOENT},
	}, failed.Failed)
	require.EqualError(t, err, "new service TCP 10.96.0.1:80: exists already; "+
		"delete destination 10.244.1.9:8080 of TCP 10.96.0.1:80: no such destination; "+
		"delete service UDP [2001:db8::1]:53: no such service; and 1 more of 7 commands failed")
	for _, sentinel := range []error{ErrExists, ErrNoDestination, ErrNoService, ErrNoModule,
		syscall.ESRCH} {
		require.ErrorIs(t, err, sentinel)
	}
	require.Len(t, f.Log(), 3)
}

func TestACommandErrorIsItsErrnoAndSaysWhatTheKernelSaid(t *testing.T) {
	t.Parallel()
	err := error(&CommandError{Command: CommandFlush, Errno: syscall.EPERM, Text: "no way"})
	require.EqualError(t, err, "flush: operation not permitted (no way)")
	require.ErrorIs(t, err, os.ErrPermission)
	require.NotErrorIs(t, err, ErrNoService)
}

func TestABatchGoesInWindows(t *testing.T) {
	t.Parallel()
	for _, window := range []int{1, 2, 7, 64, 1000} {
		f := NewFake()
		transport := &counting{Transport: &fakeTransport{fake: f}}
		c, err := NewClient(t.Context(), transport, nil)
		require.NoError(t, err)
		c.window = window
		add, remove := many(10, 10)
		add.DelService(dns6)
		transport.sends = 0
		err = c.Submit(t.Context(), add)
		require.Equal(t, (add.Len()+window-1)/window, transport.sends)
		var failed *BatchError
		require.ErrorAs(t, err, &failed)
		require.Len(t, failed.Failed, 1)
		require.Equal(t, 110, failed.Failed[0].Index)
		require.Equal(t, 111, failed.Answered)
		require.NoError(t, c.Submit(t.Context(), remove))
		require.Empty(t, f.Keys())
	}
}

// counting is a transport that counts requests.
type counting struct {
	Transport
	sends  int
	before func()
}

func (c *counting) RoundTrip(request []byte, take func([]byte) (bool, error)) error {
	c.sends++
	if c.before != nil {
		c.before()
	}
	return c.Transport.RoundTrip(request, take)
}

func TestARequestIsNoLargerThanTheTransportTakes(t *testing.T) {
	t.Parallel()
	f := NewFake()
	f.SetQueue(100_000)
	c, err := f.Dial(t.Context(), nil)
	require.NoError(t, err)
	c.window = 100_000
	add, _ := many(1000, 1)
	require.Greater(t, len(add.buf), 2*fakeLimit)
	require.NoError(t, c.Submit(t.Context(), add))
	require.Len(t, f.Keys(), 1000)
}

func TestAWindowFitsTheReceiveQueueEvenIfAllFails(t *testing.T) {
	t.Parallel()
	f := NewFake()
	f.SetQueue(10)
	c, err := f.Dial(t.Context(), nil)
	require.NoError(t, err)
	_, remove := many(100, 0)
	err = c.Submit(t.Context(), remove)
	var failed *BatchError
	require.ErrorAs(t, err, &failed)
	require.NoError(t, failed.Cause)
	require.Len(t, failed.Failed, 100)
}

func TestLostAnswersAreReported(t *testing.T) {
	t.Parallel()
	f := NewFake()
	c, err := f.Dial(t.Context(), nil)
	require.NoError(t, err)
	f.SetQueue(10) // the client still believes in 128
	_, remove := many(100, 0)
	err = c.Submit(t.Context(), remove)
	require.ErrorIs(t, err, ErrAnswersLost)
	var failed *BatchError
	require.ErrorAs(t, err, &failed)
	require.Zero(t, failed.Answered)
	require.Len(t, failed.Failed, 10)
	require.ErrorContains(t, err,
		"0 of 100 commands were answered: answers of the kernel were lost; delete service")
}

func TestASilentKernelIsAnError(t *testing.T) {
	t.Parallel()
	c, _ := dialScripted(t, func(message) [][]byte { return nil })
	require.ErrorIs(t, submit(t, c, func(b *Batch) { b.NewService(wanted(web)) }), ErrAnswersLost)
	_, err := c.Services(t.Context())
	require.ErrorIs(t, err, ErrAnswersLost)
	require.ErrorIs(t, c.Flush(t.Context()), ErrAnswersLost)
}

func TestAnswersToOthersAreIgnored(t *testing.T) {
	t.Parallel()
	c, _ := dialScripted(t, func(m message) [][]byte {
		other := m
		other.seq += 1000
		return [][]byte{
			appendVerdict(nil, typeError, other, syscall.EIO),
			append(appendVerdict(nil, typeError, other, syscall.EIO),
				appendVerdict(nil, typeError, m, 0)...),
		}
	})
	require.NoError(t, submit(t, c, func(b *Batch) { b.NewService(wanted(web)) }))
	require.NoError(t, c.Flush(t.Context()))
}

func TestMalformedAnswersAreErrors(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		answer func(m message) []byte
	}{
		{"half a message", func(message) []byte { return []byte{1, 2, 3} }},
		{"an error without number", func(m message) []byte {
			b := appendVerdict(nil, typeError, m, 0)[:headerLen]
			return endMessage(b, 0)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c, _ := dialScripted(t, func(m message) [][]byte { return [][]byte{tt.answer(m)} })
			require.ErrorIs(t, submit(t, c, func(b *Batch) {
				b.NewService(wanted(web))
			}), ErrMalformed)
			require.ErrorIs(t, c.Flush(t.Context()), ErrMalformed)
			_, err := c.Service(t.Context(), web)
			require.ErrorIs(t, err, ErrMalformed)
		})
	}
}

func TestSubmitStopsBetweenWindows(t *testing.T) {
	t.Parallel()
	f := NewFake()
	transport := &counting{Transport: &fakeTransport{fake: f}}
	c, err := NewClient(t.Context(), transport, nil)
	require.NoError(t, err)
	c.window = 10
	ctx, cancel := context.WithCancel(t.Context())
	transport.sends = 0
	transport.before = func() {
		if transport.sends == 3 {
			cancel()
		}
	}
	add, _ := many(100, 0)
	err = c.Submit(ctx, add)
	require.ErrorIs(t, err, context.Canceled)
	var failed *BatchError
	require.ErrorAs(t, err, &failed)
	require.Equal(t, 30, failed.Answered)
	require.Len(t, f.Keys(), 30)
}

func TestACancelledContextStopsEverything(t *testing.T) {
	t.Parallel()
	c, f := fakeClient(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var b Batch
	b.NewService(wanted(web))
	calls := map[string]func() error{
		"Submit":       func() error { return c.Submit(ctx, &b) },
		"Services":     func() error { _, err := c.Services(ctx); return err },
		"Service":      func() error { _, err := c.Service(ctx, web); return err },
		"Destinations": func() error { _, err := c.Destinations(ctx, web); return err },
		"AllDestinations": func() error {
			_, err := c.AllDestinations(ctx, []ServiceKey{web})
			return err
		},
		"Destination": func() error {
			_, err := c.Destination(ctx, web, destKey("10.0.0.1:1"))
			return err
		},
		"Info":        func() error { _, err := c.Info(ctx); return err },
		"Timeouts":    func() error { _, err := c.Timeouts(ctx); return err },
		"SetTimeouts": func() error { return c.SetTimeouts(ctx, Timeouts{}) },
		"Zero":        func() error { return c.Zero(ctx) },
		"ZeroService": func() error { return c.ZeroService(ctx, web) },
		"Flush":       func() error { return c.Flush(ctx) },
	}
	for name, call := range calls {
		require.ErrorIs(t, call(), context.Canceled, name)
	}
	require.NoError(t, c.Close())
	ctx = t.Context()
	for name, call := range calls {
		require.ErrorIs(t, call(), ErrClosed, name)
	}
	require.NoError(t, c.Close(), "closing twice is not an error")
	require.Empty(t, f.Log())
	_, err := f.Dial(ctx, nil)
	require.NoError(t, err)
}

func TestWaitingForATurnEndsWithTheContext(t *testing.T) {
	t.Parallel()
	c, _ := fakeClient(t)
	require.NoError(t, c.begin(t.Context()))
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	require.ErrorIs(t, c.Flush(ctx), context.DeadlineExceeded)
	c.end()
	require.NoError(t, c.Flush(t.Context()))
}

func TestManyGoroutinesTakeTurns(t *testing.T) {
	t.Parallel()
	c, f := fakeClient(t)
	var wg sync.WaitGroup
	errs := make(chan error, 100)
	for i := range 10 {
		wg.Go(func() {
			k := MarkService(FamilyIPv4, uint32(i)+1)
			var b Batch
			b.NewService(wanted(k))
			b.NewDestination(k, dest("10.0.0.1:0"))
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
	require.Len(t, f.Keys(), 10)
}

func TestArgumentsAreLookedAtFirst(t *testing.T) {
	t.Parallel()
	c, _ := fakeClient(t)
	ctx := t.Context()
	_, err := c.Service(ctx, ServiceKey{})
	require.ErrorIs(t, err, ErrInvalid)
	_, err = c.Destinations(ctx, ServiceKey{})
	require.ErrorIs(t, err, ErrInvalid)
	require.ErrorIs(t, c.ZeroService(ctx, ServiceKey{}), ErrInvalid)
	require.ErrorIs(t, c.SetTimeouts(ctx, Timeouts{TCP: -1}), ErrInvalid)
	require.NoError(t, c.Submit(ctx, &Batch{}))
}

func TestRequestsAreLogged(t *testing.T) {
	t.Parallel()
	var text bytes.Buffer
	log := slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{
		Level: slog.LevelDebug,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey || a.Key == "took" {
				return slog.Attr{}
			}
			return a
		},
	}))
	c, err := NewFake().Dial(t.Context(), &Config{Logger: log})
	require.NoError(t, err)
	require.NoError(t, submit(t, c, func(b *Batch) { b.NewService(wanted(web)) }))
	require.Error(t, submit(t, c, func(b *Batch) { b.NewService(wanted(web)) }))
	_, err = c.Services(t.Context())
	require.NoError(t, err)
	_, err = c.AllDestinations(t.Context(), []ServiceKey{web})
	require.NoError(t, err)
	require.Equal(t, `level=DEBUG msg="ipvs submit" commands=1 bytes=104
level=DEBUG msg="ipvs submit" commands=1 bytes=104 error="new service TCP 10.96.0.1:80: exists already"
level=DEBUG msg="ipvs dump of services" services=1
level=DEBUG msg="ipvs dump of destinations" services=1
`, text.String())
}
