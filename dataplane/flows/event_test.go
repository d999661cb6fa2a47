package flows_test

import (
	"context"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/flows"
	"github.com/kernlb/kernlb/internal/wait"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// The engine's events name the service ports whose flows were cleaned, and the endpoints whose
// drain time is over.
func TestCleaningsAreTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, flows.Config{Connections: drain(10 * time.Second)})
		var cleaned []backends.Cleaned
		var drained []backends.Drained
		w.restartAt(t, serving(service(), endpoints(1, 2)))
		w.engine.Subscribe(func(_ context.Context, ev dataplane.Event) {
			w.keeper.Totals() // an observer may call it
			switch ev := ev.(type) {
			case dataplane.FlowsCleaned:
				cleaned = append(cleaned, ev.Cleaned)
			case dataplane.EndpointDrained:
				drained = append(drained, ev.Drained)
			}
		})

		w.put(tcp1, ext1, tcp2, "udp 10.96.0.10:53 > 10.244.0.1:5353")
		w.apply(t, serving(service(), endpoints(2)))
		udp := sm.PortName{Name: dns, Port: "dns", Protocol: sm.UDP}
		web := sm.PortName{Name: dns, Port: "web", Protocol: sm.TCP}
		require.Equal(t, []backends.Cleaned{{Service: udp, Flows: 1}}, cleaned)
		require.Empty(t, drained)

		// without the service, its connections are still drained
		w.apply(t, sm.State{}.WithNode(node))
		w.settle(t)
		require.Equal(t, backends.Cleaned{Service: web, Flows: 3}, cleaned[1])
		require.Len(t, cleaned, 2)
		require.Contains(t, drained, backends.Drained{Service: web, Deadline: true,
			Frontend: sm.FrontendKey{Addr: netip.MustParseAddr("10.96.0.10"), Port: 80,
				Protocol: sm.TCP},
			Endpoint: netip.MustParseAddrPort("10.244.0.1:8080")})
		seen := map[backends.Drained]bool{}
		for _, d := range drained {
			require.False(t, seen[d], "%v is told once", d)
			seen[d] = true
		}
	})
}

// drainingWorld is a world where an endpoint with one connection was removed. It drains for 10 s.
func drainingWorld(t *testing.T) *world {
	t.Helper()
	w := newWorld(t, flows.Config{Connections: drain(10 * time.Second)})
	w.restartAt(t, serving(service(), endpoints(1, 2)))
	w.put(tcp1)
	w.apply(t, serving(service(), endpoints(2)))
	return w
}

// An endpoint is told to be drained only after its connections have been reset, even if the caller
// waits for the kernel's packets in between.
func TestDrainedMeansReset(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := drainingWorld(t)
		told := 0
		ctx := backends.WithNotices(t.Context(), func(_ context.Context, n backends.Notice) {
			if _, is := n.(backends.Drained); is {
				told++
				require.Empty(t, w.list())
			}
		})

		for next := time.Duration(1); next > 0; {
			packets := wait.Packets{Done: time.Now()}
			time.Sleep(next)
			next = ok(w.keeper.Settle(packets.In(ctx)))(t)
		}

		require.Positive(t, told)
	})
}

// An endpoint that comes back before its connections were reset keeps them, and nobody is told that
// it is drained.
func TestWhoComesBackIsNotDrained(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := drainingWorld(t)
		w.engine.Subscribe(func(_ context.Context, ev dataplane.Event) {
			_, is := ev.(dataplane.EndpointDrained)
			require.False(t, is, ev)
		})

		packets := wait.Packets{Done: time.Now()}
		time.Sleep(10 * time.Second)
		ok(w.keeper.Settle(packets.In(t.Context())))(t) // waits for packets
		require.Len(t, w.list(), 1)
		w.apply(t, serving(service(), endpoints(1, 2)))
		w.settle(t)
		require.Len(t, w.list(), 1)
	})
}
