package ipvsnl_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/netnstest"
	. "github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/rawnl"
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

	c, err := Dial(tb.Context(), &rawnl.Config{NetNS: ns.Fd()})
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
			b.NewDestination(k, Dest("10.244.1.1:0"))
			b.NewDestination(k, Dest("10.244.1.2:0"))
		}), name)
	}
	services, err := c.Services(t.Context())
	require.NoError(t, err)
	require.Len(t, services, 13)
}

func TestKernelListsInParts(t *testing.T) {
	c, _ := kernelClient(t)
	add, _ := Many(200, 1)
	require.NoError(t, c.Submit(t.Context(), add))
	require.NoError(t, submit(t, c, func(b *Batch) {
		for i := range 200 {
			b.NewDestination(Web, Dest(fmt.Sprintf("10.244.1.1:%d", 1000+i)))
		}
	}))
	services, err := c.Services(t.Context())
	require.NoError(t, err)
	require.Len(t, services, 200)
	list, err := c.Destinations(t.Context(), Web)
	require.NoError(t, err)
	require.Len(t, list, 201)
}

func TestKernelAnswersFitTheReceiveQueue(t *testing.T) {
	_, ns := kernelClient(t)
	// Nothing but the queue limits what is sent at once.
	c, err := Dial(t.Context(), &rawnl.Config{NetNS: ns.Fd(), Limit: 1 << 30})
	require.NoError(t, err)
	defer c.Close()
	const n = 20_000 // some times what the queue has room for
	_, remove := Many(n, 0)
	err = c.Submit(t.Context(), remove)
	require.NotErrorIs(t, err, rawnl.ErrAnswersLost)
	refused := rawnl.Refusals(err)
	require.Len(t, refused, n, "each command fails, and none of the answers is lost")
	for i, f := range refused {
		require.Equal(t, i, f.Index)
		require.ErrorIs(t, f, ErrNoService)
	}
}

func TestKernelDumpsCanBeGivenUp(t *testing.T) {
	c, _ := kernelClient(t)
	add, _ := Many(200, 0)
	require.NoError(t, c.Submit(t.Context(), add))
	ctx, cancel := context.WithCancel(t.Context())
	var b Batch
	b.Raw(CommandGetService, func(*rawnl.Batch) {})
	err := c.Conn().Dump(ctx, b.Wire(), func(rawnl.Message) error {
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
	require.ErrorIs(t, err, rawnl.ErrClosed)
	require.NoError(t, c.Close(), "closing a closed client is no error")
}

// BenchmarkKernelSubmit adds 1,000 services of 10 destinations to a new network namespace, with
// windows of different sizes in bytes. The smallest is one round trip for each command. It must be
// a new namespace, because a destination that was removed stays in the kernel's trash for two
// minutes, and each new one is looked for there.
func BenchmarkKernelSubmit(b *testing.B) {
	add, _ := Many(1000, 10)
	for _, window := range []int{140, 1 << 10, 4 << 10, 16 << 10, 32 << 10, 128 << 10} {
		b.Run(fmt.Sprintf("window=%d", window), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				_, ns := kernelClient(b)
				c, err := Dial(b.Context(), &rawnl.Config{NetNS: ns.Fd(), Limit: window})
				require.NoError(b, err)
				b.StartTimer()
				require.NoError(b, c.Submit(context.Background(), add))
				b.StopTimer()
				require.NoError(b, c.Close())
				b.StartTimer()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*add.Len()), "ns/command")
		})
	}
}

// BenchmarkKernelRead lists 1,000 services of 10 destinations.
func BenchmarkKernelRead(b *testing.B) {
	c, _ := kernelClient(b)
	add, _ := Many(1000, 10)
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
