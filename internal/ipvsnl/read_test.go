package ipvsnl_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	. "github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/test/ipvsfake"
	"github.com/kernlb/kernlb/internal/test/rawnltest"
)

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
