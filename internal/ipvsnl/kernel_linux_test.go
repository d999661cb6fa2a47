package ipvsnl

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/netnstest"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

// kernelClient returns a client in a new network namespace. It skips the test where the kernel has
// no IPVS or we may not use it.
func kernelClient(tb testing.TB) (*Client, *netnstest.NS) {
	tb.Helper()
	netnstest.Require(tb)
	ns, err := netnstest.NewNS("ipvs")
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, ns.Close()) })

	c, err := Dial(tb.Context(), &Config{NetNS: ns.Fd()})
	if errors.Is(err, ErrNotSupported) {
		tb.Skipf("needs a kernel with IPVS: %v", err)
	}
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, c.Close()) })
	if _, err = c.Info(tb.Context()); errors.Is(err, os.ErrPermission) {
		tb.Skipf("needs CAP_NET_ADMIN in the initial user namespace: %v", err)
	}
	require.NoError(tb, err)
	return c, ns
}

// kernelDial returns a client in a new network namespace.
func kernelDial(t *testing.T) *Client {
	t.Helper()
	c, _ := kernelClient(t)
	return c
}

func TestKernelRefusals(t *testing.T) { testRefusals(t, kernelDial) }

func TestKernelReadback(t *testing.T) { testReadback(t, kernelDial) }

func TestKernelEdits(t *testing.T) { testEdits(t, kernelDial) }

func TestKernelSettings(t *testing.T) { testSettings(t, kernelDial) }

func TestKernelLoadsSchedulers(t *testing.T) {
	c, _ := kernelClient(t)
	for i, name := range []string{"rr", "wrr", "lc", "wlc", "lblc", "lblcr", "sh", "dh", "sed",
		"nq", "mh", "fo", "ovf"} {
		k := MarkService(FamilyIPv4, uint32(i)+1)
		require.NoError(t, submit(t, c, func(b *Batch) {
			b.NewService(Service{ServiceKey: k, Scheduler: name})
			b.NewDestination(k, dest("10.244.1.1:0"))
			b.NewDestination(k, dest("10.244.1.2:0"))
		}), name)
	}
	services, err := c.Services(t.Context())
	require.NoError(t, err)
	require.Len(t, services, 13)
}

func TestKernelListsInParts(t *testing.T) {
	c, _ := kernelClient(t)
	add, _ := many(200, 1)
	require.NoError(t, c.Submit(t.Context(), add))
	require.NoError(t, submit(t, c, func(b *Batch) {
		for i := range 200 {
			b.NewDestination(web, dest(fmt.Sprintf("10.244.1.1:%d", 1000+i)))
		}
	}))
	services, err := c.Services(t.Context())
	require.NoError(t, err)
	require.Len(t, services, 200)
	list, err := c.Destinations(t.Context(), web)
	require.NoError(t, err)
	require.Len(t, list, 201)
}

func TestKernelAnswersFitTheReceiveQueue(t *testing.T) {
	c, _ := kernelClient(t)
	_, c.window = c.transport.Limits()
	_, remove := many(2*c.window, 0)
	err := c.Submit(t.Context(), remove)
	var failed *BatchError
	require.ErrorAs(t, err, &failed)
	require.NoError(t, failed.Cause)
	require.Len(t, failed.Failed, 2*c.window, "each command fails, and none of the answers is lost")
	for i, f := range failed.Failed {
		require.Equal(t, i, f.Index)
		require.ErrorIs(t, f, ErrNoService)
	}
}

func TestKernelSaysThatAnswersWereLost(t *testing.T) {
	c, _ := kernelClient(t)
	_, c.window = c.transport.Limits()
	c.window *= 10
	_, remove := many(c.window, 0)
	err := c.Submit(t.Context(), remove)
	require.ErrorIs(t, err, ErrAnswersLost)
	require.NoError(t, submit(t, c, func(b *Batch) {
		b.NewService(wanted(web))
	}), "the client can be used again")
	services, err := c.Services(t.Context())
	require.NoError(t, err)
	require.Len(t, services, 1)
}

func TestKernelDumpsCanBeGivenUp(t *testing.T) {
	c, _ := kernelClient(t)
	add, _ := many(200, 0)
	require.NoError(t, c.Submit(t.Context(), add))
	ctx, cancel := context.WithCancel(t.Context())
	err := c.query(ctx, CommandGetService, flagDump, nil, func(uint8, []byte) error {
		cancel()
		return nil
	})
	require.ErrorIs(t, err, context.Canceled)
	services, err := c.Services(t.Context())
	require.NoError(t, err, "the rest of the dump is gone")
	require.Len(t, services, 200)
}

func TestKernelClientsCanBeClosed(t *testing.T) {
	c, _ := kernelClient(t)
	require.NoError(t, c.Close())
	_, err := c.Services(t.Context())
	require.ErrorIs(t, err, ErrClosed)
	require.NoError(t, c.transport.Close(), "closing a closed transport is no error")
	require.ErrorIs(t, c.transport.RoundTrip(nil, nil), ErrClosed)
}

// BenchmarkKernelSubmit adds 1,000 services of 10 destinations to a new network namespace, with
// windows of different sizes. A window of 1 is one round trip for each command. It must be a new
// namespace, because a destination that was removed stays in the kernel's trash for two minutes,
// and each new one is looked for there.
func BenchmarkKernelSubmit(b *testing.B) {
	add, _ := many(1000, 10)
	for _, window := range []int{1, 4, 16, 64, 256, 1024} {
		b.Run(fmt.Sprintf("window=%d", window), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				c, _ := kernelClient(b)
				c.window = window
				b.StartTimer()
				require.NoError(b, c.Submit(context.Background(), add))
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*add.Len()), "ns/command")
		})
	}
}

// BenchmarkKernelRead lists 1,000 services of 10 destinations.
func BenchmarkKernelRead(b *testing.B) {
	c, _ := kernelClient(b)
	add, _ := many(1000, 10)
	ctx := context.Background()
	require.NoError(b, c.Submit(ctx, add))
	services, err := c.Services(ctx)
	require.NoError(b, err)
	keys := make([]ServiceKey, len(services))
	for i, s := range services {
		keys[i] = s.ServiceKey
	}
	b.Run("services", func(b *testing.B) {
		for b.Loop() {
			list, err := c.Services(ctx)
			require.NoError(b, err)
			require.Len(b, list, 1000)
		}
	})
	b.Run("destinations", func(b *testing.B) {
		for b.Loop() {
			lists, err := c.AllDestinations(ctx, keys)
			require.NoError(b, err)
			require.Len(b, lists[999], 10)
		}
	})
}
