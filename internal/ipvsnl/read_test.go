package ipvsnl_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	. "github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/ipvsnl/ipvsfake"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/rawnl/rawnltest"
)

// shown makes the part of the answer to m that shows a service.
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
	services, err := c.Services(t.Context())
	require.NoError(t, err)
	require.Len(t, services, 1)
	k.InterruptDumps(DumpAttempts - 1)
	lists, err := c.AllDestinations(t.Context(), []ServiceKey{Web})
	require.NoError(t, err)
	require.Len(t, lists[0], 1)

	k.InterruptDumps(DumpAttempts)
	_, err = c.Services(t.Context())
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
		part := shown(m, ObservedService{Service: Wanted(Web), Hashed: true})
		parts := []any{part}
		if dumps < 3 {
			parts = append(parts, part)
		}
		return append(parts, rawnltest.Done(m.Seq, 0, 0))
	})
	services, err := c.Services(t.Context())
	require.NoError(t, err)
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
	services, err := c.Services(t.Context())
	require.NoError(t, err)
	require.Len(t, services, 300)
	for i := 1; i < len(services); i++ {
		require.Negative(t, services[i-1].Compare(services[i].ServiceKey))
	}
	list, err := c.Destinations(t.Context(), Web)
	require.NoError(t, err)
	require.Len(t, list, 300)
	require.Equal(t, uint16(1), list[0].Port)
}

func TestADumpCanBeGivenUp(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	parts := 0
	c, _ := dialScripted(t, func(m rawnltest.Message) (answer []any) {
		for range 3 {
			parts++
			s := Wanted(MarkService(FamilyIPv4, uint32(parts)))
			answer = append(answer, shown(m, ObservedService{Service: s}))
		}
		cancel()
		return append(answer, rawnltest.Done(m.Seq, 0, 0))
	})
	_, err := c.Services(ctx)
	require.ErrorIs(t, err, context.Canceled)
}

func TestStatisticsAndConnectionsAreRead(t *testing.T) {
	t.Parallel()
	c, k := fakeClient(t)
	d := Dest("10.244.1.1:8080")
	require.NoError(t, submit(t, c, func(b *Batch) {
		b.NewService(Wanted(Web))
		b.NewDestination(Web, d)
	}))
	k.SetConns(Web, d.DestinationKey, 1, 2, 3)
	k.SetStats(Web, d.DestinationKey, SomeStats)
	k.SetStats(Web, DestinationKey{}, Stats{Connections: 1 << 40})

	list, err := c.Destinations(t.Context(), Web)
	require.NoError(t, err)
	require.Equal(t, []ObservedDestination{{Destination: d, ActiveConns: 1, InactiveConns: 2,
		PersistentConns: 3, Stats: SomeStats}}, list)
	s, err := c.Service(t.Context(), Web)
	require.NoError(t, err)
	require.Equal(t, uint64(1)<<40, s.Stats.Connections)
}

func TestAForeignServiceIsRead(t *testing.T) {
	t.Parallel()
	c, _ := fakeClient(t)
	esp := Web
	esp.Protocol = 50
	require.NoError(t, submit(t, c, func(b *Batch) {
		rawService(b, CommandNewService,
			Service{ServiceKey: esp, Scheduler: "rr", Flags: 1 << 30})
	}))
	services, err := c.Services(t.Context())
	require.NoError(t, err)
	require.Equal(t, ServiceFlags(1<<30), services[0].Flags)
	_, err = c.Destinations(t.Context(), services[0].ServiceKey)
	require.NoError(t, err)
}
