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

// kernelClient returns a client in a new network namespace. It skips the test where the kernel has no IPVS or we may
// not use it.
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

// BenchmarkKernelSubmit adds 1,000 services of 10 destinations to a new network namespace, with windows of different
// sizes. A window of 1 is one round trip for each command. It must be a new namespace, because a destination that
// was removed stays in the kernel's trash for two minutes, and each new one is looked for there.
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
